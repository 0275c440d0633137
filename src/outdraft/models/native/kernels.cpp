// Matrix products, attention and the small things between them, for few rows on a CPU.
//
// Every row is computed by the same additions in the same order whatever rows stand beside it: a
// product adds along k, one after the other, and attention adds over the slots that a row sees,
// hidden ones left out. A token read alone and the same token read among guesses therefore give
// the same bits, in every number format.
//
// A weight matrix [n, k], k even, is kept in panels of 16 outputs, [panels, k, 16], read from front
// to back; in bfloat16 and int8 as [panels, k / 2, 16, 2]. One load and one operation each make two
// vectors of float32 of a pair in bfloat16; pairs in int8 meet inputs in 16 bits.
// Plain C functions at the end; all sizes in elements, all tensors contiguous unless strides are
// named. Vectors are GCC's and clang's own; what they become is the compiler's affair.

#include <omp.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kMaxRows = 12;
#else
constexpr int kLanes = 8;
constexpr int kMaxRows = 6;
#endif
constexpr int kPanel = 16;
constexpr int kVecs = kPanel / kLanes;

#define VECTOR(type, lanes) \
  __attribute__((vector_size((lanes) * sizeof(type)), aligned(sizeof(type)), may_alias))

template <int L>
struct Vectors {
  typedef float Float VECTOR(float, L);
  typedef uint32_t Word VECTOR(uint32_t, L);
  typedef int32_t Int VECTOR(int32_t, L);
  typedef uint16_t Half VECTOR(uint16_t, L);
};

// Of the wide vectors the products are made; attention takes eight lanes on every machine.
typedef float Vec __attribute__((vector_size(kLanes * sizeof(float))));
typedef float Vec8 __attribute__((vector_size(8 * sizeof(float))));
typedef int32_t Int8 __attribute__((vector_size(8 * sizeof(int32_t))));
typedef int16_t Pairs8 __attribute__((vector_size(16 * sizeof(int16_t))));

struct bf16 {
  uint16_t bits;
};

constexpr float kRounds = 12582912.0f;  // 1.5 * 2^23: a sum with it is rounded to a whole number

enum Type { kFloat32 = 0, kBfloat16 = 1, kInt8 = 2 };

