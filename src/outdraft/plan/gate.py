"""When a drafter is asked again that was not worth its time."""

from __future__ import annotations

# So many proposals in a row may fail to pay before the first is left out.
_PATIENCE = 3
_MAX_GAP = 16
# How much the last proposal weighs in the running means.
_WEIGHT = 0.25


class Gate:
    """Lets one drafter's proposals for one request through, fewer and fewer while none pays.

    A proposal pays if the tokens expected of its guesses that were read are worth, on the average
    of the last few, the time it took to make them. Gaps between proposals then double up to
    sixteen steps; one that pays opens the gate again at once.
    """

    def __init__(self) -> None:
        self._gain = self._seconds = 0.0
        self._num_misses = 0
        self._num_skips = 0

    @property
    def is_open(self) -> bool:
        """Whether it asks at every step."""
        return self._num_misses < _PATIENCE

    def wants(self) -> bool:
        """Whether to ask in this step; counts the step."""
        if self._num_skips > 0:
            self._num_skips -= 1
            return False
        return True

    def observe(self, gain: float, seconds: float) -> None:
        """Takes in a proposal.

        Args:
            gain: seconds of plain decoding that its guesses, as far as they were read, are
                expected to save.
            seconds: that it took to make them.
        """
        self._gain += _WEIGHT * (gain - self._gain)
        self._seconds += _WEIGHT * (seconds - self._seconds)
        if gain > 0.0 and self._gain >= self._seconds:
            self._num_misses = 0
            return
        self._num_misses += 1
        self._num_skips = (
            min(_MAX_GAP, 1 << (self._num_misses - _PATIENCE)) if not self.is_open else 0
        )
