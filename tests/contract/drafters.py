"""Every drafter there is: those of the registry, and the adversaries."""

from __future__ import annotations

from collections.abc import Callable

from contract.adversaries import ADVERSARIES, PlainTexts
from outdraft.draft import DrafterContext, drafter_names, make_drafter
from outdraft.interfaces import Drafter, TargetModel
from support.toys import EOS, LetterTokenizer

Maker = Callable[[TargetModel, PlainTexts], Drafter]
"""From the target and its plain texts, which only adversaries know, to a drafter."""


def _registered(spec: str) -> Maker:
    def make(target: TargetModel, texts: PlainTexts) -> Drafter:
        del texts
        return make_drafter(spec, DrafterContext(target, LetterTokenizer()))

    return make


def _adversary(name: str) -> Maker:
    (adversary,) = (each for each in ADVERSARIES if each.__name__ == name)

    def make(target: TargetModel, texts: PlainTexts) -> Drafter:
        return adversary(texts, target.vocab_size, EOS)

    return make


# These need to be told what to guess from; their own tests put them through this suite's rules.
NEED_ARGUMENT = {"datastore", "model", "layer-skip"}
REGISTERED: dict[str, Maker] = {
    spec: _registered(spec)
    for spec in [*drafter_names(), "suffix,prompt-lookup"]
    if spec not in NEED_ARGUMENT
}
ADVERSE: dict[str, Maker] = {each.__name__: _adversary(each.__name__) for each in ADVERSARIES}
ALL: dict[str, Maker] = REGISTERED | ADVERSE
