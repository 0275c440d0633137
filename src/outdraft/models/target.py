"""Any Hugging Face causal language model as a target, through its public forward call."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, get_layer_types_and_kwargs

from outdraft.errors import CacheError, ModelError, UnsupportedModelError
from outdraft.interfaces import KVCache, TargetModel
from outdraft.models.cache import LayerShape, PositionCache
from outdraft.models.masks import Reach, additive, slot_positions, tree_mask, within_reach
from outdraft.models.pack import Packing
from outdraft.types import Rows

_UNBOUNDED_CONTEXT = 1 << 30


class CausalLM(TargetModel):
    """Drives a causal language model with explicit positions, masks and our own cache.

    Nothing is hung on the module: what a pass needs is in its arguments.

    Args:
        model: any causal language model whose layers all cache keys and values.
        packing: how it was prepared for this machine, if it was.

    Raises:
        UnsupportedModelError: a layer keeps another kind of state, or the attention
            implementation takes no explicit mask.
    """

    def __init__(self, model: PreTrainedModel, packing: Packing | None = None) -> None:
        config = model.config.get_text_config(decoder=True)
        self.model = model
        self.packing = packing
        self.device = model.device
        self.max_context = getattr(config, "max_position_embeddings", None) or _UNBOUNDED_CONTEXT
        self._reaches = _layer_reaches(config)
        self._takes_bool_masks = _takes_bool_masks(config)
        self._can_keep_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._shapes, self.vocab_size = self._probe()

    def new_cache(self) -> PositionCache:
        return PositionCache(self._shapes)

    @torch.inference_mode()
    def forward(
        self, rows: Rows, cache: KVCache, *, first_seq: int = 0, logits_to_keep: int = 0
    ) -> Tensor:
        if not isinstance(cache, PositionCache):
            raise CacheError(f"a causal LM needs its own cache, not a {type(cache).__name__}")
        if self.model.training:
            raise ModelError(
                "the model is in training mode, where dropout is on; call model.eval()"
            )
        cache.begin_pass(first_seq, rows.num_seqs, rows.num_rows)
        starts = cache.committed_lens[first_seq : first_seq + rows.num_seqs]
        keep = {"logits_to_keep": logits_to_keep} if self._can_keep_logits else {}
        output = self.model(
            input_ids=rows.token_ids,
            position_ids=rows.position_ids,
            attention_mask=self._masks(rows, starts, cache.pass_context),
            cache=cache.for_model,
            use_cache=True,
            **keep,
        )
        logits: Tensor = output.logits
        return logits if self._can_keep_logits else logits[:, -logits_to_keep:]

    def _masks(
        self, rows: Rows, starts: tuple[int, ...], context: int
    ) -> Tensor | dict[str, Tensor]:
        """One mask, or one per layer type where the model mixes several."""
        starts_t = torch.tensor(starts, device=self.device)
        visible = tree_mask(rows, starts_t, context)
        positions = None
        masks = {}
        for layer_type, reach in self._reaches.items():
            mask = visible
            if reach.kind != "full":
                if positions is None:
                    positions = slot_positions(rows, starts_t, context)
                mask = visible & within_reach(reach, rows.position_ids, positions)
            mask = mask[:, None]  # [seqs, 1, rows, context]: all heads see alike
            masks[layer_type] = mask if self._takes_bool_masks else additive(mask, self.model.dtype)
        return masks if len(masks) > 1 else next(iter(masks.values()))

    @torch.inference_mode()
    def _probe(self) -> tuple[list[LayerShape], int]:
        """Reads one token to learn what each layer caches and how wide the output is.

        With an explicit mask, as every later pass: some models can only compute their own.
        """
        cache: Any = DynamicCache(config=self.model.config)
        rows = Rows.chain([0], 0, self.device)
        try:
            logits = self.model(
                input_ids=rows.token_ids,
                position_ids=rows.position_ids,
                attention_mask=self._masks(rows, (0,), 1),
                cache=cache,
                use_cache=True,
            ).logits
        except (TypeError, ValueError) as error:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} takes no explicit positions and 4-D masks ({error}), "
                "as models with ALiBi; decode it with transformers' own generate()"
            ) from error
        shapes = [
            LayerShape(
                heads=layer.keys.shape[1],
                key_dim=layer.keys.shape[3],
                value_dim=layer.values.shape[3],
                dtype=layer.keys.dtype,
                device=layer.keys.device,
            )
            for layer in cache.layers
        ]
        return shapes, logits.shape[-1]


def _layer_reaches(config: Any) -> dict[str, Reach]:
    """Per layer type the model names, how far back such a layer looks."""
    reaches: dict[str, Reach] = {}
    for layer_type, kwargs in zip(*get_layer_types_and_kwargs(config), strict=True):
        match layer_type:
            case "full_attention":
                reaches[layer_type] = Reach()
            case "sliding_attention":
                reaches[layer_type] = Reach("window", kwargs["sliding_window"])
            case "chunked_attention":
                reaches[layer_type] = Reach("chunk", kwargs["sliding_window"])
            case _:
                raise UnsupportedModelError(
                    f"{config.model_type} has a layer of type {layer_type!r}; outdraft drives "
                    "models whose layers all cache keys and values (full, sliding or chunked "
                    "attention)"
                )
    return reaches


def _takes_bool_masks(config: Any) -> bool:
    implementation = config._attn_implementation
    if implementation not in ("sdpa", "eager"):
        raise UnsupportedModelError(
            f"attention implementation {implementation!r} takes no explicit mask; load the model "
            'with attn_implementation="sdpa" (or "eager")'
        )
    return bool(implementation == "sdpa")
