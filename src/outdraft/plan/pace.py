"""How fast this machine goes right now, against how fast it was expected to go."""

from __future__ import annotations

import math
from collections import deque

# The last steps whose median says how fast things go now; fewer than half of them are ignored.
_WINDOW = 9
# A median further off than this (10 %) is taken for a change and not for noise.
_MAX_DRIFT = 0.1
# How far a single step may pull, and which part of that it does pull.
_MAX_PULL = 0.1
_GAIN = 1 / 16


class Pace:
    """Measured over expected seconds, the same factor for all that runs on this machine.

    One slow step moves it by well under 1 %. Where the speed itself changes, by whatever factor,
    it follows as soon as most of the last nine steps agree on it, which takes five.

    Works with logarithms, so that twice as fast and twice as slow are equally far.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_WINDOW)
        self._level = 0.0

    @property
    def factor(self) -> float:
        """By this, expected seconds are multiplied; 1.0 until something was observed."""
        return math.exp(self._level)

    def observe(self, ratio: float) -> float:
        """Takes in a step that took `ratio` times what was expected; both are above 0.

        Returns:
            How far it lay off, as a logarithm: what the pace does not explain.
        """
        log_ratio = math.log(ratio)
        recent = self._recent
        recent.append(log_ratio)
        median = sorted(recent)[len(recent) // 2]
        if len(recent) > _WINDOW // 2 and abs(median - self._level) > _MAX_DRIFT:
            self._level = median
        else:
            self._level += _GAIN * clip(log_ratio - self._level, _MAX_PULL)
        return log_ratio - self._level


def clip(value: float, limit: float) -> float:
    """The value, or the nearest one between `-limit` and `limit`."""
    return min(limit, max(-limit, value))