template <int L>
inline auto load(const float* p) {
  return *reinterpret_cast<const typename Vectors<L>::Float*>(p);
}
template <int L>
inline auto load(const bf16* p) {
  using V = Vectors<L>;
  auto halves = *reinterpret_cast<const typename V::Half*>(p);
  return (typename V::Float)(__builtin_convertvector(halves, typename V::Word) << 16);
}
inline float to_float(float value) { return value; }
inline float to_float(bf16 value) {
  uint32_t word = uint32_t(value.bits) << 16;
  float result;
  std::memcpy(&result, &word, sizeof result);
  return result;
}
inline void assign(float& to, float value) { to = value; }
inline void assign(bf16& to, float value) {  // to the nearest, ties to even
  uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  to.bits = std::isnan(value) ? 0x7fc0 : uint16_t((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

inline void store_lanes(float* to, Vec values) {
  *reinterpret_cast<typename Vectors<kLanes>::Float*>(to) = values;
}
inline void store_lanes(bf16* to, Vec values) {  // as `assign`
  typedef uint32_t Words __attribute__((vector_size(sizeof(Vec))));
  typedef uint16_t Halves __attribute__((vector_size(sizeof(Vec) / 2)));
  const Words words = (Words)values;
  Words rounded = (words + 0x7fff + ((words >> 16) & 1)) >> 16;
  rounded = values != values ? Words{} + 0x7fc0 : rounded;
  const Halves halves = __builtin_convertvector(rounded, Halves);
  std::memcpy(to, &halves, sizeof halves);
}

// Stops the compiler from loading a vector anew for each of its uses.
template <typename V>
inline void keep_in_register(V& v) {
#if defined(__AVX2__)
  asm("" : "+x"(v));
#endif
}

// sum + factor * v, rounded once where the machine can. Said outright and not left to the compiler,
// which would do it here and not there: the same sum has to have the same bits everywhere.
inline Vec8 add_product(Vec8 sum, float factor, Vec8 v) {
#if defined(__FMA__)
  return (Vec8)_mm256_fmadd_ps(_mm256_set1_ps(factor), (__m256)v, (__m256)sum);
#elif defined(__ARM_FEATURE_FMA)
  for (int j = 0; j < 8; j++) sum[j] = __builtin_fmaf(factor, v[j], sum[j]);
  return sum;
#else
  return sum + factor * v;
#endif
}
#if defined(__AVX512F__)
inline Vec add_product(Vec sum, float factor, Vec v) {
  return (Vec)_mm512_fmadd_ps(_mm512_set1_ps(factor), (__m512)v, (__m512)sum);
}
#endif

// As `load` and `store_lanes` of a vector of which only `count` numbers exist.
template <typename T>
inline Vec load_some(const T* from, int64_t count) {
  if (count == kLanes) return load<kLanes>(from);
  Vec values = {};
  for (int64_t j = 0; j < count; j++) values[j] = to_float(from[j]);
  return values;
}
template <typename T>
inline void store_some(T* to, Vec values, int64_t count) {
  if (count == kLanes) return store_lanes(to, values);
  for (int64_t j = 0; j < count; j++) assign(to[j], values[j]);
}

inline float sum_of(Vec8 v) {
  return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

// Memory that a thread keeps for its next call: for all threads, or for itself alone.
enum Use { kForAll, kForItself };
template <Use = kForAll>
inline float* scratch(int64_t size) {
  thread_local std::vector<float> memory;
  if (int64_t(memory.size()) < size) memory.resize(size);
  return memory.data();
}

// --- threads --------------------------------------------------------------------------------------

// A loop's units among threads: each has its own ones, in order, and when they are done takes what
// others have not begun. A core that is slow for a moment then holds up nobody for long.
class Shares {
 public:
  explicit Shares(int threads) : next_(threads) {}

  // Calls body(unit) for units of [0, count), until none is left.
  template <typename Body>
  void run(int64_t count, Body&& body) {
    const int64_t threads = omp_get_num_threads(), own = omp_get_thread_num();
    for (int64_t i = 0; i < threads; i++) {
      const int64_t whose = (own + i) % threads;
      const int64_t first = count * whose / threads, last = count * (whose + 1) / threads;
      for (int64_t unit; (unit = first + next_[whose].unit.fetch_add(1)) < last;) body(unit);
    }
  }

 private:
  struct alignas(64) Next {
    std::atomic<int64_t> unit{0};
  };
  std::vector<Next> next_;
};

// The same for small things, without stealing.
template <typename Body>
inline void share(int64_t count, Body&& body) {
  const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
  for (int64_t i = count * thread / threads; i < count * (thread + 1) / threads; i++) body(i);
}

// --- products -------------------------------------------------------------------------------------

struct Matrix {
  const void* weight;  // [panels, k, 16]; bfloat16 and int8: [panels, k / 2, 16, 2]
  const float* scale;  // per output, [panels * 16], or null
  const float* bias;   // the same
  int64_t n, k;
  int32_t type;
};

inline int64_t panels_of(const Matrix& matrix) { return (matrix.n + kPanel - 1) / kPanel; }

// What takes a panel's 16 sums of a row; called through a pointer, so that the products below are
// compiled once and not once for each of their users.
struct Store {
  const void* self;
  void (*call)(const void* self, int64_t row, int64_t panel, const float* sums);
};

// The panels that come next are called for while these are used, so that memory never waits: `step`
// bytes for every k.
struct Ahead {
  const char* from;
  int64_t step;
};

// Vector v of a panel's weights for k = i and k = i + 1, i even.
template <typename W>
inline void load_pair(const W* panel, int64_t i, int v, Vec* pair) {
  if constexpr (std::is_same_v<W, bf16>) {
    const bf16* from = panel + i * kPanel + v * 2 * kLanes;
    const auto words = *reinterpret_cast<const typename Vectors<kLanes>::Word*>(from);
    pair[0] = (Vec)(words << 16);
    pair[1] = (Vec)(words & 0xffff0000u);
  } else {
    pair[0] = load<kLanes>(panel + i * kPanel + v * kLanes);
    pair[1] = load<kLanes>(panel + (i + 1) * kPanel + v * kLanes);
  }
}

// The dot products of MR rows with NP panels, k even.
template <int MR, int NP, typename W>
void tile(const float* x, int64_t row, const W* w, int64_t panel, int64_t k, Ahead ahead,
          const Store& store) {
  constexpr int NV = NP * kVecs;
  Vec sums[MR][NV] = {};
  const float* rows = x + row * k;
  const W* panels = w + panel * k * kPanel;
  for (int64_t i = 0; i < k; i += 2) {
    Vec weights[NV][2];
    for (int v = 0; v < NV; v++)
      load_pair(panels + v / kVecs * k * kPanel, i, v % kVecs, weights[v]);
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; odd++) {
      __builtin_prefetch(ahead.from + (i + odd) * ahead.step, 0, 2);
      for (int v = 0; v < NV; v++) keep_in_register(weights[v][odd]);
      for (int m = 0; m < MR; m++)
        for (int v = 0; v < NV; v++)
          sums[m][v] = add_product(sums[m][v], rows[m * k + i + odd], weights[v][odd]);
    }
  }
  for (int m = 0; m < MR; m++)
    for (int p = 0; p < NP; p++)
      store.call(store.self, row + m, panel + p,
                 reinterpret_cast<const float*>(&sums[m][p * kVecs]));
}

// Rows in 16 bits, for weights in 8. A group's sums fit 32 bits: 256 * 127 * 32767 < 2^31.
constexpr int64_t kGroup = 256;
constexpr float kHighest = 32767.0f;

inline int64_t groups_of(int64_t k) { return (k + kGroup - 1) / kGroup; }

struct WholeRows {
  const int16_t* numbers;  // [m, k]
  const float* scales;     // [m, groups]: what 1 stands for
};

// A group of a row, rounded to the nearest; returns its scale, NaN if a number is not finite.
inline float round_group(const float* x, int64_t count, int16_t* numbers) {
  typedef int16_t Shorts __attribute__((vector_size(8 * sizeof(int16_t))));
  const int64_t whole = count / 8 * 8;
  float rest[8] = {};
  std::copy(x + whole, x + count, rest);
  const auto part = [&](int64_t i) { return load<8>(i < whole ? x + i : rest); };
  Vec8 most = {}, none = {};
  for (int64_t i = 0; i < count; i += 8) {
    const Vec8 v = part(i), size = v < 0.0f ? -v : v;
    most = size > most ? size : most;
    none += v * 0.0f;
  }
  float largest = 0.0f;
  for (int j = 0; j < 8; j++) largest = std::max(largest, most[j]);
  const float factor = largest > 1e-30f ? kHighest / largest : 0.0f;
  for (int64_t i = 0; i < count; i += 8) {
    const Vec8 shifted = part(i) * factor + kRounds;  // the last bits are the whole number's
    const Shorts shorts = __builtin_convertvector((Int8)shifted, Shorts);
    std::memcpy(numbers + i, &shorts, std::min<int64_t>(8, count - i) * sizeof(int16_t));
  }
  return largest / kHighest + sum_of(none);
}

// To each sum a pair of inputs times its pair of weights.
inline Int8 add_pairs(Int8 sums, int32_t pair, Pairs8 weights) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return (Int8)_mm256_dpwssd_epi32((__m256i)sums, _mm256_set1_epi32(pair), (__m256i)weights);
#elif defined(__AVXVNNI__)
  return (Int8)_mm256_dpwssd_avx_epi32((__m256i)sums, _mm256_set1_epi32(pair), (__m256i)weights);
#elif defined(__AVX2__)
  // Left to itself, the compiler makes many products before it adds the first, more than it has
  // registers for.
  __m256i products;
  asm volatile("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0"
               : "+x"(sums), "=&x"(products)
               : "x"(_mm256_set1_epi32(pair)), "x"(weights));
  return sums;
#else
  int16_t inputs[2];
  std::memcpy(inputs, &pair, sizeof inputs);
  for (int j = 0; j < 8; j++)
    sums[j] += int32_t(inputs[0]) * weights[2 * j] + int32_t(inputs[1]) * weights[2 * j + 1];
  return sums;
#endif
}

inline Pairs8 load_pairs(const int8_t* p) {
#if defined(__AVX2__)
  return (Pairs8)_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  typedef int8_t Bytes __attribute__((vector_size(16), aligned(1), may_alias));
  return __builtin_convertvector(*reinterpret_cast<const Bytes*>(p), Pairs8);
#endif
}

// Adds the products of MR rows with NP panels over one group, k from `first` to `last`.
template <int MR, int NP>
void add_group(const WholeRows& x, int64_t row, const int8_t* panels, int64_t first, int64_t last,
               int64_t k, Ahead ahead, Vec8* totals) {
  constexpr int NV = NP * kPanel / 8;
  const int16_t* rows = x.numbers + row * k;
  Int8 sums[MR][NV] = {};
  for (int64_t i = first; i < last; i += 2) {
    __builtin_prefetch(ahead.from + i * ahead.step, 0, 2);
    __builtin_prefetch(ahead.from + (i + 1) * ahead.step, 0, 2);
    Pairs8 weights[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++)
      weights[v] = load_pairs(panels + v / 2 * k * kPanel + i * kPanel + v % 2 * 16);
#pragma GCC unroll 12
    for (int m = 0; m < MR; m++) {
      int32_t pair;
      std::memcpy(&pair, rows + m * k + i, sizeof pair);
#pragma GCC unroll 8
      for (int v = 0; v < NV; v++) sums[m][v] = add_pairs(sums[m][v], pair, weights[v]);
    }
  }
#pragma GCC unroll 12
  for (int m = 0; m < MR; m++) {
    const float scale = x.scales[(row + m) * groups_of(k) + first / kGroup];
#pragma GCC unroll 8
    for (int v = 0; v < NV; v++, totals++)
      *totals = add_product(*totals, scale, __builtin_convertvector(sums[m][v], Vec8));
  }
}

// As above.
template <int MR, int NP>
void tile(const WholeRows& x, int64_t row, const int8_t* w, int64_t panel, int64_t k, Ahead ahead,
          const Store& store) {
  Vec8 totals[MR][NP][kPanel / 8] = {};
  const int8_t* panels = w + panel * k * kPanel;
  for (int64_t i = 0; i < k; i += kGroup)
    add_group<MR, NP>(x, row, panels, i, std::min(i + kGroup, k), k, ahead, totals[0][0]);
  for (int m = 0; m < MR; m++)
    for (int p = 0; p < NP; p++)
      store.call(store.self, row + m, panel + p, reinterpret_cast<const float*>(totals[m][p]));
}

// A tile for a number of rows that is known at run time, of MR at most.
template <int MR, int NP, typename X, typename W>
void tile_of(int64_t rows, const X& x, int64_t row, const W* w, int64_t panel, int64_t k,
             Ahead ahead, const Store& store) {
  if constexpr (MR > 1)
    if (rows < MR) return tile_of<MR - 1, NP>(rows, x, row, w, panel, k, ahead, store);
  tile<MR, NP>(x, row, w, panel, k, ahead, store);
}

// Panels first to last, NP at a time while there are so many, for blocks of at most MR rows, each
// of which calls for its share of the panels that come next.
template <int MR, int NP, typename X, typename W>
void panel_range(const X& x, int64_t m, const W* w, int64_t first, int64_t last, int64_t k,
                 const Store& store) {
  const int64_t blocks = (m + MR - 1) / MR;
  const int64_t step = NP * kPanel * int64_t(sizeof(W)) / blocks;
  for (; first + NP <= last; first += NP) {
    const char* next = reinterpret_cast<const char*>(w + (first + NP) * k * kPanel);
    for (int64_t b = 0; b < blocks; b++) {
      const int64_t row = m * b / blocks, rows = m * (b + 1) / blocks - row;
      tile_of<MR, NP>(rows, x, row, w, first, k, Ahead{next + b * k * step, step}, store);
    }
  }
  if constexpr (NP > 1)
    if (first < last) panel_range<MR, 1>(x, m, w, first, last, k, store);
}

// Few rows leave registers for several panels, and need them to hide the latency of an addition.
template <typename X, typename W>
void product(const X& x, int64_t m, const W* w, int64_t first, int64_t last, int64_t k,
             const Store& store) {
  constexpr int kMore = kLanes / 8;
  if (m == 1) return panel_range<1, 4 * kMore>(x, m, w, first, last, k, store);
  if (m == 2) return panel_range<2, 2 * kMore>(x, m, w, first, last, k, store);
  return panel_range<kMaxRows, kMore>(x, m, w, first, last, k, store);
}

// The rows x [m, k] of a product, as its matrix wants them.
struct Inputs {
  int64_t m;
  const float* x;
  WholeRows whole;  // for int8
};

// Floats that rows in 16 bits take.
inline int64_t whole_size(const Matrix& matrix, int64_t m) {
  return matrix.type == kInt8 ? m * (groups_of(matrix.k) + matrix.k / 2) : 0;
}

constexpr int64_t kOwnRows = 8;  // so many are sooner rounded by each thread than waited for

// For all threads to call once x is there. memory: of `whole_size`, the same for all.
inline Inputs inputs_for(const Matrix& matrix, const float* x, int64_t m, float* memory) {
  if (matrix.type != kInt8) return {m, x, {}};
  const int64_t k = matrix.k, groups = groups_of(k);
  float* scales = m > kOwnRows ? memory : scratch<kForItself>(whole_size(matrix, m));
  int16_t* numbers = reinterpret_cast<int16_t*>(scales + m * groups);
  const auto round_row = [&](int64_t row) {
    for (int64_t g = 0, i = row * k; g < groups; g++, i += kGroup)
      scales[row * groups + g] =
          round_group(x + i, std::min(kGroup, (row + 1) * k - i), numbers + i);
  };
  if (m > kOwnRows) {
    share(m, round_row);
#pragma omp barrier
  } else {
    for (int64_t row = 0; row < m; row++) round_row(row);
  }
  return {m, x, {numbers, scales}};
}

// Panels first to last of the product with the matrix, handed to `take(row, panel, sums)`.
template <typename Take>
void product_of(const Inputs& inputs, const Matrix& matrix, int64_t first, int64_t last,
                const Take& take) {
  const Store store{&take, [](const void* self, int64_t row, int64_t panel, const float* sums) {
                      (*static_cast<const Take*>(self))(row, panel, sums);
                    }};
  const int64_t m = inputs.m, k = matrix.k;
  switch (matrix.type) {
    case kFloat32:
      return product(inputs.x, m, static_cast<const float*>(matrix.weight), first, last, k, store);
    case kBfloat16:
      return product(inputs.x, m, static_cast<const bf16*>(matrix.weight), first, last, k, store);
    case kInt8:
      return product(inputs.whole, m, static_cast<const int8_t*>(matrix.weight), first, last, k,
                     store);
  }
}

constexpr int64_t kUnit = 4;  // panels that a thread takes at once

inline int64_t units_of(const Matrix& matrix) { return (panels_of(matrix) + kUnit - 1) / kUnit; }

template <typename Take>
void product_unit(const Inputs& inputs, const Matrix& matrix, int64_t unit, const Take& take) {
  const int64_t first = unit * kUnit;
  product_of(inputs, matrix, first, std::min(first + kUnit, panels_of(matrix)), take);
}

// All panels, by all threads.
template <typename Take>
void product_share(Shares& shares, const Inputs& inputs, const Matrix& matrix, const Take& take) {
  shares.run(units_of(matrix), [&](int64_t unit) { product_unit(inputs, matrix, unit, take); });
}

// The 16 outputs of a panel: scale, bias, and `put(column, values, count)` in vectors of which
// `count` values exist.
template <typename Put>
inline void finish(const Matrix& matrix, int64_t panel, const float* sums, Put&& put) {
  for (int v = 0; v < kVecs; v++) {
    const int64_t from = panel * kPanel + v * kLanes;
    Vec values = load<kLanes>(sums + v * kLanes);
    if (matrix.scale) values *= load<kLanes>(matrix.scale + from);
    if (matrix.bias) values += load<kLanes>(matrix.bias + from);
    if (from < matrix.n) put(from, values, std::min<int64_t>(kLanes, matrix.n - from));
  }
}

// --- small things ---------------------------------------------------------------------------------

inline Vec8 splat(float value) { return Vec8{} + value; }

// e^x to about one unit in the last place, for x clamped to [-87, 88].
inline Vec8 exp8(Vec8 x) {
  x = x < -87.0f ? splat(-87.0f) : x;
  x = x > 88.0f ? splat(88.0f) : x;
  const Vec8 shifted = x * 1.44269504f + kRounds;
  const Vec8 whole = shifted - kRounds;
  const Vec8 rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Vec8 sum = splat(1.9875691500e-4f);
  sum = sum * rest + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * rest * rest + rest + 1.0f;
  const Int8 power = __builtin_convertvector(whole, Int8) << 23;
  return (Vec8)((Int8)sum + power);
}

template <typename T>
inline void rms_norm(const T* x, const float* weight, int64_t n, float eps, float* y) {
  Vec8 squares = {};
  for (int64_t i = 0; i < n; i += 8) {
    const Vec8 v = load<8>(x + i);
    squares += v * v;
  }
  const float factor = 1.0f / std::sqrt(sum_of(squares) / float(n) + eps);
  for (int64_t i = 0; i < n; i++) y[i] = to_float(x[i]) * factor * weight[i];
}

// Rotates the pairs (i, i + size / 2) of a head's first `size` numbers.
template <typename T>
inline void rotate(float* head, const T* cos, const T* sin, int64_t size) {
  for (int64_t i = 0, j = size / 2; j < size; i++, j++) {
    const float a = head[i], b = head[j];
    head[i] = a * to_float(cos[i]) - b * to_float(sin[i]);
    head[j] = b * to_float(cos[j]) + a * to_float(sin[j]);
  }
}

// --- attention ------------------------------------------------------------------------------------
//
// What a row sees is walked through in chunks of slots; a chunk is prepared once for all `readers`
// of its keys. Each score adds along the head's numbers, each output along the slots that its row
// sees, one after the other: neither depends on who else reads.

constexpr int kReaders = 24;  // rows and heads that read the same keys together
constexpr int kAtOnce = 3;    // of them, those that share a loaded vector
constexpr int64_t kChunk = 32;

struct Run {
  int64_t from, to;
};

// Where a row's mask is true, in rising order.
inline void visible_runs(const uint8_t* mask, int64_t context, std::vector<Run>& runs) {
  runs.clear();
  for (int64_t s = 0; s < context;) {
    const void* found = std::memchr(mask + s, 1, context - s);
    if (!found) break;
    const int64_t from = static_cast<const uint8_t*>(found) - mask;
    const void* end = std::memchr(mask + from, 0, context - from);
    s = end ? static_cast<const uint8_t*>(end) - mask : context;
    runs.push_back({from, s});
  }
}

// One row of one head on its way through attention.
struct Reader {
  const float* q;
  float* out;     // [dim], zeros at first
  float* scores;  // of the slots it sees; the hidden ones are left out
  std::vector<Run> runs;
  size_t next;   // the first run that does not end before the chunk
  int64_t seen;  // slots before the chunk

  void begin() { next = 0, seen = 0; }

  // Moves on to a chunk; returns whether the row sees any of it.
  bool enter(Run chunk) {
    while (next < runs.size() && runs[next].to <= chunk.from) next++;
    return next < runs.size() && runs[next].from < chunk.to;
  }
  bool sees_all(Run chunk) const {
    return next < runs.size() && runs[next].from <= chunk.from && chunk.to <= runs[next].to;
  }
  // Calls visit(part, index) for what it sees of the chunk, and leaves it.
  template <typename Visit>
  void leave(Run chunk, Visit&& visit) {
    for (size_t i = next; i < runs.size() && runs[i].from < chunk.to; i++) {
      const Run part{std::max(runs[i].from, chunk.from), std::min(runs[i].to, chunk.to)};
      visit(part, seen);
      seen += part.to - part.from;
    }
  }
};

// The keys or the values of one head, slot by slot.
template <typename T>
struct Slots {
  const T* data;
  int64_t stride, dim;

  const T* at(int64_t slot) const { return data + slot * stride; }
};

inline void store8(float* to, Vec8 values) {
  *reinterpret_cast<Vectors<8>::Float*>(to) = values;
}

// Swaps rows and columns of eight vectors.
inline void transpose8(Vec8* v) {
  Vec8 a[8], b[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    a[2 * i] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    a[2 * i + 1] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
      const Vec8 x = a[i + j], y = a[i + j + 2];
      b[i + 2 * j] = __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13);
      b[i + 2 * j + 1] = __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15);
    }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    v[i] = __builtin_shufflevector(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    v[i + 4] = __builtin_shufflevector(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

// A chunk of keys as columns, [dim, kChunk] in float32.
template <typename T>
void columns_of(const Slots<T>& keys, Run chunk, float* columns) {
  for (int64_t s = 0; s < kChunk; s += 8) {
    // Of slots that are not there, the last one stands in: nobody reads its scores.
    const T* from[8];
    for (int j = 0; j < 8; j++) from[j] = keys.at(std::min(chunk.from + s + j, chunk.to - 1));
    for (int64_t d = 0; d < keys.dim; d += 8) {
      Vec8 part[8];
#pragma GCC unroll 8
      for (int j = 0; j < 8; j++) part[j] = load<8>(from[j] + d);
      transpose8(part);
#pragma GCC unroll 8
      for (int j = 0; j < 8; j++) store8(columns + (d + j) * kChunk + s, part[j]);
    }
  }
}

// A chunk of slots as float32, [kChunk, dim].
template <typename T>
void rows_of(const Slots<T>& slots, Run chunk, float* rows) {
  for (int64_t s = chunk.from; s < chunk.to; s++)
    for (int64_t d = 0; d < slots.dim; d += 8, rows += 8) {
      const Vec8 part = load<8>(slots.at(s) + d);
      std::memcpy(rows, &part, sizeof part);
    }
}

// The scores of R readers for the keys of a chunk, kChunk of them each.
template <int R>
void score(const float* const* q, const float* columns, int64_t dim, float scale,
           float* const* to) {
  constexpr int V = kChunk / 8;
  Vec8 sums[R][V] = {};
  for (int64_t d = 0; d < dim; d++) {
    for (int v = 0; v < V; v++) {
      Vec8 keys = load<8>(columns + d * kChunk + 8 * v);
      keep_in_register(keys);
      for (int r = 0; r < R; r++) sums[r][v] = add_product(sums[r][v], q[r][d], keys);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) {
      const Vec8 part = sums[r][v] * scale;
      store8(to[r] + 8 * v, part);
    }
}

// Adds `count` weighted values to P vectors of the outputs of R readers.
template <int R, int P, typename T>
void mix_part(const float* const* weights, const T* values, int64_t stride, int64_t count,
              float* const* to) {
  Vec8 sums[R][P];
  for (int r = 0; r < R; r++) std::memcpy(sums[r], to[r], sizeof sums[r]);
  for (int64_t s = 0; s < count; s++) {
    for (int p = 0; p < P; p++) {
      Vec8 part = load<8>(values + s * stride + 8 * p);
      if (R > 1) keep_in_register(part);
      for (int r = 0; r < R; r++) sums[r][p] = add_product(sums[r][p], weights[r][s], part);
    }
  }
  for (int r = 0; r < R; r++) std::memcpy(to[r], sums[r], sizeof sums[r]);
}

template <int R, typename T>
void mix(const float* const* weights, const T* values, int64_t stride, int64_t dim, int64_t count,
         float* const* out) {
  constexpr int P = R == 1 ? 8 : 4;
  float* to[R];
  int64_t d = 0;
  for (; d + 8 * P <= dim; d += 8 * P) {
    for (int r = 0; r < R; r++) to[r] = out[r] + d;
    mix_part<R, P>(weights, values + d, stride, count, to);
  }
  for (; d < dim; d += 8) {
    for (int r = 0; r < R; r++) to[r] = out[r] + d;
    mix_part<R, 1>(weights, values + d, stride, count, to);
  }
}

// How many of the readers from i on, kAtOnce at most, see the whole chunk.
inline int together(const std::vector<Reader>& readers, int i, int count, Run chunk) {
  int n = 0;
  while (n < kAtOnce && i + n < count && readers[i + n].sees_all(chunk)) n++;
  return n;
}

// Calls visit(chunk) for the chunks of which any reader sees anything.
template <typename Visit>
void visit_chunks(std::vector<Reader>& readers, int count, int64_t context, Visit&& visit) {
  for (int i = 0; i < count; i++) readers[i].begin();
  for (int64_t s = 0; s < context; s += kChunk) {
    const Run chunk{s, std::min(s + kChunk, context)};
    bool is_seen = false;
    for (int i = 0; i < count; i++) is_seen |= readers[i].enter(chunk);
    if (is_seen) visit(chunk);
  }
}

// All scores of some readers for the keys of one head. columns: [dim, kChunk].
template <typename T>
void score_all(std::vector<Reader>& readers, int count, int64_t context, const Slots<T>& keys,
               float scale, float* columns) {
  visit_chunks(readers, count, context, [&](Run chunk) {
    columns_of(keys, chunk, columns);
    for (int i = 0; i < count;) {
      const int n = together(readers, i, count, chunk);
      const float* q[kAtOnce];
      float *to[kAtOnce], some[kChunk];
      for (int r = 0; r < std::max(n, 1); r++) {
        q[r] = readers[i + r].q;
        to[r] = n ? readers[i + r].scores + readers[i + r].seen : some;
      }
      if (n == 3)
        score<3>(q, columns, keys.dim, scale, to);
      else if (n == 2)
        score<2>(q, columns, keys.dim, scale, to);
      else if (n == 1 || readers[i].enter(chunk))
        score<1>(q, columns, keys.dim, scale, to);
      for (int r = 0; r < std::max(n, 1); r++, i++)
        readers[i].leave(chunk, [&](Run part, int64_t index) {
          if (!n)
            std::copy_n(some + part.from - chunk.from, part.to - part.from,
                        readers[i].scores + index);
        });
    }
  });
}

// The values of one head, weighted by what became of the scores, into the readers' outputs.
// rows: [kChunk, dim].
template <typename T>
void mix_all(std::vector<Reader>& readers, int count, int64_t context, const Slots<T>& values,
             float* rows) {
  const bool is_widened = !std::is_same_v<T, float> && count > 2 * kAtOnce;
  const auto mix_some = [&](const auto& slots, Run chunk) {
    for (int i = 0; i < count;) {
      const int n = together(readers, i, count, chunk);
      const float* weights[kAtOnce];
      float* out[kAtOnce];
      for (int r = 0; r < std::max(n, 1); r++) {
        weights[r] = readers[i + r].scores + readers[i + r].seen;
        out[r] = readers[i + r].out;
      }
      const int64_t size = chunk.to - chunk.from;
      if (n == 3)
        mix<3>(weights, slots.at(chunk.from), slots.stride, slots.dim, size, out);
      else if (n == 2)
        mix<2>(weights, slots.at(chunk.from), slots.stride, slots.dim, size, out);
      for (int r = 0; r < std::max(n, 1); r++, i++)
        readers[i].leave(chunk, [&](Run part, int64_t index) {
          if (n > 1) return;
          weights[0] = readers[i].scores + index;
          mix<1>(weights, slots.at(part.from), slots.stride, slots.dim, part.to - part.from, out);
        });
    }
  };
  visit_chunks(readers, count, context, [&](Run chunk) {
    if (!is_widened) return mix_some(values, chunk);
    rows_of(values, chunk, rows);
    mix_some(Slots<float>{rows - chunk.from * values.dim, values.dim, values.dim}, chunk);
  });
}

// Scores to weights; returns the factor that makes their sum 1.
inline float soften(float* scores, int64_t n) {
  const float lowest = -std::numeric_limits<float>::infinity();
  for (int64_t i = n; i < n + 8; i++) scores[i] = lowest;
  Vec8 best = splat(lowest);
  for (int64_t i = 0; i < n; i += 8) {
    const Vec8 part = load<8>(scores + i);
    best = part > best ? part : best;
  }
  float highest = lowest;
  for (int j = 0; j < 8; j++) highest = std::max(highest, best[j]);
  Vec8 total = {};
  for (int64_t i = 0; i < n; i += 8) {
    const Vec8 raw = load<8>(scores + i);
    const Vec8 weights = raw == lowest ? Vec8{} : exp8(raw - highest);
    total += weights;
    std::memcpy(scores + i, &weights, sizeof weights);
  }
  return 1.0f / sum_of(total);
}

// softmax(scale * q keys) values for the first `count` readers. chunk: [dim, kChunk].
template <typename T>
void attend(const Slots<T>& keys, const Slots<T>& values, std::vector<Reader>& readers, int count,
            int64_t context, float scale, float* chunk) {
  score_all(readers, count, context, keys, scale, chunk);
  float factors[kReaders];
  for (int i = 0; i < count; i++) factors[i] = soften(readers[i].scores, readers[i].seen);
  mix_all(readers, count, context, values, chunk);
  for (int i = 0; i < count; i++)
    for (int64_t d = 0; d < values.dim; d++) readers[i].out[d] *= factors[i];
}

// --- one decoder layer ----------------------------------------------------------------------------

struct Layer {
  Matrix qkv, o, gate, up, down;
  const float *input_norm, *output_norm, *q_norm, *k_norm;  // the last two may be null
  int64_t hidden, heads, kv_heads, head_dim;
  float input_eps, output_eps, head_eps, scale;
};

struct Strided {
  const void* data;  // [seqs, heads, slots, dim], dim contiguous
  int64_t seq, head, slot;
};

template <typename T>
Slots<T> slots_of(const Strided& all, int64_t seq, int64_t head, int64_t dim) {
  return {static_cast<const T*>(all.data) + seq * all.seq + head * all.head, all.slot, dim};
}

// k, v: where the rows' keys and values go.
template <typename X, typename C>
void attention_inputs(const Layer& layer, const X* x, const X* cos, const X* sin,
                      int64_t rope_seqs, int64_t rope_dim, int64_t seqs, int64_t rows, float* q,
                      const Strided& k, const Strided& v, int threads) {
  const int64_t m = seqs * rows, dim = layer.head_dim, width = layer.qkv.n;
  float* normed = scratch(m * (layer.hidden + width) + whole_size(layer.qkv, m));
  float* merged = normed + m * layer.hidden;
  float* memory = merged + m * width;
  Shares products(threads);
#pragma omp parallel num_threads(threads)
  {
    share(m, [&](int64_t i) {
      rms_norm(x + i * layer.hidden, layer.input_norm, layer.hidden, layer.input_eps,
               normed + i * layer.hidden);
    });
#pragma omp barrier
    const Inputs inputs = inputs_for(layer.qkv, normed, m, memory);
    product_share(products, inputs, layer.qkv, [&](int64_t row, int64_t panel, const float* sums) {
      finish(layer.qkv, panel, sums, [&](int64_t j, Vec values, int64_t count) {
        store_some(merged + row * width + j, values, count);
      });
    });
#pragma omp barrier
    const int64_t all_heads = layer.heads + 2 * layer.kv_heads;
    share(m * all_heads, [&](int64_t task) {
      const int64_t i = task / all_heads, head = task % all_heads;
      const int64_t seq = i / rows, row = i % rows;
      float* part = merged + i * width + head * dim;
      const bool is_query = head < layer.heads, is_value = head >= layer.heads + layer.kv_heads;
      if (!is_value) {
        const float* norm = is_query ? layer.q_norm : layer.k_norm;
        if (norm) rms_norm(part, norm, dim, layer.head_eps, part);
        const int64_t angle = ((rope_seqs == 1 ? 0 : seq) * rows + row) * rope_dim;
        rotate(part, cos + angle, sin + angle, rope_dim);
      }
      if (is_query) {
        std::memcpy(q + ((seq * layer.heads + head) * rows + row) * dim, part, dim * sizeof(float));
        return;
      }
      const int64_t kv = (head - layer.heads) % layer.kv_heads;
      const Strided& all = is_value ? v : k;
      C* to = static_cast<C*>(const_cast<void*>(all.data)) + seq * all.seq + kv * all.head +
              row * all.slot;
      for (int64_t d = 0; d < dim; d++) assign(to[d], part[d]);
    });
  }
}

// Attention by all threads. A unit is some rows and query heads that read the same keys.
template <typename C>
void attention_share(Shares& shares, const Layer& layer, const float* q, const Strided& keys,
                     const Strided& values, const uint8_t* mask, int64_t mask_seqs, int64_t seqs,
                     int64_t rows, int64_t context, float* mixed) {
  const int64_t dim = layer.head_dim, group = layer.heads / layer.kv_heads;
  const int64_t of_head = rows * group, all = seqs * layer.kv_heads * of_head;
  const int64_t parts = 2 * omp_get_num_threads();
  const int64_t most = std::min<int64_t>(kReaders, (all + parts - 1) / parts);
  const int64_t units = (of_head + most - 1) / most;
  const int64_t size = (of_head + units - 1) / units;
  std::vector<float> scores(kReaders * (context + kChunk));
  std::vector<Reader> readers(kReaders);
  std::vector<float> chunk(kChunk * dim);
  shares.run(seqs * layer.kv_heads * units, [&](int64_t unit) {
    const int64_t seq = unit / units / layer.kv_heads, kv = unit / units % layer.kv_heads;
    const Slots<C> head_keys = slots_of<C>(keys, seq, kv, dim);
    const Slots<C> head_values = slots_of<C>(values, seq, kv, dim);
    const int64_t first = unit % units * size, last = std::min(first + size, of_head);
    for (int64_t i = first; i < last; i++) {
      const int64_t row = i / group, query = kv * group + i % group;
      Reader& reader = readers[i - first];
      reader.q = q + ((seq * layer.heads + query) * rows + row) * dim;
      reader.out = mixed + ((seq * rows + row) * layer.heads + query) * dim;
      std::fill_n(reader.out, dim, 0.0f);
      reader.scores = scores.data() + (i - first) * (context + kChunk);
      visible_runs(mask + ((mask_seqs == 1 ? 0 : seq) * rows + row) * context, context,
                   reader.runs);
    }
    attend(head_keys, head_values, readers, int(last - first), context, layer.scale, chunk.data());
  });
}

inline Vec silu(Vec x) {
  float parts[kLanes];
  store_lanes(parts, x);
  for (int j = 0; j < kLanes; j += 8) {
    const Vec8 part = load<8>(parts + j), result = part / (1.0f + exp8(-part));
    std::memcpy(parts + j, &result, sizeof result);
  }
  return load<kLanes>(parts);
}

template <typename X, typename C>
void attention_outputs(const Layer& layer, const X* x, const float* q, const Strided& keys,
                       const Strided& values, const uint8_t* mask, int64_t mask_seqs,
                       int64_t seqs, int64_t rows, int64_t context, X* y, int threads) {
  const int64_t m = seqs * rows, dim = layer.head_dim, hidden = layer.hidden;
  const int64_t width = layer.heads * dim, inner = layer.gate.n;
  const int64_t whole = std::max({whole_size(layer.o, m), whole_size(layer.gate, m),
                                  whole_size(layer.down, m)});
  float* mixed = scratch(m * (width + 2 * hidden + inner) + whole);
  float* residual = mixed + m * width;
  float* normed = residual + m * hidden;
  float* gated = normed + m * hidden;
  float* memory = gated + m * inner;
  Shares attention(threads), after(threads), inside(threads), last(threads);
#pragma omp parallel num_threads(threads)
  {
    attention_share<C>(attention, layer, q, keys, values, mask, mask_seqs, seqs, rows, context,
                       mixed);
#pragma omp barrier
    const Inputs heads = inputs_for(layer.o, mixed, m, memory);
    product_share(after, heads, layer.o, [&](int64_t row, int64_t panel, const float* sums) {
      finish(layer.o, panel, sums, [&](int64_t j, Vec values, int64_t count) {
        const int64_t i = row * hidden + j;
        store_some(residual + i, load_some(x + i, count) + values, count);
      });
    });
#pragma omp barrier
    share(m, [&](int64_t i) {
      rms_norm(residual + i * hidden, layer.output_norm, hidden, layer.output_eps,
               normed + i * hidden);
    });
#pragma omp barrier
    const Inputs both = inputs_for(layer.gate, normed, m, memory);
    inside.run(units_of(layer.gate), [&](int64_t unit) {
      product_unit(both, layer.gate, unit, [&](int64_t row, int64_t panel, const float* sums) {
        finish(layer.gate, panel, sums, [&](int64_t j, Vec values, int64_t count) {
          store_some(gated + row * inner + j, silu(values), count);
        });
      });
      product_unit(both, layer.up, unit, [&](int64_t row, int64_t panel, const float* sums) {
        finish(layer.up, panel, sums, [&](int64_t j, Vec values, int64_t count) {
          float* to = gated + row * inner + j;
          store_some(to, load_some(to, count) * values, count);
        });
      });
    });
#pragma omp barrier
    const Inputs inner_rows = inputs_for(layer.down, gated, m, memory);
    product_share(last, inner_rows, layer.down, [&](int64_t row, int64_t panel, const float* sums) {
      finish(layer.down, panel, sums, [&](int64_t j, Vec values, int64_t count) {
        const int64_t i = row * hidden + j;
        store_some(y + i, load_some(residual + i, count) + values, count);
      });
    });
  }
}

// Both halves, with the rows' keys and values written into the last slots of the context.
template <typename X>
void whole_layer(const Layer& layer, const X* x, const X* cos, const X* sin, int64_t rope_seqs,
                 int64_t rope_dim, const Strided& keys, const Strided& values, const uint8_t* mask,
                 int64_t mask_seqs, int64_t seqs, int64_t rows, int64_t context, X* y,
                 int threads) {
  thread_local std::vector<float> q;
  q.resize(seqs * rows * layer.heads * layer.head_dim);
  const auto last_of = [&](Strided all) {
    all.data = static_cast<const X*>(all.data) + (context - rows) * all.slot;
    return all;
  };
  attention_inputs<X, X>(layer, x, cos, sin, rope_seqs, rope_dim, seqs, rows, q.data(),
                         last_of(keys), last_of(values), threads);
  attention_outputs<X, X>(layer, x, q.data(), keys, values, mask, mask_seqs, seqs, rows, context,
                          y, threads);
}

template <typename X>
void linear(const Matrix& matrix, const X* x, int64_t m, X* y, int threads) {
  float* wide = scratch(m * matrix.k + whole_size(matrix, m));
  Shares products(threads);
#pragma omp parallel num_threads(threads)
  {
    share(m, [&](int64_t i) {
      for (int64_t j = i * matrix.k; j < (i + 1) * matrix.k; j++) wide[j] = to_float(x[j]);
    });
#pragma omp barrier
    const Inputs inputs = inputs_for(matrix, wide, m, wide + m * matrix.k);
    product_share(products, inputs, matrix, [&](int64_t row, int64_t panel, const float* sums) {
      finish(matrix, panel, sums, [&](int64_t j, Vec values, int64_t count) {
        store_some(y + row * matrix.n + j, values, count);
      });
    });
  }
}

}  // namespace

// --- what Python calls ----------------------------------------------------------------------------

extern "C" {

void outdraft_linear(const Matrix* matrix, int type, const void* x, int64_t m, void* y,
                     int threads) {
  if (type == kFloat32)
    linear(*matrix, static_cast<const float*>(x), m, static_cast<float*>(y), threads);
  else
    linear(*matrix, static_cast<const bf16*>(x), m, static_cast<bf16*>(y), threads);
}

// x [seqs, rows, hidden]; cos, sin [rope_seqs, rows, rope_dim]; q [seqs, heads, rows, dim] float32;
// k, v [seqs, kv_heads, rows, dim], to be written.
void outdraft_attention_inputs(const Layer* layer, int type, const void* x, const void* cos,
                               const void* sin, int64_t rope_seqs, int64_t rope_dim, int64_t seqs,
                               int64_t rows, float* q, const Strided* k, const Strided* v,
                               int threads) {
  if (type == kFloat32)
    attention_inputs<float, float>(*layer, static_cast<const float*>(x),
                                   static_cast<const float*>(cos), static_cast<const float*>(sin),
                                   rope_seqs, rope_dim, seqs, rows, q, *k, *v, threads);
  else
    attention_inputs<bf16, bf16>(*layer, static_cast<const bf16*>(x),
                                 static_cast<const bf16*>(cos), static_cast<const bf16*>(sin),
                                 rope_seqs, rope_dim, seqs, rows, q, *k, *v, threads);
}

// mask [mask_seqs, rows, context], 1 where a row sees a slot; y as x.
void outdraft_attention_outputs(const Layer* layer, int type, const void* x, const float* q,
                                const Strided* keys, const Strided* values, const uint8_t* mask,
                                int64_t mask_seqs, int64_t seqs, int64_t rows, int64_t context,
                                void* y, int threads) {
  if (type == kFloat32)
    attention_outputs<float, float>(*layer, static_cast<const float*>(x), q, *keys, *values, mask,
                                    mask_seqs, seqs, rows, context, static_cast<float*>(y),
                                    threads);
  else
    attention_outputs<bf16, bf16>(*layer, static_cast<const bf16*>(x), q, *keys, *values, mask,
                                  mask_seqs, seqs, rows, context, static_cast<bf16*>(y), threads);
}

// All of the two above; the last `rows` slots of keys and values are to be written.
void outdraft_layer(const Layer* layer, int type, const void* x, const void* cos, const void* sin,
                    int64_t rope_seqs, int64_t rope_dim, const Strided* keys,
                    const Strided* values, const uint8_t* mask, int64_t mask_seqs, int64_t seqs,
                    int64_t rows, int64_t context, void* y, int threads) {
  if (type == kFloat32)
    whole_layer(*layer, static_cast<const float*>(x), static_cast<const float*>(cos),
                static_cast<const float*>(sin), rope_seqs, rope_dim, *keys, *values, mask,
                mask_seqs, seqs, rows, context, static_cast<float*>(y), threads);
  else
    whole_layer(*layer, static_cast<const bf16*>(x), static_cast<const bf16*>(cos),
                static_cast<const bf16*>(sin), rope_seqs, rope_dim, *keys, *values, mask,
                mask_seqs, seqs, rows, context, static_cast<bf16*>(y), threads);
}

}  // extern "C"
