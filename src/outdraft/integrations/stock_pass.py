"""A forward call as transformers' own `generate` makes it: what a target pass is compared with."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from transformers import DynamicCache

from outdraft.models.target import CausalLM


class StockPass:
    """Forward calls of a model behind one context, with its own cache and no explicit mask."""

    def __init__(self, target: CausalLM, context_ids: Seq[int]) -> None:
        self._model = target.model
        self._cache = DynamicCache(config=target.model.config)
        self._read(context_ids)

    def read(self, token_ids: Seq[int]) -> None:
        """Reads a chain of tokens behind the context, and forgets it."""
        self._read(token_ids)
        self._cache.crop(-len(token_ids))

    @torch.inference_mode()
    def _read(self, token_ids: Seq[int]) -> None:
        input_ids = torch.tensor([list(token_ids)], device=self._model.device)
        self._model(input_ids=input_ids, cache=self._cache, use_cache=True)
