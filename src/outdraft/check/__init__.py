"""Is the text really the same? Drafted runs held against plain ones, and each difference judged.

A drafted run has to write the tokens that plain decoding writes. Where it does not, rounding may
be the reason: a pass over several rows adds the same products in another order than passes over
one. `judge` tells such a *tie* from a *fault*. `distribution` tests the draw that both share.
"""

from outdraft.check.compare import (
    ALL,
    Candidate,
    Comparison,
    Difference,
    check,
    chosen_drafters,
)
from outdraft.check.distribution import (
    Distribution,
    Fit,
    check_distribution,
    distribution_settings,
)
from outdraft.check.fault import FAULTS, damaged
from outdraft.check.made import usable_drafters
from outdraft.check.prompts import read_prompts, shipped_prompts

__all__ = [
    "ALL",
    "FAULTS",
    "Candidate",
    "Comparison",
    "Difference",
    "Distribution",
    "Fit",
    "check",
    "check_distribution",
    "chosen_drafters",
    "damaged",
    "distribution_settings",
    "read_prompts",
    "shipped_prompts",
    "usable_drafters",
]
