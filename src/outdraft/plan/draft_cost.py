"""What asking a drafter costs: to ask at all, and for each further level of its tree."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from outdraft.plan.pace import Pace

# The line is fitted to the last so many proposals, whenever so many more were made.
_KEPT = 64
_REFIT_EVERY = 16
# Of the mean proposal, the part that may be due to its levels.
_MAX_LEVELS_SHARE = 0.95


class DraftCost:
    """Seconds of one call of a drafter: `pace × (fixed + per_level × levels)`.

    The pace follows the machine's load at once, the line slowly. It goes through the medians of
    each number of levels, so a proposal that took much longer than usual, such as a request's
    first one, which reads the prompt, hardly counts.

    A drafter's levels are what it does one after the other: passes of a draft model, or nodes where
    a method works node by node. Whoever observes decides, and asks with the same measure.

    As long as every proposal had as many levels, they are taken to cost all of its time, in equal
    parts with asking at all.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[int, float]] = deque(maxlen=_KEPT)  # seconds at a pace of 1
        self._num_observed = 0
        self._pace = Pace()
        self._fixed = 0.0
        self._per_level = 0.0

    @property
    def is_measured(self) -> bool:
        return self._num_observed > 0

    @property
    def per_level(self) -> float:
        """Seconds that one more level takes now."""
        return self._pace.factor * self._per_level

    def seconds(self, levels: int) -> float:
        """What a proposal of so many levels will take now; 0 if none was ever made."""
        return self._pace.factor * (self._fixed + self._per_level * levels)

    def observe(self, levels: int, seconds: float) -> None:
        """Takes in what a proposal took; one of no measurable time tells nothing."""
        if not 0.0 < seconds < math.inf:
            return
        if self.is_measured:
            self._pace.observe(seconds / (self._fixed + self._per_level * levels))
        self._recent.append((levels, seconds / self._pace.factor))
        self._num_observed += 1
        # After 1, 2, 4 and 8 proposals too, when each still changes much.
        if self._num_observed % _REFIT_EVERY == 0 or self._num_observed in {1, 2, 4, 8}:
            self._fit()

    def _fit(self) -> None:
        """Least squares through the medians, each as heavy as what it stands for."""
        by_levels: dict[int, list[float]] = {}
        for levels, seconds in self._recent:
            by_levels.setdefault(levels, []).append(seconds)
        weights = {levels: len(found) for levels, found in by_levels.items()}
        medians = {levels: median(found) for levels, found in by_levels.items()}
        if len(medians) == 1:
            ((levels, seconds),) = medians.items()
            self._fixed = self._per_level = seconds / (1 + levels)
            return
        total = len(self._recent)
        mean_levels = sum(weights[levels] * levels for levels in medians) / total
        mean_seconds = sum(weights[levels] * medians[levels] for levels in medians) / total
        spread = sum(weights[levels] * (levels - mean_levels) ** 2 for levels in medians)
        common = sum(
            weights[levels] * (levels - mean_levels) * (medians[levels] - mean_seconds)
            for levels in medians
        )
        # Neither part is below 0, and a proposal of no levels is never for nothing.
        steepest = _MAX_LEVELS_SHARE * mean_seconds / mean_levels
        self._per_level = min(max(0.0, common / spread), steepest)
        self._fixed = mean_seconds - self._per_level * mean_levels
