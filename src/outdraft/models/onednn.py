"""Linear layers on weights that oneDNN has laid out for itself: where no kernels were compiled."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# The layout depends on how many rows come at once; this one serves from one row to many.
_ROWS = 16


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN has packed products of this dtype on this machine."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32


class OneDnnLinear(nn.Module):
    """`nn.Linear` on a weight in oneDNN's own layout."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _ROWS)
        self._bias: Tensor | None = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y

    def stored_tensors(self) -> list[Tensor]:
        return [self._weight] if self._bias is None else [self._weight, self._bias]

    def unpacked(self) -> Tensor:
        """The weight as it was given."""
        weight: Tensor = self._weight.to_dense()
        return weight
