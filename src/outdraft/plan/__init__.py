"""From drafts to the rows of one target pass."""

from outdraft.plan.pricing import Priced, Pricing, Unpriced
from outdraft.plan.rows import make_plan

__all__ = ["Priced", "Pricing", "Unpriced", "make_plan"]
