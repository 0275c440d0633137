"""The compiled kernels against torch, and each row against itself in other company."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from outdraft.models.native import Kernels, load_kernels
from outdraft.models.native.library import LayerWeights, PackedWeight
from support.compilers import needs_compiler

DTYPES = [torch.float32, torch.bfloat16]
SHAPES = [(1, 8), (5, 24), (16, 16), (33, 40), (20, 25), (200, 72)]
ROWS = [1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 25]

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return load_kernels()


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def close(ours: Tensor, exact: Tensor) -> bool:
    tolerance = 1e-5 if ours.dtype == torch.float32 else 1e-2
    return bool((ours.double() - exact).norm() <= tolerance * exact.norm())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_is_that_of_torch(
    kernels: Kernels, dtype: torch.dtype, shape: tuple[int, int], has_bias: bool
) -> None:
    weight, bias = torch.randn(shape).to(dtype), torch.randn(shape[0]) if has_bias else None
    packed = PackedWeight(weight, bias)
    for rows in ROWS:
        x = torch.randn(1, rows, shape[1]).to(dtype)
        exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
        y = kernels.linear(x, packed)
        assert y.dtype == dtype
        assert close(y, exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (37, 256), (20, 650)])
def test_a_quantised_product_scales_each_output(
    kernels: Kernels, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    packed, exact_weight = a_quantised_weight(*shape)
    for rows in ROWS:
        x = torch.randn(rows, shape[1]).to(dtype) * 10.0 ** torch.randint(-6, 6, (rows, 1))
        y = kernels.linear(x, packed)
        exact = F.linear(x.double(), exact_weight)
        # Inputs are rounded to 16 bits, by half a step at most.
        step = x.double().abs().amax(dim=1, keepdim=True) / 32767
        bound = step * 0.501 * exact_weight.abs().sum(dim=1) + torch.finfo(dtype).eps * exact.abs()
        assert ((y.double() - exact).abs() <= bound + 1e-30).all()


def a_quantised_weight(n: int, k: int) -> tuple[PackedWeight, Tensor]:
    """Packed, and whole in float64."""
    weight = torch.randint(-127, 128, (n, k), dtype=torch.int8)
    scale = torch.rand(n) + 0.1
    return PackedWeight(weight, scale=scale), weight.double() * scale.double()[:, None]


def test_the_largest_sums_of_a_quantised_product_do_not_overflow(kernels: Kernels) -> None:
    weight = torch.full((16, 1024), 127, dtype=torch.int8)
    x = torch.full((7, 1024), -3e30)
    y = kernels.linear(x, PackedWeight(weight, scale=torch.ones(16)))
    assert close(y, torch.full((7, 16), -3e30 * 127 * 1024, dtype=torch.float64))


def test_a_quantised_product_of_nothing_is_nothing(kernels: Kernels) -> None:
    packed, _ = a_quantised_weight(20, 300)
    assert not kernels.linear(torch.zeros(3, 300), packed).any()
    assert not kernels.linear(torch.full((3, 300), 1e-41), packed).any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 290, 299])
def test_a_quantised_product_does_not_hide_what_is_not_finite(
    kernels: Kernels, value: float, place: int
) -> None:
    packed, _ = a_quantised_weight(20, 300)
    x = torch.randn(9, 300)
    x[4, place] = value
    is_finite = kernels.linear(x, packed).isfinite()
    assert not is_finite[4].any()
    assert is_finite.sum() == 8 * 20


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_comes_back_as_it_went_in(dtype: torch.dtype) -> None:
    for k in (24, 25):
        weight = torch.randn(37, k).to(dtype)
        packed = PackedWeight(weight)
        assert torch.equal(packed.unpacked(), weight)
        assert torch.equal(
            packed.rows(torch.tensor([[36, 0], [15, 16]])), weight[[36, 0, 15, 16]].view(2, 2, k)
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_of_a_product_has_the_same_bits_in_any_company(
    kernels: Kernels, dtype: torch.dtype, threads: int
) -> None:
    whole, _ = a_quantised_weight(200, 300)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for packed in (PackedWeight(torch.randn(200, 300).to(dtype)), whole):
            x = torch.randn(25, 300).to(dtype)
            alone = torch.cat([kernels.linear(row[None], packed) for row in x])
            for rows in ROWS:
                assert torch.equal(kernels.linear(x[:rows], packed), alone[:rows])
    finally:
        torch.set_num_threads(before)


def a_layer(dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int) -> LayerWeights:
    hidden, inner = 48, 40
    return LayerWeights(
        qkv=PackedWeight(torch.randn((heads + 2 * kv_heads) * head_dim, hidden).to(dtype) / 7),
        o=PackedWeight(torch.randn(hidden, heads * head_dim).to(dtype) / 7),
        gate=PackedWeight(torch.randn(inner, hidden).to(dtype) / 7),
        up=PackedWeight(torch.randn(inner, hidden).to(dtype) / 7),
        down=PackedWeight(torch.randn(hidden, inner).to(dtype) / 7),
        input_norm=torch.rand(hidden) + 0.5,
        output_norm=torch.rand(hidden) + 0.5,
        q_norm=None,
        k_norm=None,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        input_eps=1e-5,
        output_eps=1e-6,
        head_eps=0.0,
        scale=0.3,
    )


def exact_outputs(
    layer: LayerWeights, x: Tensor, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor
) -> Tensor:
    group = layer.heads // layer.kv_heads
    x, q, keys, values = x.double(), q.double(), keys.double(), values.double()
    mixed = F.scaled_dot_product_attention(
        q,
        keys.repeat_interleave(group, 1),
        values.repeat_interleave(group, 1),
        attn_mask=mask[:, None],
        scale=layer.scale,
    )
    seqs, _, rows, _ = mixed.shape
    mixed = mixed.transpose(1, 2).reshape(seqs, rows, -1)
    x = x + F.linear(mixed, layer.o.unpacked().double())
    normed = F.rms_norm(x, x.shape[-1:], layer.output_norm.double(), layer.output_eps)
    gate = F.linear(normed, layer.gate.unpacked().double())
    up = F.linear(normed, layer.up.unpacked().double())
    return x + F.linear(F.silu(gate) * up, layer.down.unpacked().double())


def some_masks(seqs: int, rows: int, context: int) -> Tensor:
    """A common beginning, then anything; each row sees itself at least."""
    mask = torch.rand(seqs, rows, context) < 0.6
    mask[:, :, : context // 3] = True
    mask[0, 0, 0] = False  # no common beginning in this one
    mask[:, torch.arange(rows), context - rows + torch.arange(rows)] = True
    return mask


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(4, 4, 8), (6, 2, 16), (3, 1, 64), (2, 1, 72)]
)
@pytest.mark.parametrize(
    ("seqs", "rows", "context"), [(1, 1, 1), (1, 3, 9), (2, 5, 83), (1, 20, 150)]
)
def test_the_second_half_of_a_layer_is_that_of_torch(
    kernels: Kernels,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    head_dim: int,
    seqs: int,
    rows: int,
    context: int,
) -> None:
    layer = a_layer(dtype, heads, kv_heads, head_dim)
    x = torch.randn(seqs, rows, 48).to(dtype)
    q = torch.randn(seqs, heads, rows, head_dim)
    room = torch.randn(2, seqs, kv_heads, context + 7, head_dim).to(dtype)
    keys, values = room[0, :, :, :context], room[1, :, :, :context]
    mask = some_masks(seqs, rows, context)
    mask[0, 0, -rows] = True
    y = kernels.attention_outputs(layer, x, q, keys=keys, values=values, mask=mask)
    assert close(y, exact_outputs(layer, x, q, keys, values, mask))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("seqs", "rows"), [(1, 1), (1, 6), (3, 4)])
def test_a_layer_is_its_two_halves_around_the_cache(
    kernels: Kernels, dtype: torch.dtype, seqs: int, rows: int
) -> None:
    layer, context = a_layer(dtype, 6, 2, 16), 50
    x = torch.randn(seqs, rows, 48).to(dtype)
    cos, sin = (torch.randn(seqs, rows, 16).to(dtype) for _ in range(2))
    mask = some_masks(seqs, rows, context)
    store = torch.randn(2, seqs, 2, context + 9, 16).to(dtype)
    own = slice(context - rows, context)
    q, k, v = kernels.attention_inputs(layer, x, cos, sin)
    keys, values = store.clone()
    keys[:, :, own], values[:, :, own] = k, v
    apart = kernels.attention_outputs(
        layer, x, q, keys=keys[:, :, :context], values=values[:, :, :context], mask=mask
    )
    new_keys, new_values = store.clone()
    room = {"keys": new_keys[:, :, :context], "values": new_values[:, :, :context]}
    assert torch.equal(kernels.layer(layer, x, cos, sin, **room, mask=mask), apart)
    assert torch.equal(new_keys, keys)
    assert torch.equal(new_values, values)


def test_hidden_slots_may_hold_anything(kernels: Kernels) -> None:
    layer = a_layer(torch.float32, 6, 2, 16)
    x, q = torch.randn(1, 3, 48), torch.randn(1, 6, 3, 16)
    room = torch.randn(2, 1, 2, 40, 16)
    mask = some_masks(1, 3, 40)
    hidden = ~mask.any(dim=1)[0]
    hidden[5] = True
    mask[:, :, 5] = False
    before = kernels.attention_outputs(layer, x, q, keys=room[0], values=room[1], mask=mask)
    room[:, :, :, hidden] = float("nan")
    after = kernels.attention_outputs(layer, x, q, keys=room[0], values=room[1], mask=mask)
    assert torch.equal(before, after)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_attends_with_the_same_bits_in_any_company(
    kernels: Kernels, dtype: torch.dtype
) -> None:
    """Also where a guess lies behind others in the cache, which the row does not see."""
    layer = a_layer(dtype, 6, 2, 16)
    x, q = torch.randn(1, 9, 48).to(dtype), torch.randn(1, 6, 9, 16)
    room = torch.randn(2, 1, 2, 80, 16).to(dtype)
    mask = some_masks(1, 9, 80)
    together = kernels.attention_outputs(layer, x, q, keys=room[0], values=room[1], mask=mask)
    for row in range(9):
        seen = mask[0, row].nonzero()[:, 0]
        alone = kernels.attention_outputs(
            layer,
            x[:, [row]],
            q[:, :, [row]].contiguous(),
            keys=room[0][:, :, seen],
            values=room[1][:, :, seen],
            mask=torch.ones(1, 1, len(seen), dtype=torch.bool),
        )
        assert torch.equal(alone[0, 0], together[0, row])


@pytest.mark.parametrize("value", [0.0, -60.0, 60.0, 1e4])
def test_attention_bears_scores_of_any_size(kernels: Kernels, value: float) -> None:
    layer = a_layer(torch.float32, 2, 1, 8)
    x, q = torch.randn(1, 1, 48), torch.full((1, 2, 1, 8), value)
    keys, values = torch.randn(1, 1, 20, 8), torch.randn(1, 1, 20, 8)
    mask = torch.ones(1, 1, 20, dtype=torch.bool)
    y = kernels.attention_outputs(layer, x, q, keys=keys, values=values, mask=mask)
    assert close(y, exact_outputs(layer, x, q, keys, values, mask))
