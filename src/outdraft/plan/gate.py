"""When a drafter is asked again that was not worth its time."""

from __future__ import annotations

import math

# So many proposals in a row may fail to pay before the first is left out.
_PATIENCE = 3
# So many in a row that pay open it, whatever came before.
_STREAK = 2
_MAX_GAP = 16
# Of the time of plain decoding, what probes may take: at first and where the text changes, and in
# the long run. Gaps are as long as that takes, so a draft model is asked much less than a look-up.
_MAX_SHARE = 0.05
_USUAL_SHARE = 0.02
_LONGEST_GAP = 512
# Steps that are left out at least, however much the text changes.
_MIN_GAP = 2
# Of the steps in which it is left out, it hears what the target said in one of so many at most.
_LISTEN_EVERY = 4
# How much the last proposal weighs in the running means.
_WEIGHT = 0.25


class Gate:
    """Lets one drafter's proposals for one request through, fewer and fewer while none pays.

    A proposal pays if the tokens expected of its guesses that were read are worth, on the average
    of the last few, the time it took to make them. Gaps between proposals then double up to sixteen
    steps, or up to what a dear proposal may take. It is asked sooner where the text changes its
    character. After a proposal that pays by itself the next follows at once, and after two in a row
    the gate is open again.
    """

    def __init__(self) -> None:
        self._gain = self._seconds = 0.0
        self._num_misses = 0
        self._num_paid = 0
        self._num_skips = 0
        self._num_skipped = 0
        self._least_gap = _MIN_GAP
        self._listen_every = _LISTEN_EVERY
        self.is_new = True
        """Whether it never asked."""

    @property
    def is_open(self) -> bool:
        """Whether it asks at every step."""
        return self._num_misses < _PATIENCE

    @property
    def is_steady(self) -> bool:
        """Whether it asked in the step before."""
        return not self.is_new and self._num_skipped == 0

    @property
    def listens(self) -> bool:
        """Whether it hears what the target said, though it was not asked in this step.

        That takes no longer than a proposal with all that goes with it, and has the same share.
        """
        return self._num_skipped % self._listen_every == 0

    def wants(self, is_break: bool = False) -> bool:
        """Whether to ask in this step; counts the step.

        Args:
            is_break: whether the text has just begun a line, a paragraph or a block of code.
        """
        if self._num_skips > 0 and not (is_break and self._num_skipped >= self._least_gap):
            self._num_skips -= 1
            self._num_skipped += 1
            return False
        self._num_skips = 0
        return True

    def observe(self, gain: float, seconds: float, plain_seconds: float = math.inf) -> None:
        """Takes in a proposal.

        Args:
            gain: seconds of plain decoding that its guesses, as far as they were read, are
                expected to save.
            seconds: that it took to make them, and to listen to the target.
            plain_seconds: of a step of plain decoding.
        """
        self.is_new = False
        self._num_skipped = 0
        self._gain += _WEIGHT * (gain - self._gain)
        self._seconds += _WEIGHT * (seconds - self._seconds)
        self._num_paid = self._num_paid + 1 if 0.0 < gain >= seconds else 0
        if gain > 0.0 and self._gain >= self._seconds:
            self._num_misses = 0
        elif not self.is_open and self._num_paid >= _STREAK:
            self._gain, self._seconds, self._num_misses = gain, seconds, 0
        elif self.is_open or self._num_paid == 0:
            self._miss(plain_seconds)

    def _miss(self, plain_seconds: float) -> None:
        self._num_misses += 1
        if self.is_open:
            return
        steps = self._seconds / plain_seconds if plain_seconds > 0.0 else 0.0
        self._least_gap = min(_LONGEST_GAP, max(_MIN_GAP, math.ceil(steps / _MAX_SHARE)))
        usual_gap = min(_LONGEST_GAP, math.ceil(steps / _USUAL_SHARE))
        self._listen_every = max(_LISTEN_EVERY, usual_gap)
        most = max(_MAX_GAP, usual_gap)
        doubled = 1 << min(self._num_misses - _PATIENCE, _LONGEST_GAP.bit_length())
        if self._least_gap > _MIN_GAP:
            doubled = max(doubled, self._least_gap)
        self._num_skips = min(most, doubled)
