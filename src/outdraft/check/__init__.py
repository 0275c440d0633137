"""Is the text really the same? Drafted runs held against plain ones, and each difference judged.

A drafted run has to write the tokens that plain decoding writes. Where it does not, rounding may
be the reason: a pass over several rows adds the same products in another order than passes over
one. `judge` tells such a *tie* from a *fault*.
"""

from outdraft.check.compare import (
    ALL,
    Candidate,
    Comparison,
    Difference,
    check,
    chosen_drafters,
    unusable_drafters,
)
from outdraft.check.fault import FAULTS, damaged
from outdraft.check.prompts import read_prompts, shipped_prompts

__all__ = [
    "ALL",
    "FAULTS",
    "Candidate",
    "Comparison",
    "Difference",
    "check",
    "chosen_drafters",
    "damaged",
    "read_prompts",
    "shipped_prompts",
    "unusable_drafters",
]
