"""Weights as whole numbers: a smaller and faster model, and another one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from outdraft.models.native.library import PackedWeight

Pack = Callable[[Tensor, Tensor | None], PackedWeight]
"""From a weight `[n, k]` and a bias `[n]` to what the kernels read."""

_HIGHEST = 127


def packed(weight: Tensor, bias: Tensor | None) -> PackedWeight:
    """A weight in its own dtype."""
    return PackedWeight(weight.detach(), bias)


def quantized_int8(weight: Tensor, bias: Tensor | None) -> PackedWeight:
    """A weight in 8 bits, each output with the scale that its largest weight needs.

    What a product reads is rounded to 16 bits as it runs; next to 8 bits that is nothing.
    """
    wide = weight.detach().float()
    scale = wide.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / _HIGHEST
    whole = (wide / scale[:, None]).round_().to(torch.int8)
    return PackedWeight(whole, bias, scale)
