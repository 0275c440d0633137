"""Drafters by name; packages add their own through the entry-point group `outdraft.drafters`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from outdraft.draft.plain import NoDrafter
from outdraft.draft.prompt_lookup import PromptLookup
from outdraft.draft.suffix import Suffix
from outdraft.errors import DrafterError
from outdraft.interfaces import Drafter

ENTRY_POINT_GROUP = "outdraft.drafters"

_BUILT_IN: dict[str, Callable[[], Drafter]] = {
    "none": NoDrafter,
    "prompt-lookup": PromptLookup,
    "suffix": Suffix,
}


def drafter_names() -> list[str]:
    """All names that `make_drafter` knows, built in ones first."""
    installed = {point.name for point in entry_points(group=ENTRY_POINT_GROUP)}
    return [*_BUILT_IN, *sorted(installed - set(_BUILT_IN))]


def make_drafter(name: str) -> Drafter:
    """A fresh drafter of that name.

    Raises:
        DrafterError: nobody registered the name.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        drafter = point.load()()
        if not isinstance(drafter, Drafter):
            raise DrafterError(
                f"entry point {point.value!r} made a {type(drafter).__name__}, not a Drafter"
            )
        return drafter
    raise DrafterError(f"there is no drafter {name!r}; known are {', '.join(drafter_names())}")
