"""Drafters by name; packages add their own through the entry-point group `outdraft.drafters`.

A name may carry an argument behind a colon (`datastore:PATH`), and several names separated by
commas work together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from outdraft.draft.datastore import DatastoreDrafter
from outdraft.draft.lookahead import Lookahead
from outdraft.draft.plain import NoDrafter
from outdraft.draft.prediction import Prediction
from outdraft.draft.prompt_lookup import PromptLookup
from outdraft.draft.recycling import Recycling
from outdraft.draft.several import Several
from outdraft.draft.suffix import Suffix
from outdraft.draft.suffix_memory import open_suffix_memory
from outdraft.errors import DrafterError
from outdraft.interfaces import Drafter, TargetModel
from outdraft.text.prompts import Tokenizer
from outdraft.text.vocabulary import Vocabulary

ENTRY_POINT_GROUP = "outdraft.drafters"


@dataclass(frozen=True, slots=True)
class DrafterContext:
    """What a drafter may be built from: the target it is to guess for, and its tokenizer."""

    target: TargetModel
    tokenizer: Tokenizer


Factory = Callable[[str, DrafterContext | None], Drafter]
"""From the argument behind the colon, empty if there is none, and the context to a drafter."""


def _without_argument(name: str, make: Callable[[], Drafter]) -> Factory:
    def factory(argument: str, context: DrafterContext | None) -> Drafter:
        del context
        if argument:
            raise DrafterError(f"drafter {name!r} takes no argument; got {argument!r}")
        return make()

    return factory


def _suffix(argument: str, context: DrafterContext | None) -> Drafter:
    if not argument:
        return Suffix()
    option, _, namespace = argument.partition("=")
    if option != "memory":
        raise DrafterError(
            f"drafter 'suffix' takes nothing or memory=NAMESPACE behind the colon; got {argument!r}"
        )
    return open_suffix_memory(namespace, _vocabulary("suffix:memory", context))


def _datastore(argument: str, context: DrafterContext | None) -> Drafter:
    if not argument:
        raise DrafterError(
            "drafter 'datastore' needs a file to guess from, as in datastore:PATH; build one with "
            "`outdraft datastore build FILES... --model REF -o PATH`"
        )
    return DatastoreDrafter(Path(argument).expanduser(), _vocabulary("datastore", context))


def _draft_model(argument: str, context: DrafterContext | None) -> Drafter:
    from outdraft.draft.draft_model import DraftModel  # brings transformers along

    return DraftModel.from_spec(argument, context)


def _layer_skip(argument: str, context: DrafterContext | None) -> Drafter:
    from outdraft.draft.layer_skip import LayerSkip  # brings transformers along

    return LayerSkip.from_spec(argument, context)


def _vocabulary(name: str, context: DrafterContext | None) -> Vocabulary:
    """That of the target's tokenizer, which stored tokens are held against."""
    if context is None:
        raise DrafterError(
            f"drafter {name!r} needs to know the target's tokenizer; name the drafter where the "
            "model is loaded or used, or pass make_drafter a DrafterContext"
        )
    return Vocabulary.of(context.tokenizer)


_BUILT_IN: dict[str, Factory] = {
    "none": _without_argument("none", NoDrafter),
    "prompt-lookup": _without_argument("prompt-lookup", PromptLookup),
    "suffix": _suffix,
    "recycling": _without_argument("recycling", Recycling),
    "lookahead": _without_argument("lookahead", Lookahead),
    "prediction": _without_argument("prediction", Prediction),
    "datastore": _datastore,
    "model": _draft_model,
    "layer-skip": _layer_skip,
}


def drafter_names() -> list[str]:
    """All names that `make_drafter` knows, built in ones first."""
    installed = {point.name for point in entry_points(group=ENTRY_POINT_GROUP)}
    return [*_BUILT_IN, *sorted(installed - set(_BUILT_IN))]


def make_drafter(spec: str, context: DrafterContext | None = None) -> Drafter:
    """A fresh drafter, such as `suffix`, `datastore:PATH` or `suffix,prompt-lookup`.

    Raises:
        DrafterError: nobody registered the name, or its argument does not fit.
    """
    specs = [part.strip() for part in spec.split(",")]
    if len(specs) > 1:
        return Several([make_drafter(part, context) for part in specs])
    name, _, argument = specs[0].partition(":")
    if name in _BUILT_IN:
        return _BUILT_IN[name](argument, context)
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        drafter = _without_argument(name, point.load())(argument, context)
        if not isinstance(drafter, Drafter):
            raise DrafterError(
                f"entry point {point.value!r} made a {type(drafter).__name__}, not a Drafter"
            )
        return drafter
    raise DrafterError(f"there is no drafter {name!r}; known are {', '.join(drafter_names())}")
