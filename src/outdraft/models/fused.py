"""Decoder layers that the compiled kernels compute whole: found, rewritten, and put back.

A layer is taken if it has the parts of Llama's and no others; many architectures have. That it also
does the same with them is shown by comparing numbers on the layer itself; see `pack`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from outdraft.models.native import Kernels
from outdraft.models.native.library import LayerWeights
from outdraft.models.packed import FusedLayer
from outdraft.models.quantize import Pack

_LINEARS = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
_NORMS = ("input_layernorm", "post_attention_layernorm")
_HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
_LANES = 8  # head, hidden and inner sizes come in multiples of it


def can_fuse(layer: nn.Module) -> bool:
    """Whether a layer has all parts of the kind that the kernels compute, and no others."""
    parts = dict(layer.named_modules())
    if not all(type(parts.get(name)) is nn.Linear for name in _LINEARS):
        return False
    has_head_norms = all(name in parts for name in _HEAD_NORMS)
    norms = _NORMS + (_HEAD_NORMS if has_head_norms else ())
    if not all(eps_of(parts.get(name)) is not None for name in norms):
        return False
    known = {f"{name}.{kind}" for name in _LINEARS for kind in ("weight", "bias")}
    known |= {f"{name}.weight" for name in norms}
    others = {*dict(layer.named_parameters()), *dict(layer.named_buffers())} - known
    attention: Any = parts["self_attn"]
    inputs = (parts[name].in_features for name in ("self_attn.q_proj", "mlp.down_proj"))
    sizes = (getattr(attention, "head_dim", 1), *inputs)
    return (
        not others
        and all(size % _LANES == 0 for size in sizes)
        and isinstance(getattr(attention, "layer_idx", None), int)
        and isinstance(getattr(attention, "scaling", None), float)
        and _is_silu(parts["mlp"])
    )


def fuse(kernels: Kernels, layer: Any, pack: Pack) -> FusedLayer:
    """The same layer for the kernels; the layer itself is left as it is."""
    attention, mlp = layer.self_attn, layer.mlp
    q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
    has_head_norms = hasattr(attention, "q_norm")
    weights = LayerWeights(
        qkv=pack(torch.cat([q.weight, k.weight, v.weight]), _stacked_bias([q, k, v])),
        o=pack(attention.o_proj.weight, attention.o_proj.bias),
        gate=pack(mlp.gate_proj.weight, mlp.gate_proj.bias),
        up=pack(mlp.up_proj.weight, mlp.up_proj.bias),
        down=pack(mlp.down_proj.weight, mlp.down_proj.bias),
        input_norm=layer.input_layernorm.weight.float(),
        output_norm=layer.post_attention_layernorm.weight.float(),
        q_norm=attention.q_norm.weight.float() if has_head_norms else None,
        k_norm=attention.k_norm.weight.float() if has_head_norms else None,
        heads=q.out_features // attention.head_dim,
        kv_heads=k.out_features // attention.head_dim,
        head_dim=attention.head_dim,
        input_eps=eps_of(layer.input_layernorm) or 0.0,
        output_eps=eps_of(layer.post_attention_layernorm) or 0.0,
        head_eps=(eps_of(attention.q_norm) or 0.0) if has_head_norms else 0.0,
        scale=attention.scaling,
    )
    return FusedLayer(kernels, weights, attention.layer_idx, q.weight.dtype)


def linears_of(layer: nn.Module) -> list[nn.Linear]:
    """The linear layers whose weights a fused layer has taken."""
    return [layer.get_submodule(name) for name in _LINEARS]  # type: ignore[misc]


def unpacked_weights(weights: LayerWeights) -> list[Tensor]:
    """Their weights as they were, in the order of `linears_of`."""
    kv = weights.kv_heads * weights.head_dim
    q, k, v = weights.qkv.unpacked().split([weights.heads * weights.head_dim, kv, kv])
    rest = (weights.o, weights.gate, weights.up, weights.down)
    return [q.clone(), k.clone(), v.clone(), *(part.unpacked() for part in rest)]


def eps_of(norm: Any) -> float | None:
    """The constant of an RMSNorm, by its name and parts; `None` for anything else."""
    names = [name for name, _ in norm.named_parameters()] if isinstance(norm, nn.Module) else []
    if names != ["weight"] or not type(norm).__name__.endswith("RMSNorm"):
        return None
    for name in ("variance_epsilon", "eps"):
        if isinstance(eps := getattr(norm, name, None), float):
            return eps
    return None


def _is_silu(mlp: Any) -> bool:
    return type(getattr(mlp, "act_fn", None)).__name__ in ("SiLUActivation", "SiLU")


def _stacked_bias(linears: list[nn.Linear]) -> Tensor | None:
    biases: list[Tensor | None] = [linear.bias for linear in linears]
    if all(bias is None for bias in biases):
        return None
    return torch.cat(
        [
            torch.zeros(linear.out_features) if bias is None else bias.float()
            for linear, bias in zip(linears, biases, strict=True)
        ]
    )
