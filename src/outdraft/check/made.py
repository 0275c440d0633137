"""Drafters that need something to guess from, given something made for the occasion."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path

from outdraft.check.compare import prompt_token_ids
from outdraft.draft.datastore import DatastoreDrafter
from outdraft.draft.datastore_build import build_datastore
from outdraft.draft.draft_model import DraftModel
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
    target's tokenizer and once with one that knows bytes alone.

    Args:
        folder: for files; they are needed as long as the drafters are.
    """
    makers = {
        "datastore": lambda: [_datastore(llm, prompts, folder)],
        "model": lambda: _small_models(llm),
    }
    drafters: list[Drafter] = []
    reasons: dict[str, str] = {}
    for name in names:
        try:
            drafters += makers[name]() if name in makers else [llm.drafter(name)]
        except (DrafterError, UnsupportedModelError) as error:
            reasons[name] = str(error)
    return drafters, reasons


def _datastore(llm: Outdraft, prompts: Seq[Prompt], folder: Path) -> Drafter:
    prompt_ids = [prompt_token_ids(llm, prompt, i) for i, prompt in enumerate(prompts, start=1)]
    path = folder / "prompts.datastore"
    vocabulary = Vocabulary.of(llm.tokenizer)
    build_datastore(path, [[ids] for ids in prompt_ids], vocabulary)
    drafter = DatastoreDrafter(path, vocabulary)
    drafter.name = "datastore:prompts"
    return drafter


def _small_models(llm: Outdraft) -> list[Drafter]:
    if not isinstance(llm.target, CausalLM):
        raise DrafterError(f"a {type(llm.target).__name__} has no layers to make a smaller one of")
    small = first_layers(llm.target, max(1, num_layers(llm.target) // _SHARE))
    with_bytes = byte_tokenizer()
    return [
        DraftModel(
            small,
            llm.target,
            tokenizer=tokenizer,
            target_tokenizer=llm.tokenizer,
            name=f"model:{name}",
        )
        for name, tokenizer in (("first-layers", llm.tokenizer), ("other-tokenizer", with_bytes))
    ]
