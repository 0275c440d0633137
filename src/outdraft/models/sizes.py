"""How large a model is."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from outdraft.models.onednn import OneDnnLinear
from outdraft.models.packed import FusedLayer, PackedLinear
from outdraft.models.target import CausalLM


def num_parameters(target: CausalLM) -> int:
    """Numbers in its weights; those that several of its parts share count once."""
    return sum(tensor.numel() for tensor in _weights(target))


def weight_bytes(target: CausalLM) -> int:
    """Memory of its weights, as they lie in memory."""
    return sum(tensor.numel() * tensor.element_size() for tensor in _weights(target))


def _weights(target: CausalLM) -> Iterator[Tensor]:
    """Those of its modules, and those that packed modules keep for themselves."""
    yield from target.model.parameters()
    for module in target.model.modules():
        if isinstance(module, PackedLinear | FusedLayer | OneDnnLinear):
            yield from module.stored_tensors()
