"""Tie or fault: a teacher-forced pass over the place where two runs part.

Both runs have read the same tokens up to there. These are given to the target once more, from an
empty cache, without drafts, trees or rewinds, and every token gets its *score*:

    greedy     the logit
    sampled    log probs - log noise, with the noise of the request's seed at that position

The highest score is the token of the target. The two tokens in question are a **tie** if both lie
within the tolerance of the highest score, and a **fault** if one does not.

The tolerance is measured, on the very text: its last rows are read in one pass (the reference),
again in passes as wide as a drafted step, and again one by one, as plain decoding reads them. How
far these readings move the gaps between a row's leading tokens is what rounding does here, in this
number format, on this machine. The tolerance is the furthest of these moves (twenty-eight gaps in
each of up to thirty-two rows, so the furthest is far out), and never less than one step of the
number format for each of the two scores. A formula from the format alone would have to know how a
model of this depth passes its errors on.

Measuring alone would also excuse a model that really reads rows differently when they come
together, so there is a most that rounding may explain. Beyond it the verdict is a fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from outdraft.interfaces import TargetModel
from outdraft.sampling import keyed_noise, to_probs
from outdraft.settings import EngineSettings, GenerationSettings
from outdraft.types import Rows

# Rows read one by one: a few seconds on a slow machine, and enough for a steady measurement.
_NUM_REREAD = 32
# The tokens of a row between which a decision may fall.
_NUM_LEADING = 8
# The most that rounding may move a gap, as a share of the standard deviation of the logits; what
# the self-test at loading accepts. In float64, normalisations are still computed in float32.
_MOST_MOVED = {torch.float64: 2e-3, torch.float32: 2e-3, torch.float16: 0.1, torch.bfloat16: 0.5}


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the teacher-forced pass says of two tokens.

    Args:
        scores: of the plain run's and the drafted run's token.
        gap: between the two.
        tolerance: what rounding explains.
        fault: why rounding does not explain the difference; `None` for a tie.
    """

    scores: tuple[float, float]
    gap: float
    tolerance: float
    fault: str | None


class Judge:
    """Judges the differences of one target; remembers what it has read.

    Args:
        settings: those of the runs, for the widths of their passes.
    """

    def __init__(self, target: TargetModel, settings: EngineSettings) -> None:
        self._target = target
        self._chunk = settings.prompt_chunk
        self._width = settings.max_draft_nodes + 1
        self._readings: dict[tuple[int, ...], _Reading] = {}

    def judge(
        self, ids: Seq[int], token_ids: tuple[int, int], settings: GenerationSettings, seed: int
    ) -> Judgement:
        """Judges the two tokens that a plain and a drafted run chose after the same `ids`."""
        reading = self._readings.get(tuple(ids))
        if reading is None:
            reading = self._readings[tuple(ids)] = self._read(ids)
        scores = _scores(reading.logits, settings, seed, position=len(ids))
        scale = 1.0 if settings.is_greedy else 1.0 / settings.temperature
        plain, drafted = (float(scores[token_id]) for token_id in token_ids)
        tolerance = scale * max(reading.moved, 2.0 * reading.step)
        behind = [float(scores.max()) - score for score in (plain, drafted)]
        return Judgement(
            scores=(plain, drafted),
            gap=abs(plain - drafted),
            tolerance=tolerance,
            fault=reading.fault or _fault(behind, tolerance),
        )

    def _read(self, ids: Seq[int]) -> _Reading:
        count = min(_NUM_REREAD, len(ids))
        first = len(ids) - count
        together = self._logits(ids, 0, self._chunk, count)
        leading = together.topk(min(_NUM_LEADING, together.shape[-1])).indices
        moved = [
            (self._logits(ids, first, width, count).double() - together.double()).gather(1, leading)
            for width in (self._width, 1)
        ]
        spread = torch.stack([moves.amax(1) - moves.amin(1) for moves in moved])
        return _Reading.of(together, float(spread.max()))

    @torch.inference_mode()
    def _logits(self, ids: Seq[int], first: int, width: int, count: int) -> Tensor:
        """Logits `[count, vocab]` of the last rows; rows from `first` on come `width` a pass."""
        cache = self._target.new_cache()
        seq_idx = cache.add()
        logits = []
        for start, end in pairwise(_cuts(len(ids), first, width, self._chunk)):
            rows = Rows.chain(ids[start:end], start, self._target.device)
            num_wanted = end - max(start, len(ids) - count)
            judged = self._target.forward(
                rows, cache, first_seq=seq_idx, logits_to_keep=max(num_wanted, 1)
            )
            cache.commit(seq_idx, range(end - start))
            if num_wanted > 0:
                logits.append(judged[0])
        return torch.cat(logits)


@dataclass(frozen=True, slots=True)
class _Reading:
    """What was read of one text.

    Args:
        logits: of its last row, `[vocab]`.
        moved: how far the gaps between leading tokens moved between readings.
        step: of the number format at the highest logit.
        fault: what makes these logits useless as a reference.
    """

    logits: Tensor
    moved: float
    step: float
    fault: str | None

    @classmethod
    def of(cls, logits: Tensor, moved: float) -> _Reading:
        last = logits[-1].clone()  # a view would keep all rows in memory
        finite = last[last.isfinite()].double()
        most = _MOST_MOVED[logits.dtype] * float(finite.std()) if len(finite) > 1 else 0.0
        fault = None
        if bool(logits.isnan().any()):
            fault = "the target's logits are not numbers (nan)"
        elif not moved <= most:  # also true of nan, from the other readings
            fault = (
                f"reading rows together moves the target's logits by {moved:.3g} against each "
                f"other, and rounding explains {most:.3g} at most"
            )
        _, exponent = math.frexp(max(1.0, abs(float(last.max()))))
        step = math.ldexp(torch.finfo(logits.dtype).eps, exponent - 1)
        return cls(last, moved, step, fault)


def _cuts(length: int, first: int, width: int, chunk: int) -> Iterator[int]:
    """Where passes begin and end: in chunks as for a prompt, from `first` on every `width` rows."""
    yield from range(0, first, chunk)
    yield from range(first, length, width)
    yield length


def _scores(logits: Tensor, settings: GenerationSettings, seed: int, position: int) -> Tensor:
    if settings.is_greedy:
        return logits.double()
    probs = to_probs(logits[None], settings)[0]
    noise = keyed_noise(seed, [position], len(probs), probs.device)[0]
    return probs.double().log() - noise.double().log()


def _fault(behind: Seq[float], tolerance: float) -> str | None:
    for run, distance in zip(("plain", "drafted"), behind, strict=True):
        if not distance <= tolerance:  # also true of nan
            return f"the {run} run's token lies {distance:.3g} behind the best one"
    return None
