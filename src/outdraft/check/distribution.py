"""Do drawn tokens follow the target's probabilities? A chi-square test on the user's own model.

Equality with plain decoding says nothing of the draw that both share. Here one short prefix is
continued with many seeds, plainly and drafted, and the tokens are counted:

    prefix ──▶ token 1 ──▶ token 2 ──▶ token 3
               the prompt's    a step's: accepted guesses and corrections, then the bonus
               own pass        (of a plain run: two steps of one row)

Each token is held against the exact probabilities after the very tokens before it, which an
ordinary pass over them gives in float64: prefix and tokens from an empty cache, alone. Texts that
begin alike share a *context*. In each, Pearson's statistic is summed over tokens expected at least
five times, all others sharing one cell; the statistics of a position's contexts, and their degrees
of freedom, add up. Contexts with too few texts for two cells are left out.

The test is of the draw (noise, race, cut-offs, verification), and takes `to_probs` for granted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from outdraft.commit import append_tokens
from outdraft.errors import ModelError, SettingsError
from outdraft.generate import Outdraft
from outdraft.interfaces import Drafter, KVCache, TargetModel
from outdraft.sampling import choose, to_probs
from outdraft.sequence import Sequence
from outdraft.settings import GenerationSettings
from outdraft.step import step
from outdraft.text.prompts import Prompt, to_prompt_ids
from outdraft.types import Commit, Rows

PREFIX = "I like"
"""Short, since every text reads it; many tokens may follow, and some of them often."""
FREQUENT_DRAFTER = "recycling"
"""Guesses from what the target said for earlier seeds, so that nearly every step drafts."""
NUM_DRAWS = 1000
ALARM = 0.001
"""How often all tests of one call together may fail by chance; each gets an equal share of it."""

_NUM_TOKENS = 3
_MIN_EXPECTED = 5.0
_MAX_BATCH = 32
_MAX_NODES = 3
# Seeds differ in one of these fields each, so noise that ignores a part of the seed repeats itself.
_SEED_SHIFTS = (0, 13, 26, 39, 52)
_MAX_PER_SHIFT = (1 << 11) - 1
MAX_DRAWS = len(_SEED_SHIFTS) * _MAX_PER_SHIFT

Context = tuple[int, ...]
"""The new tokens before a draw."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How well the tokens that one run drew at one position follow their probabilities.

    Args:
        position: which new token, from 0.
        draws: tokens drawn there.
        accepted: of them, those that were accepted guesses.
        tested: of them, those in contexts with enough texts.
        contexts: that were tested.
        freedom: degrees of freedom of the statistic.
        p_value: how often a fair draw has a statistic at least as large; `None` without a test.
    """

    drafter: str
    temperature: float
    position: int
    draws: int
    accepted: int
    tested: int
    contexts: int
    statistic: float
    freedom: int
    p_value: float | None


@dataclass(frozen=True, slots=True)
class Distribution:
    """All tests of one call."""

    fits: tuple[Fit, ...]

    @property
    def num_tests(self) -> int:
        return sum(fit.p_value is not None for fit in self.fits)

    @property
    def threshold(self) -> float:
        """A p-value below it is a fault (Bonferroni's share of `ALARM`)."""
        return ALARM / max(self.num_tests, 1)

    def is_fault(self, fit: Fit) -> bool:
        return fit.p_value is not None and not fit.p_value >= self.threshold

    @property
    def faults(self) -> int:
        return sum(self.is_fault(fit) for fit in self.fits)


def check_distribution(
    llm: Outdraft,
    prefix: Prompt = PREFIX,
    *,
    drafters: Seq[str] = (FREQUENT_DRAFTER,),
    temperatures: Seq[float] = (1.0,),
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
    on_run: Callable[[int], None] = lambda _: None,
) -> Distribution:
    """Draws the tokens after a prefix with many seeds, plainly and drafted, and tests them.

    Args:
        prefix: read as it stands; the shorter, the faster.
        seed: changed in some bits for each draw, so the same call gives the same figures.
        on_run: told, after each piece of work, how many draws it was.

    Raises:
        SettingsError: a temperature is 0, or the number of draws or the prefix cannot be used.
        DrafterError: a drafter cannot be made for this model.
        ModelError: the target's logits are not numbers.
    """
    all_settings = distribution_settings(temperatures, num_draws)
    names = list(dict.fromkeys(["none", *drafters]))
    all_drafters = [llm.drafter(name) for name in names]
    prefix_ids = to_prompt_ids(llm.tokenizer, prefix)
    if len(prefix_ids) + _NUM_TOKENS > llm.target.max_context:
        raise SettingsError(
            f"the prefix has {len(prefix_ids)} tokens and the target reads "
            f"{llm.target.max_context}; shorten it"
        )
    fits: list[Fit] = []
    for settings in all_settings:
        exact = _Exact(llm.target, prefix_ids, settings, least=_MIN_EXPECTED / num_draws)
        for name, drafter in zip(names, all_drafters, strict=True):
            written: list[_Written] = []
            for start in range(0, num_draws, _MAX_BATCH):
                seeds = _seeds(seed, num_draws)[start : start + _MAX_BATCH]
                sequences = _sequences(llm.target, prefix_ids, settings, seeds)
                written += _write(llm.target, drafter, sequences)
                on_run(len(seeds))
            fits += [
                _fit(name, settings.temperature, position, written, exact)
                for position in range(_NUM_TOKENS)
            ]
    return Distribution(tuple(fits))


def distribution_settings(temperatures: Seq[float], num_draws: int) -> list[GenerationSettings]:
    """The settings of the draws, one for each temperature.

    Raises:
        SettingsError: a temperature leaves nothing to be drawn, or there are too few or many draws.
    """
    if not 1 <= num_draws <= MAX_DRAWS:
        raise SettingsError(f"draws={num_draws}: takes 1 to {MAX_DRAWS}")
    if 0.0 in temperatures:
        raise SettingsError("temperature=0.0: nothing is drawn at 0; give one above it")
    return [
        GenerationSettings(max_new_tokens=_NUM_TOKENS, temperature=temperature, ignore_eos=True)
        for temperature in dict.fromkeys(temperatures)
    ]


# --- texts ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Written:
    """The new tokens of one seed, and which of them were accepted guesses."""

    token_ids: tuple[int, ...]
    is_accepted: tuple[bool, ...]


def _seeds(seed: int, num_draws: int) -> list[int]:
    num_shifts = len(_SEED_SHIFTS)
    return [
        seed ^ ((number // num_shifts + 1) << _SEED_SHIFTS[number % num_shifts])
        for number in range(num_draws)
    ]


def _sequences(
    target: TargetModel, prefix_ids: Seq[int], settings: GenerationSettings, seeds: Seq[int]
) -> list[Sequence]:
    return [
        Sequence(
            request_id,
            prefix_ids,
            settings,
            seed=seed,
            eos_ids=frozenset(),
            max_context=target.max_context,
            decode=lambda _: "",
        )
        for request_id, seed in enumerate(seeds)
    ]


@torch.inference_mode()
def _write(target: TargetModel, drafter: Drafter, batch: list[Sequence]) -> list[_Written]:
    """Reads the prefix for all seeds in one pass, then steps until one of them is done.

    Which texts are cut there depends on the tokens before the cut alone, so those that were
    written are fair draws.
    """
    cache = target.new_cache()
    for _ in batch:
        cache.add()
    logits = _read(target, cache, batch[0].ids, len(batch))
    commits: list[Commit] = []
    try:
        for sequence, row in zip(batch, logits, strict=True):
            drawn = choose(row[None], [sequence.prompt_len], sequence.settings, sequence.seed)
            commits.append(append_tokens(sequence, [int(drawn)], ("plain",)))
            drafter.observe(sequence, commits[-1])
        while all(sequence.finish_reason is None for sequence in batch):
            commits += step(batch, drafter, target, cache, _MAX_NODES)
    finally:
        for sequence in batch:
            drafter.finish(sequence)
    origins: dict[int, list[bool]] = defaultdict(list)
    for commit in commits:
        origins[commit.request_id] += [origin == "drafted" for origin in commit.origins]
    return [
        _Written(tuple(sequence.new_ids), tuple(origins[sequence.request_id])) for sequence in batch
    ]


def _read(target: TargetModel, cache: KVCache, token_ids: Seq[int], num_seqs: int) -> Tensor:
    """Reads the same ids for all sequences of an empty cache; the last rows' logits."""
    one = Rows.chain(token_ids, 0, target.device)
    rows = Rows(
        token_ids=one.token_ids.repeat(num_seqs, 1),
        position_ids=one.position_ids.repeat(num_seqs, 1),
        ancestors=one.ancestors.repeat(num_seqs, 1, 1),
        row_lens=one.row_lens * num_seqs,
    )
    logits = target.forward(rows, cache, logits_to_keep=1)
    for seq_idx in range(num_seqs):
        cache.commit(seq_idx, range(len(token_ids)))
    return logits[:, -1]


# --- tests ----------------------------------------------------------------------------------------


class _Exact:
    """The exact probabilities after a context; remembers those it has read.

    Args:
        least: tokens that are less likely are left out.
    """

    def __init__(
        self,
        target: TargetModel,
        prefix_ids: Seq[int],
        settings: GenerationSettings,
        *,
        least: float,
    ) -> None:
        self._target = target
        self._prefix_ids = list(prefix_ids)
        self._settings = settings
        self._least = least
        self._known: dict[Context, dict[int, float]] = {}

    @torch.inference_mode()
    def __call__(self, context: Context) -> dict[int, float]:
        if context not in self._known:
            cache = self._target.new_cache()
            cache.add()
            ids = [*self._prefix_ids, *context]
            probs = to_probs(_read(self._target, cache, ids, 1).double(), self._settings)[0]
            if bool(probs.isnan().any()):
                raise ModelError(f"the target's logits after the tokens {ids} are not numbers")
            likely = (probs >= self._least).nonzero()[:, 0]
            self._known[context] = dict(zip(likely.tolist(), probs[likely].tolist(), strict=True))
        return self._known[context]


def _fit(
    drafter: str,
    temperature: float,
    position: int,
    written: Seq[_Written],
    exact: Callable[[Context], Mapping[int, float]],
) -> Fit:
    counts: dict[Context, Counter[int]] = defaultdict(Counter)
    accepted = 0
    for text in written:
        if len(text.token_ids) > position:
            counts[text.token_ids[:position]][text.token_ids[position]] += 1
            accepted += text.is_accepted[position]
    statistic, freedom, tested, contexts = 0.0, 0, 0, 0
    for context, drawn in counts.items():
        if drawn.total() < 2 * _MIN_EXPECTED:
            continue
        part, part_freedom = pearson(drawn, exact(context))
        if part_freedom > 0:
            statistic += part
            freedom += part_freedom
            tested += drawn.total()
            contexts += 1
    return Fit(
        drafter=drafter,
        temperature=temperature,
        position=position,
        draws=sum(drawn.total() for drawn in counts.values()),
        accepted=accepted,
        tested=tested,
        contexts=contexts,
        statistic=statistic,
        freedom=freedom,
        p_value=chi_square_tail(statistic, freedom) if freedom else None,
    )


def pearson(counts: Counter[int], probs: Mapping[int, float]) -> tuple[float, int]:
    """Pearson's statistic of counts against probabilities, and its degrees of freedom.

    Args:
        probs: at least of the tokens that are expected five times; the others share one cell, or
            that of the rarest of these where they are too rare even together.
    """
    total = counts.total()
    expected = {token_id: prob * total for token_id, prob in probs.items()}
    cells = [
        (float(counts[token_id]), expected[token_id])
        for token_id in sorted(expected, key=lambda token_id: -expected[token_id])
        if expected[token_id] >= _MIN_EXPECTED
    ]
    others = (total - sum(count for count, _ in cells), total - sum(want for _, want in cells))
    if cells and others[1] < _MIN_EXPECTED:
        count, want = cells.pop()
        others = (others[0] + count, others[1] + want)
    cells.append(others)
    return sum((count - want) ** 2 / want for count, want in cells), len(cells) - 1


def chi_square_tail(statistic: float, freedom: int) -> float:
    """The probability that a chi-square variable is at least as large."""
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
