"""One file per method of guessing; `registry` knows them by name."""

from outdraft.draft.registry import DrafterContext, drafter_names, make_drafter

__all__ = ["DrafterContext", "drafter_names", "make_drafter"]
