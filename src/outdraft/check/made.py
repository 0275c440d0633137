"""Drafters that need something to guess from, given something made for the occasion."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq
from functools import partial
from pathlib import Path
from typing import Any

from outdraft.check.compare import prompt_token_ids
from outdraft.draft.datastore import DatastoreDrafter
from outdraft.draft.datastore_build import build_datastore
from outdraft.draft.draft_model import DraftModel
from outdraft.draft.suffix_memory import SuffixMemory, SuffixWithMemory
from outdraft.errors import DrafterError, UnsupportedModelError
from outdraft.generate import Outdraft
from outdraft.interfaces import Drafter
from outdraft.models.byte_tokenizer import byte_tokenizer
from outdraft.models.skip import first_layers, num_layers
from outdraft.models.target import CausalLM
from outdraft.text.prompts import Prompt
from outdraft.text.vocabulary import Vocabulary

# Of the target's layers, those that its small sibling has.
_SHARE = 3


def usable_drafters(
    llm: Outdraft, names: Seq[str], prompts: Seq[Prompt], folder: Path
) -> tuple[list[Drafter], dict[str, str]]:
    """The drafters of these names, and for those that cannot be had here the reason.

    `datastore` guesses from the prompts, `model` is the target's first layers, once with the
    target's tokenizer and once with one that knows bytes alone. `suffix` runs with a memory too,
    which ends with the check.

    Args:
        folder: for files; they are needed as long as the drafters are.
    """
    makers: dict[str, Callable[[], Drafter]] = {}
    for name in names:
        if name == "datastore":
            makers["datastore:prompts"] = partial(_datastore, llm, prompts, folder)
        elif name == "model":
            makers["model:first-layers"] = partial(_first_layers, llm, llm.tokenizer)
            makers["model:other-tokenizer"] = partial(_first_layers, llm, byte_tokenizer())
        else:
            makers[name] = partial(llm.drafter, name)
        if name == "suffix":
            makers["suffix:memory"] = lambda: SuffixWithMemory(SuffixMemory())
    drafters: list[Drafter] = []
    reasons: dict[str, str] = {}
    for name, make in makers.items():
        try:
            drafter = make()
        except (DrafterError, UnsupportedModelError) as error:
            reasons[name] = str(error)
            continue
        drafter.name = name
        drafters.append(drafter)
    return drafters, reasons


def _datastore(llm: Outdraft, prompts: Seq[Prompt], folder: Path) -> Drafter:
    path = folder / "prompts.datastore"
    prompt_ids = [prompt_token_ids(llm, prompt, i) for i, prompt in enumerate(prompts, start=1)]
    vocabulary = Vocabulary.of(llm.tokenizer)
    build_datastore(path, [[ids] for ids in prompt_ids], vocabulary)
    return DatastoreDrafter(path, vocabulary)


def _first_layers(llm: Outdraft, tokenizer: Any) -> Drafter:
    if not isinstance(llm.target, CausalLM):
        raise DrafterError(f"a {type(llm.target).__name__} has no layers to make a smaller one of")
    small = first_layers(llm.target, max(1, num_layers(llm.target) // _SHARE))
    return DraftModel(small, llm.target, tokenizer=tokenizer, target_tokenizer=llm.tokenizer)
