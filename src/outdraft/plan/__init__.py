"""From drafts to the rows of one target pass."""

from outdraft.plan.rows import make_plan

__all__ = ["make_plan"]
