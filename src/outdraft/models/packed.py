"""Modules that compute what others do, on weights laid out for the compiled kernels.

They are for inference alone, and lie on the CPU in the dtype they were made in.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from outdraft.models.cache import PositionLayer
from outdraft.models.native import Kernels
from outdraft.models.native.library import LayerWeights, PackedWeight


class PackedLinear(nn.Module):
    """`nn.Linear` on a packed weight."""

    def __init__(self, kernels: Kernels, weight: PackedWeight) -> None:
        super().__init__()
        self._kernels = kernels
        self.packed = weight

    def stored_tensors(self) -> list[Tensor]:
        return self.packed.tensors()

    def forward(self, x: Tensor) -> Tensor:
        return self._kernels.linear(x, self.packed)


class PackedEmbedding(nn.Module):
    """`nn.Embedding` that reads its rows from the packed weight of the output head."""

    def __init__(self, weight: PackedWeight, dtype: torch.dtype) -> None:
        super().__init__()
        self.packed = weight
        self._dtype = dtype

    def forward(self, token_ids: Tensor) -> Tensor:
        return self.packed.rows(token_ids).to(self._dtype)


class FusedRMSNorm(nn.Module):
    """The usual RMSNorm, in one call of torch."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self._eps)


class FusedLayer(nn.Module):
    """A decoder layer of the Llama kind, in two calls of the kernels around the cache's update.

        norm ▶ q, k, v ▶ rotation │ cache │ attention ▶ o ▶ + ▶ norm ▶ gate, up ▶ down ▶ +

    A row's output has the same bits whatever rows are read with it.

    Args:
        layer_idx: its place in the cache.
        dtype: of its input and output.
    """

    def __init__(
        self, kernels: Kernels, weights: LayerWeights, layer_idx: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self._kernels = kernels
        self.weights = weights
        self.layer_idx = layer_idx
        self.dtype = dtype

    def stored_tensors(self) -> list[Tensor]:
        return self.weights.tensors()

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        cache: Any = None,
        **_kwargs: Any,
    ) -> Tensor:
        assert position_embeddings is not None  # models of this kind compute them once for all
        room = _room(cache, self.layer_idx)
        if room is not None:
            keys, values = room
            mask = _visible(attention_mask, hidden_states.shape[1], keys.shape[2])
            return self._kernels.layer(
                self.weights,
                hidden_states,
                *position_embeddings,
                keys=keys,
                values=values,
                mask=mask,
            )
        q, k, v = self._kernels.attention_inputs(self.weights, hidden_states, *position_embeddings)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        mask = _visible(attention_mask, rows=q.shape[2], context=k.shape[2])
        return self._kernels.attention_outputs(
            self.weights, hidden_states, q, keys=k, values=v, mask=mask
        )


def _room(cache: Any, layer_idx: int) -> tuple[Tensor, Tensor] | None:
    """Where a layer may write and read in place; `None` where its cache is of another kind."""
    layers = () if cache is None else cache.layers
    layer = layers[layer_idx] if layer_idx < len(layers) else None
    return layer.room() if isinstance(layer, PositionLayer) else None


def _visible(mask: Tensor | None, rows: int, context: int) -> Tensor:
    """Which slots each row sees, `[seqs or 1, rows, context]`; without a mask, all before it."""
    if mask is None:
        return torch.ones(1, rows, context, dtype=torch.bool).tril_(context - rows)
    if mask.dtype != torch.bool:
        mask = mask == 0
    if mask.shape[3] > context:
        mask = mask[..., :context]
    return mask.squeeze(1)
