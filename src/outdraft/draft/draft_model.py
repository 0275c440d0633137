"""A smaller language model guesses (`model:REF`).

Guesses from: the text, by a model of its own. Score: the probability that it gives a token, and the
token's depth. Cost: a pass of the draft model over what is new in the text and one for each level
of the tree, and its weights and cache in memory. Sources: Leviathan et al. 2023 and Chen et al.
2023 for draft models, EAGLE-2 (Li et al. 2024) for best-first trees, Daliri et al. 2024 for drawing
with the target's noise.

REF is whatever `outdraft.load` takes: an alias, a folder, a `.gguf` file or a hub id. All behind
the first colon belongs to it, so it may contain colons; a comma would begin the next drafter, so a
path with commas can only be given to `DraftModel.load`. The model is loaded on the target's device,
in its dtype.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from outdraft.draft.links import Link, SameTokens
from outdraft.draft.model_drafter import ModelDrafter
from outdraft.draft.text_bridge import TextBridge
from outdraft.draft.token_map import TokenMap, check_full, gives_back_text
from outdraft.errors import DrafterError
from outdraft.interfaces import TargetModel
from outdraft.models.load import load_model
from outdraft.models.sizes import num_parameters, weight_bytes
from outdraft.models.target import CausalLM

if TYPE_CHECKING:
    from outdraft.draft.registry import DrafterContext

NAME = "model"


class DrafterWarning(UserWarning):
    """A drafter that cannot change the text, and will hardly make it faster."""


class DraftModel(ModelDrafter):
    """Guesses with a model that is cheaper than the target and often writes the same.

    Device, dtype, rows of the vocabulary, tokenizer and context may differ from the target's: ids
    travel, never tensors.

    Args:
        model: the draft model.
        target: guessed for.
        tokenizer, target_tokenizer: theirs; without them, an id has to mean the same in both.

    Warns:
        DrafterWarning: the draft model has more parameters than the target.

    Raises:
        DrafterError: ids do not mean the same, and one of the tokenizers does not give back the
            text it was given, so that text cannot carry guesses across.
    """

    def __init__(
        self,
        model: TargetModel,
        target: TargetModel,
        *,
        tokenizer: Any = None,
        target_tokenizer: Any = None,
        name: str = NAME,
    ) -> None:
        link = _link(name, model, target, tokenizer, target_tokenizer)
        super().__init__(name, model, link)
        _warn_if_larger(name, model, target)

    @classmethod
    def from_spec(cls, argument: str, context: DrafterContext | None) -> DraftModel:
        """The drafter `model:ARGUMENT`.

        Raises:
            DrafterError: no model is named, or it does not go with the target.
            OutdraftError: it cannot be loaded; see `outdraft.load`.
        """
        if not argument:
            raise DrafterError(
                f"drafter {NAME!r} needs a model to guess with, as in {NAME}:REF, where REF is an "
                "alias, a folder, a .gguf file or a hub id"
            )
        if context is None:
            raise DrafterError(
                f"drafter '{NAME}:{argument}' is made for a target; name it where the model is "
                "loaded or used, or pass make_drafter a DrafterContext"
            )
        return cls.load(argument, context.target, context.tokenizer)

    @classmethod
    def load(
        cls,
        ref: Any,
        target: TargetModel,
        target_tokenizer: Any,
        *,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device = "auto",
    ) -> DraftModel:
        """Loads a draft model; arguments as for `outdraft.load`.

        Args:
            dtype, device: `"auto"` takes the target's.
        """
        if dtype == "auto" and isinstance(target, CausalLM) and not isinstance(ref, tuple):
            dtype = target.model.dtype
        if device == "auto" and not isinstance(ref, tuple):
            device = target.device
        loaded = load_model(ref, dtype=dtype, device=device)
        return cls(
            CausalLM(loaded.model, loaded.packing),
            target,
            tokenizer=loaded.tokenizer,
            target_tokenizer=target_tokenizer,
            name=f"{NAME}:{loaded.name}",
        )

    @property
    def memory_bytes(self) -> int:
        """Weights and cache."""
        model = self._runner.model
        return super().memory_bytes + (weight_bytes(model) if isinstance(model, CausalLM) else 0)


def _link(
    name: str, model: TargetModel, target: TargetModel, tokenizer: Any, target_tokenizer: Any
) -> Link:
    if tokenizer is None and target_tokenizer is None:
        tokens = TokenMap.of_equal_ids(target.vocab_size, model.vocab_size)
        return SameTokens(name, tokens, device=model.device)
    check_full(target_tokenizer, "the target's")
    check_full(tokenizer, "the draft model's")
    tokens = TokenMap.between(target_tokenizer, target.vocab_size, tokenizer, model.vocab_size)
    if not tokens.differing:
        stand_in = tokenizer.eos_token_id or 0
        return SameTokens(name, tokens, stand_in=stand_in, device=model.device)
    for each, whose in ((target_tokenizer, "the target's"), (tokenizer, "the draft model's")):
        if not gives_back_text(each):
            raise DrafterError(
                f"drafter {name!r} has another tokenizer than the target ({tokens.differing}), and "
                f"{whose} does not give back the text it was given, so guesses cannot travel as "
                "text; choose a draft model with the target's tokenizer"
            )
    return TextBridge(name, target_tokenizer, tokenizer, tokens, device=model.device)


def _warn_if_larger(name: str, model: TargetModel, target: TargetModel) -> None:
    if isinstance(model, CausalLM) and isinstance(target, CausalLM):
        own, others = num_parameters(model), num_parameters(target)
        if own > others:
            warnings.warn(
                f"drafter {name!r} has {own:,} parameters and its target {others:,}; guessing will "
                "take longer than it saves, choose a smaller draft model",
                DrafterWarning,
                stacklevel=4,
            )
