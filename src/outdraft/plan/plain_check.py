"""Plain passes now and then, where none is run, to see what they cost now."""

from __future__ import annotations

import math
from statistics import median

from outdraft.plan.cost_model import CostModel, PassSize

# The pace has to have changed by so much (a fifth) since plain passes were last seen.
_MAX_DRIFT = 0.2
# So many steps lie between two checks; twice as many after each that finds plain passes to cost
# what they were held to cost, but for this much, as long as the machine is merely restless.
_MIN_STEPS = 64
_MAX_STEPS = 1024
_MAX_SURPRISE = 0.15
# So many plain steps make one.
_NUM_PASSES = 3


class PlainCheck:
    """Finds out whether the machine became slower, or only the passes that are being run.

    While every step reads about as many rows, the two look alike, and the cost of a plain pass is
    taken to have changed with the others. If it did not, drafting may have stopped to pay.
    """

    def __init__(self) -> None:
        self._pace = 1.0
        self._num_steps = self._gap = _MIN_STEPS
        self._measured: list[float] = []
        self.is_running = False
        """Whether the next step has to be a plain one."""

    def observe(self, costs: CostModel, size: PassSize, seconds: float) -> None:
        """Takes in a pass, and has the costs take it in."""
        if self.is_running:
            self._measured.append(seconds)
            if len(self._measured) == _NUM_PASSES:
                found = median(self._measured)
                is_surprise = abs(found / costs.seconds(size) - 1.0) > _MAX_SURPRISE
                self._gap = _MIN_STEPS if is_surprise else min(2 * self._gap, _MAX_STEPS)
                costs.rebase(size, found)
                self._measured.clear()
                self.is_running = False
                self._num_steps, self._pace = 0, costs.pace
            return
        costs.observe(size, seconds)
        self._num_steps += 1
        if size.num_rows == 1:
            self._pace = costs.pace
        elif self._num_steps >= self._gap:
            self.is_running = abs(math.log(costs.pace / self._pace)) > _MAX_DRIFT
