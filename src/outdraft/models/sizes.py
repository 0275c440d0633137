"""How large a model is."""

from __future__ import annotations

from outdraft.models.target import CausalLM


def num_parameters(target: CausalLM) -> int:
    """Numbers in its weights; those that several of its parts share count once."""
    return sum(parameter.numel() for parameter in target.model.parameters())


def weight_bytes(target: CausalLM) -> int:
    """Memory of its weights."""
    return sum(parameter.nbytes for parameter in target.model.parameters())
