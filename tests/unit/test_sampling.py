from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from outdraft import sampling
from outdraft.sampling import choose, draw, greedy, keyed_noise, to_probs
from outdraft.settings import GenerationSettings

CPU = torch.device("cpu")


def random_logits(
    rows: int, vocab: int, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3.0 * torch.randn(rows, vocab, generator=generator, dtype=torch.float64).to(dtype)


def expected_probs(logits: Tensor, settings: GenerationSettings) -> Tensor:
    """The same filters as transformers has them."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(settings.temperature)])
    if settings.top_k is not None:
        warpers.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1.0:
        warpers.append(TopPLogitsWarper(settings.top_p))
    if settings.min_p > 0.0:
        warpers.append(MinPLogitsWarper(settings.min_p))
    return warpers(None, logits).softmax(dim=-1)


# --- to_probs -------------------------------------------------------------------------------------

FILTERS: list[dict[str, Any]] = [
    {"temperature": 0.01},
    {"temperature": 0.7},
    {"temperature": 1.0},
    {"temperature": 1.5},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.0, "top_k": 50},
    {"temperature": 1.0, "top_k": 51},
    {"temperature": 1.0, "top_p": 1e-6},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 1.0, "top_p": 0.95},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 0.7, "top_k": 10, "top_p": 0.9},
    {"temperature": 1.5, "top_k": 20, "min_p": 0.1},
    {"temperature": 1.5, "top_p": 0.9, "min_p": 0.1},
    {"temperature": 1.3, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_filters_do_what_those_of_transformers_do(filters: dict[str, Any]) -> None:
    settings = GenerationSettings(**filters)
    logits = random_logits(rows=40, vocab=50)
    torch.testing.assert_close(to_probs(logits, settings), expected_probs(logits, settings))


@given(
    seed=st.integers(0, 10**6),
    temperature=st.floats(0.1, 5.0),
    top_k=st.none() | st.integers(1, 40),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
)
def test_any_mixture_of_filters_agrees_with_transformers(
    seed: int, temperature: float, top_k: int | None, top_p: float, min_p: float
) -> None:
    settings = GenerationSettings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = random_logits(rows=3, vocab=40, seed=seed)
    torch.testing.assert_close(to_probs(logits, settings), expected_probs(logits, settings))


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
def test_top_p_is_right_where_more_tokens_are_needed_than_a_shortlist_has(top_p: float) -> None:
    logits = 0.1 * random_logits(rows=3, vocab=3000)  # nearly flat
    logits[2] *= 100.0  # and one row where a few tokens are enough
    settings = GenerationSettings(temperature=1.0, top_p=top_p)
    probs = to_probs(logits, settings)
    torch.testing.assert_close(probs, expected_probs(logits, settings))
    assert (probs[0] > 0).sum() > 500
    assert (probs[2] > 0).sum() < 200


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_each_row_sums_to_one_and_depends_on_itself_alone(filters: dict[str, Any]) -> None:
    settings = GenerationSettings(**filters)
    logits = random_logits(rows=8, vocab=50)
    together = to_probs(logits, settings)
    alone = torch.cat([to_probs(row[None], settings) for row in logits])
    torch.testing.assert_close(together.sum(dim=-1), torch.ones(8, dtype=torch.float64))
    assert torch.equal(together, alone)


@pytest.mark.parametrize(
    "filters",
    [{"top_k": 2}, {"top_p": 0.6}, {"min_p": 1.0}, {"top_k": 2, "top_p": 0.6, "min_p": 0.9}],
    ids=str,
)
def test_equal_logits_at_the_edge_are_kept_together(filters: dict[str, Any]) -> None:
    settings = GenerationSettings(temperature=1.0, **filters)
    probs = to_probs(torch.tensor([[0.0, 5.0, 5.0, 5.0, 0.0]]), settings)
    torch.testing.assert_close(probs, torch.tensor([[0.0, 1 / 3, 1 / 3, 1 / 3, 0.0]]))


def test_half_precision_is_raised_before_anything_is_computed() -> None:
    settings = GenerationSettings(temperature=0.7, top_p=0.9)
    logits = random_logits(rows=4, vocab=100, dtype=torch.bfloat16)
    probs = to_probs(logits, settings)
    assert probs.dtype == torch.float32
    assert torch.equal(probs, to_probs(logits.float(), settings))


def test_float64_stays_float64() -> None:
    assert to_probs(random_logits(1, 9), GenerationSettings(temperature=1.0)).dtype == torch.float64


def test_a_temperature_near_zero_puts_everything_on_the_likeliest_token() -> None:
    logits = random_logits(rows=5, vocab=30, dtype=torch.float32)
    probs = to_probs(logits, GenerationSettings(temperature=1e-38))
    assert torch.equal(probs, torch.nn.functional.one_hot(greedy(logits), 30).float())


def test_temperature_zero_has_no_distribution() -> None:
    with pytest.raises(ValueError, match="greedy"):
        to_probs(random_logits(1, 9), GenerationSettings(temperature=0.0))


def test_the_logits_are_left_as_they_were() -> None:
    logits = random_logits(rows=4, vocab=50)
    before = logits.clone()
    to_probs(logits, GenerationSettings(temperature=0.5, top_k=3, top_p=0.5, min_p=0.5))
    assert torch.equal(logits, before)


# --- greedy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [64, 128, 192, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_greedy_is_argmax_also_where_it_looks_block_by_block(
    vocab: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(3, 7, vocab, generator=generator).mul(2).round().to(dtype)  # many ties
    logits[0, 0, vocab // 2] = float("nan")
    logits[1, 1] = float("-inf")
    assert torch.equal(greedy(logits), logits.argmax(dim=-1))


@pytest.mark.parametrize("vocab", [3, 64, 5000])
def test_greedy_takes_the_lowest_id_on_ties(vocab: int) -> None:
    logits = torch.zeros(3, vocab)
    logits[1, vocab // 2 :] = 1.0
    logits[2, -1] = 1.0
    assert greedy(logits).tolist() == [0, vocab // 2, vocab - 1]


def test_a_draw_takes_the_lowest_id_on_ties() -> None:
    assert draw(torch.full((1, 8), 0.125), torch.ones(1, 8)).tolist() == [0]


# --- keyed noise ----------------------------------------------------------------------------------

MASK = (1 << 64) - 1


def splitmix64(state: int, count: int) -> list[int]:
    """Outputs of the generator as its authors wrote it (Steele, Lea and Flood 2014)."""
    outputs = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        bits = state
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
        outputs.append(bits ^ (bits >> 31))
    return outputs


def reference_noise(seed: int, position: int, vocab: int) -> list[float]:
    stream = splitmix64(splitmix64(splitmix64(seed, 1)[0] ^ position, 1)[0], vocab)
    return [-math.log(((bits >> 11) + 0.5) / 2**53) for bits in stream]


def test_the_reference_is_the_published_generator() -> None:
    # first outputs for seed 1234567, as given with the public test vectors
    assert splitmix64(1234567, 3) == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**63 - 1])
@pytest.mark.parametrize("position", [0, 1, 4095, 2**20])
def test_noise_is_splitmix64_in_exponential_form(seed: int, position: int) -> None:
    noise = keyed_noise(seed, [position], 40, CPU)
    expected = torch.tensor([reference_noise(seed, position, 40)])
    torch.testing.assert_close(noise, expected, rtol=1e-6, atol=0.0)


def test_the_same_key_gives_the_same_noise_whatever_is_asked_with_it() -> None:
    together = keyed_noise(5, [3, 9, 4, 9], 50, CPU)
    for row, position in zip(together, [3, 9, 4, 9], strict=True):
        assert torch.equal(row, keyed_noise(5, [position], 50, CPU)[0])


def test_the_noise_of_a_token_does_not_depend_on_the_vocabulary_behind_it() -> None:
    assert torch.equal(keyed_noise(5, [3], 50, CPU), keyed_noise(5, [3], 80, CPU)[:, :50])


def test_noise_leaves_the_process_wide_generator_alone() -> None:
    before = torch.get_rng_state()
    keyed_noise(5, [3], 50, CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_no_two_keys_share_noise() -> None:
    keys = [(seed, position) for seed in range(30) for position in range(30)]
    noise = torch.cat([keyed_noise(seed, [position], 4, CPU) for seed, position in keys])
    assert len(noise.flatten().unique()) > 0.999 * noise.numel()


@pytest.mark.parametrize("seed", [0, 7, 2**62])
def test_noise_has_the_moments_of_an_exponential(seed: int) -> None:
    noise = keyed_noise(seed, range(200), 500, CPU).double()
    assert bool((noise > 0).all())
    for power in (1, 2, 3):  # the n-th moment is n!, its spread sqrt((2n)! - n!²)
        mean = math.factorial(power)
        spread = math.sqrt(math.factorial(2 * power) - mean**2) / math.sqrt(noise.numel())
        assert abs(float((noise**power).mean()) - mean) < 4 * spread


@pytest.mark.parametrize("bits", [0, 1 << 63, -1])
def test_noise_is_positive_and_finite_for_every_pattern_of_bits(
    monkeypatch: pytest.MonkeyPatch, bits: int
) -> None:
    monkeypatch.setattr(
        sampling, "_mix64_", lambda counters: counters.fill_(sampling._signed(bits))
    )
    noise = keyed_noise(0, [0], 3, CPU)
    assert bool((noise > 0).all())
    assert bool(noise.isfinite().all())


def test_noise_is_uncorrelated_between_neighbours() -> None:
    noise = keyed_noise(3, range(200), 500, CPU).double() - 1.0
    limit = 4.5 / math.sqrt(noise.numel())
    assert abs(float((noise[1:] * noise[:-1]).mean())) < limit  # positions
    assert abs(float((noise[:, 1:] * noise[:, :-1]).mean())) < limit  # tokens
    other = keyed_noise(4, range(200), 500, CPU).double() - 1.0
    assert abs(float((noise * other).mean())) < limit  # seeds


# --- choosing tokens ------------------------------------------------------------------------------


def test_a_greedy_choice_needs_no_noise() -> None:
    logits = random_logits(rows=3, vocab=20)
    chosen = choose(logits, [5, 6, 7], GenerationSettings(), seed=1)
    assert torch.equal(chosen, logits.argmax(dim=-1))


@pytest.mark.parametrize("positions", [[5], [5, 6, 7], [7, 5, 6, 5, 7], [9, 9, 9]])
def test_each_row_draws_with_the_noise_of_its_own_position(positions: list[int]) -> None:
    settings = GenerationSettings(temperature=1.5)
    logits = random_logits(rows=len(positions), vocab=20)
    probs = to_probs(logits, settings)
    alone = [
        int(draw(probs[row : row + 1], keyed_noise(3, [position], 20, CPU)))
        for row, position in enumerate(positions)
    ]
    assert choose(logits, positions, settings, seed=3).tolist() == alone


# --- the draw -------------------------------------------------------------------------------------

PROBS = to_probs(
    random_logits(rows=1, vocab=12, seed=4), GenerationSettings(temperature=1.4, top_k=9)
)[0]
NUM_DRAWS = 20_000
# A fair draw exceeds this once in 100 000 times (8 degrees of freedom).
LIMIT = 37.3


def chi_square(drawn: Tensor) -> float:
    """Pearson's statistic of the draws against the exact probabilities."""
    counts = torch.bincount(drawn, minlength=len(PROBS)).double()
    expected = PROBS.double() * len(drawn)
    possible = expected > 0
    if bool((counts[~possible] > 0).any()):
        return math.inf
    return float(((counts - expected)[possible] ** 2 / expected[possible]).sum())


def draw_with(noise: Tensor) -> Tensor:
    return draw(PROBS.expand(len(noise), -1), noise)


def test_the_limit_belongs_to_the_probabilities() -> None:
    assert int((PROBS > 0).sum()) == 9
    assert float(PROBS[PROBS > 0].min()) * NUM_DRAWS > 20  # enough of the rarest to count


@pytest.mark.parametrize("seed", range(5))
def test_draws_over_positions_follow_the_probabilities(seed: int) -> None:
    assert chi_square(draw_with(keyed_noise(seed, range(NUM_DRAWS), 12, CPU))) < LIMIT


@pytest.mark.parametrize("position", [1, 77, 4095])
def test_draws_over_seeds_follow_the_probabilities(position: int) -> None:
    noise = torch.cat([keyed_noise(seed, [position], 12, CPU) for seed in range(5000)])
    assert chi_square(draw_with(noise)) < LIMIT


def test_pairs_of_draws_are_independent() -> None:
    drawn = draw_with(keyed_noise(11, range(NUM_DRAWS), 12, CPU))
    pairs = torch.stack([drawn[:-1], drawn[1:]])
    expected = PROBS.double().outer(PROBS.double()) * pairs.shape[1]
    counts = torch.zeros_like(expected)
    counts.index_put_((pairs[0], pairs[1]), torch.ones(pairs.shape[1]).double(), accumulate=True)
    large = expected > 5
    statistic = float(((counts - expected)[large] ** 2 / expected[large]).sum())
    freedom = int(large.sum()) - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


def test_the_test_of_the_draw_fails_for_noise_that_is_not_exponential() -> None:
    uniform = 1.0 - (-keyed_noise(0, range(NUM_DRAWS), 12, CPU)).exp()
    assert chi_square(draw_with(uniform)) > 10 * LIMIT


def test_the_test_of_the_draw_fails_for_noise_shared_by_all_tokens() -> None:
    shared = keyed_noise(0, range(NUM_DRAWS), 1, CPU).expand(-1, 12)
    assert chi_square(draw_with(shared)) > 10 * LIMIT


def test_the_test_of_the_draw_fails_for_noise_shared_by_two_tokens() -> None:
    noise = keyed_noise(0, range(NUM_DRAWS), 12, CPU)
    first, second = PROBS.argsort(descending=True)[:2].tolist()
    noise[:, second] = noise[:, first]
    assert chi_square(draw_with(noise)) > 10 * LIMIT


def test_the_test_of_the_draw_fails_for_slightly_other_probabilities() -> None:
    noise = keyed_noise(0, range(NUM_DRAWS), 12, CPU)
    warmer = to_probs(
        random_logits(rows=1, vocab=12, seed=4), GenerationSettings(temperature=1.5, top_k=9)
    )
    assert chi_square(draw(warmer.expand(NUM_DRAWS, -1), noise)) > LIMIT
