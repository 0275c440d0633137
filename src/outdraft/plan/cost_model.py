"""What a target pass costs on this machine, by its size: measured at first, then kept up to date.

    seconds = pace × (base[rows] + per_position × cached positions + per_pair × rows × context)

    base     ▲                /     piecewise linear between the row counts that were measured,
             │       ●───────●      never falling, whatever real steps teach; behind the last
             │ ●────/               one it goes on as steeply as it did
             └─────────────────▶
               1    8       16  rows of the whole batch, padding included

The pace is one factor for all sizes. A step of any size therefore says how fast the machine is, and
the cost of a plain step stays fair although it is seldom run. What the pace does not explain moves
the base of the row count that was run, slowly.

The context is that of the longest sequence, times the sequences: caches are padded, so a pass reads
that many positions of keys and values whatever the others' lengths. No clock is read here.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence as Seq
from itertools import accumulate
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from outdraft.errors import SettingsError
from outdraft.plan.pace import Pace, clip

# A row count's base follows the median of its last so many steps, which one odd step does not
# change: by 1/4 of what that lies off when the count was hardly run yet, later by less and less
# down to 1/32, and never by more than the clipped part of it.
_WINDOW = 3
_FIRST_STEPS = 4
_MAX_STEPS = 32
_MAX_CORRECTION = 0.2
# Of a pass, the part that cannot be due to its context however the measurements scatter.
_MIN_BASE = 0.05
# Another term for the context has to explain at least so much of what is left over.
_BETTER = 0.99


class PassSize(NamedTuple):
    """How much a target pass reads.

    Args:
        num_rows: of each sequence, padding included.
        context: cached positions of the longest sequence.
    """

    num_seqs: int
    num_rows: int
    context: int

    @property
    def total_rows(self) -> int:
        return self.num_seqs * self.num_rows

    @property
    def positions(self) -> int:
        """Cached positions whose keys and values are read."""
        return self.num_seqs * self.context

    @property
    def pairs(self) -> int:
        """Rows times the cached positions that each of them attends to."""
        return self.total_rows * self.context


class CostModel:
    """The cost of a target pass.

    It never falls when rows or context are added.

    Args:
        rows: of the whole batch, rising: the row counts with a base of their own.
        base: seconds of a pass of that many rows over no context; never falling.
        per_position: seconds for each cached position that is read.
        per_pair: seconds for each pair of a row and a cached position.

    Raises:
        SettingsError: the numbers are not as described.
    """

    def __init__(
        self,
        rows: Seq[int],
        base: Seq[float],
        *,
        per_position: float = 0.0,
        per_pair: float = 0.0,
    ) -> None:
        self._rows = list(rows)
        self._base = list(base)
        self._per_position = per_position
        self._per_pair = per_pair
        self._unexplained = [deque[float](maxlen=_WINDOW) for _ in self._rows]
        self._num_steps = [0] * len(self._rows)
        self._pace = Pace()
        self._check()

    @classmethod
    def fit(cls, points: Seq[tuple[PassSize, float]]) -> CostModel:
        """The model that goes best with measured passes: their sizes and seconds.

        Repeated measurements of one size count as their median. Terms for the context need at
        least two contexts at one row count; without them passes are taken not to depend on it.

        Raises:
            SettingsError: nothing was measured, or seconds are not above 0.
        """
        if not points or not all(size.total_rows > 0 and _is_time(s) for size, s in points):
            raise SettingsError(
                f"the cost of a pass cannot be fitted to {list(points)[:3]}; measure passes of at "
                "least one row, in seconds above 0"
            )
        by_size: dict[PassSize, list[float]] = {}
        for size, seconds in points:
            by_size.setdefault(size, []).append(seconds)
        by_rows: dict[int, list[tuple[PassSize, float]]] = {}
        for size, repeats in by_size.items():
            by_rows.setdefault(size.total_rows, []).append((size, median(repeats)))
        per_position, per_pair = _fit_context(list(by_rows.values()))
        rows = sorted(by_rows)
        base = [
            median(
                max(_MIN_BASE * s, s - per_position * size.positions - per_pair * size.pairs)
                for size, s in by_rows[count]
            )
            for count in rows
        ]
        return cls(rows, _never_falling(base), per_position=per_position, per_pair=per_pair)

    @property
    def pace(self) -> float:
        """How many times slower than when it was measured the machine is now."""
        return self._pace.factor

    def seconds(self, size: PassSize) -> float:
        """What such a pass will take now."""
        return self._pace.factor * self._expected(size)

    def observe(self, size: PassSize, seconds: float) -> None:
        """Takes in what a pass took; one of no measurable time tells nothing.

        Hand in passes of all kinds, and measure them alike.
        """
        if not _is_time(seconds):
            return
        unexplained = self._pace.observe(seconds / self._expected(size))
        self._correct(size.total_rows, unexplained)

    def rebase(self, size: PassSize, seconds: float) -> None:
        """Takes the cost of one size as it was just measured, and leaves the pace to the others.

        Where passes of a single size are run, the pace explains whatever they take; this tells
        apart a slower machine from rows that became dearer.
        """
        if not _is_time(seconds):
            return
        rows, before = self._rows, self._base_of(size.total_rows)
        context = self._expected(size) - before
        ratio = max(_MIN_BASE, (seconds / self._pace.factor - context) / before)
        left = max(0, bisect_right(rows, size.total_rows) - 1)
        is_between = rows[left] < size.total_rows < rows[-1]
        places = (left, left + 1) if is_between else (left,)
        for place in places:
            self._base[place] *= ratio
            self._unexplained[place].clear()
        for place in places:
            self._keep_rising(place)

    def to_json(self) -> dict[str, Any]:
        """What a later run starts from. The pace is left out: it is a matter of the day."""
        return {
            "rows": self._rows,
            "base": self._base,
            "per_position": self._per_position,
            "per_pair": self._per_pair,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> CostModel:
        """The reverse.

        Raises:
            SettingsError: that was not written by `to_json`.
        """
        try:
            return cls(
                [int(count) for count in values["rows"]],
                [float(seconds) for seconds in values["base"]],
                per_position=float(values["per_position"]),
                per_pair=float(values["per_pair"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError(
                f"these are no costs of a pass ({error!r}); measure them anew"
            ) from error

    def _check(self) -> None:
        rows, base = self._rows, self._base
        is_rising = all(a < b for a, b in zip([0, *rows], rows, strict=False))
        is_base = all(map(_is_time, base)) and base == sorted(base)
        rates = (self._per_position, self._per_pair)
        are_rates = all(0.0 <= rate < math.inf for rate in rates)
        if not rows or len(rows) != len(base) or not (is_rising and is_base and are_rates):
            raise SettingsError(
                f"rows {rows} with base seconds {base}, and {rates} for the context; costs need "
                "rising rows, and as many seconds, above 0 and never falling"
            )

    def _expected(self, size: PassSize) -> float:
        """Seconds at a pace of 1."""
        base = self._base_of(size.total_rows)
        return base + self._per_position * size.positions + self._per_pair * size.pairs

    def _base_of(self, total_rows: int) -> float:
        rows, base = self._rows, self._base
        if total_rows <= rows[0]:
            return base[0]
        if total_rows >= rows[-1]:
            return base[-1] + self._last_slope() * (total_rows - rows[-1])
        left, weight = self._place(total_rows)
        return base[left] * (1.0 - weight) + base[left + 1] * weight

    def _last_slope(self) -> float:
        """Seconds per row behind the last row count: as steep as the end, or as the whole is."""
        rows, base = self._rows, self._base
        if len(rows) == 1:
            return base[0] / rows[0]
        whole = (base[-1] - base[0]) / (rows[-1] - rows[0])
        return max(whole, (base[-1] - base[-2]) / (rows[-1] - rows[-2]))

    def _place(self, total_rows: int) -> tuple[int, float]:
        """The row count to the left, and how much the one to its right has to say."""
        rows = self._rows
        left = bisect_right(rows, total_rows) - 1
        return left, (total_rows - rows[left]) / (rows[left + 1] - rows[left])

    def _correct(self, total_rows: int, unexplained: float) -> None:
        """Moves the bases that a pass's costs were taken from, by how much each had to say."""
        rows = self._rows
        if total_rows <= rows[0]:
            self._move(0, unexplained)
        elif total_rows >= rows[-1]:
            self._move(len(rows) - 1, unexplained)
        else:
            left, weight = self._place(total_rows)
            self._move(left, unexplained, 1.0 - weight)
            self._move(left + 1, unexplained, weight)

    def _move(self, place: int, unexplained: float, weight: float = 1.0) -> None:
        """Moves one base; where others would fall, they give way to what was just measured."""
        recent = self._unexplained[place]
        if weight > 0.0:
            recent.append(unexplained)
        if weight == 0.0 or len(recent) < _WINDOW:
            return
        self._num_steps[place] = min(_MAX_STEPS, self._num_steps[place] + 1)
        num_steps = max(_FIRST_STEPS, self._num_steps[place])
        usual = clip(sorted(recent)[_WINDOW // 2], _MAX_CORRECTION)
        self._base[place] *= math.exp(weight * usual / num_steps)
        self._keep_rising(place)

    def _keep_rising(self, place: int) -> None:
        """Has other bases give way to one that was moved."""
        base = self._base
        for other in range(place):
            base[other] = min(base[other], base[place])
        for other in range(place + 1, len(base)):
            base[other] = max(base[other], base[place])


def _is_time(seconds: float) -> bool:
    return 0.0 < seconds < math.inf


def _never_falling(values: Seq[float]) -> list[float]:
    """The nearest such sequence: what falls is replaced by its mean (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []  # mean, size
    for value in values:
        mean, size = value, 1
        while pools and pools[-1][0] > mean:
            other, other_size = pools.pop()
            mean = (mean * size + other * other_size) / (size + other_size)
            size += other_size
        pools.append((mean, size))
    pooled = [mean for mean, size in pools for _ in range(size)]
    return list(accumulate(pooled, max))  # means of equal numbers may differ in the last bit


def _fit_context(groups: Seq[Seq[tuple[PassSize, float]]]) -> tuple[float, float]:
    """Seconds per position and per pair: least squares among passes of equal rows, none below 0."""
    features, seconds = [], []
    for group in groups:
        terms = np.array([(size.positions, size.pairs) for size, _ in group], dtype=float)
        times = np.array([time for _, time in group])
        features.append(terms - terms.mean(axis=0))
        seconds.append(times - times.mean())
    matrix, target = np.concatenate(features), np.concatenate(seconds)
    best, best_error = (0.0, 0.0), float(target @ target)
    # Where the measurements cannot tell, pairs are taken, which make drafted rows the dearer ones.
    for used in ([1], [0], [0, 1]):
        found = np.linalg.lstsq(matrix[:, used], target, rcond=None)[0]
        error = float(np.sum((target - matrix[:, used] @ found) ** 2))
        if (found >= 0.0).all() and error < _BETTER * best_error:
            rates = dict(zip(used, found.tolist(), strict=True))
            best, best_error = (rates.get(0, 0.0), rates.get(1, 0.0)), error
    return best
