"""One file per method of guessing; `registry` knows them by name."""

from outdraft.draft.registry import drafter_names, make_drafter

__all__ = ["drafter_names", "make_drafter"]
