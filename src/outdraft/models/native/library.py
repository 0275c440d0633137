"""The compiled kernels as Python functions on tensors."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import c_float, c_int, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from outdraft.errors import NativeError
from outdraft.models.native.build import built_library

SWITCH = "OUTDRAFT_NATIVE"
PANEL = 16  # as in kernels.cpp
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}


class _Matrix(ctypes.Structure):
    _fields_ = (
        ("weight", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
        ("type", c_int32),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Matrix) for name in ("qkv", "o", "gate", "up", "down")),
        *((name, c_void_p) for name in ("input_norm", "output_norm", "q_norm", "k_norm")),
        *((name, c_int64) for name in ("hidden", "heads", "kv_heads", "head_dim")),
        *((name, c_float) for name in ("input_eps", "output_eps", "head_eps", "scale")),
    )


class _Strided(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("seq", c_int64), ("head", c_int64), ("slot", c_int64))

    @classmethod
    def of(cls, tensor: Tensor) -> _Strided:
        return cls(tensor.data_ptr(), *tensor.stride()[:3])


class PackedWeight:
    """A matrix `[n, k]` in panels of 16 outputs, `[panels, k / pair, 16, pair]`.

    In bfloat16 and int8 two inputs stand together, in float32 a pair is 1. An odd k is padded with
    a zero.

    Args:
        weight: float32, bfloat16, or int8 with a scale.
        scale, bias: per output.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, scale: Tensor | None = None
    ) -> None:
        self.n, self.k = weight.shape
        self.num_panels = -(-self.n // PANEL)
        self.padding = self.k % 2
        outputs = self.num_panels * PANEL - self.n
        whole = pad(weight, (0, self.padding, 0, outputs)) if outputs or self.padding else weight
        pair = 1 if weight.dtype == torch.float32 else 2
        panels = whole.view(self.num_panels, PANEL, -1, pair).transpose(1, 2)
        self.panels = panels.contiguous()
        self.bias = None if bias is None else pad(bias.float(), (0, outputs))
        self.scale = None if scale is None else pad(scale.float(), (0, outputs))
        self.struct = _Matrix(
            self.panels.data_ptr(),
            _pointer(self.scale),
            _pointer(self.bias),
            self.n,
            self.k + self.padding,
            _TYPES[weight.dtype],
        )

    def tensors(self) -> list[Tensor]:
        """All it keeps."""
        return [part for part in (self.panels, self.bias, self.scale) if part is not None]

    def unpacked(self) -> Tensor:
        """The matrix as it was given, `[n, k]`."""
        whole = self.panels.transpose(1, 2).reshape(-1, self.k + self.padding)
        return whole[: self.n, : self.k].clone()

    def rows(self, idx: Tensor) -> Tensor:
        """Some rows of the matrix, `[*idx, k]`, scaled if it has scales."""
        rows = self.panels[idx // PANEL, :, idx % PANEL].flatten(-2)[..., : self.k]
        return rows if self.scale is None else rows * self.scale[idx, None]


@dataclass(frozen=True)
class LayerWeights:
    """All of a decoder layer, its norms in float32; see `_Layer` in kernels.cpp.

    Args:
        qkv: queries, keys and values stacked in this order.
        q_norm, k_norm: of each head, where the model has them.
        scale: of attention scores.
    """

    qkv: PackedWeight
    o: PackedWeight
    gate: PackedWeight
    up: PackedWeight
    down: PackedWeight
    input_norm: Tensor
    output_norm: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    heads: int
    kv_heads: int
    head_dim: int
    input_eps: float
    output_eps: float
    head_eps: float
    scale: float

    @property
    def _matrices(self) -> tuple[PackedWeight, ...]:
        return self.qkv, self.o, self.gate, self.up, self.down

    @property
    def _norms(self) -> tuple[Tensor | None, ...]:
        return self.input_norm, self.output_norm, self.q_norm, self.k_norm

    def tensors(self) -> list[Tensor]:
        """All it keeps."""
        matrices = [part for matrix in self._matrices for part in matrix.tensors()]
        return matrices + [norm for norm in self._norms if norm is not None]

    @functools.cached_property
    def struct(self) -> _Layer:
        return _Layer(
            *(matrix.struct for matrix in self._matrices),
            *map(_pointer, self._norms),
            *(self.qkv.k, self.heads, self.kv_heads, self.head_dim),
            *(self.input_eps, self.output_eps, self.head_eps, self.scale),
        )


class Kernels:
    """The functions of one compiled library.

    Tensors are float32 or bfloat16, all of one call alike, and lie on the CPU. The caller sees to
    shapes; the library does not check them.
    """

    def __init__(self, path: Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise NativeError(f"{path} cannot be loaded: {error}") from error
        self._linear = library.outdraft_linear
        self._linear.argtypes = [c_void_p, c_int, c_void_p, c_int64, c_void_p, c_int]
        self._inputs = library.outdraft_attention_inputs
        self._inputs.argtypes = [
            *(c_void_p, c_int, c_void_p, c_void_p, c_void_p),
            *[c_int64] * 4,
            *(c_void_p, c_void_p, c_void_p, c_int),
        ]
        self._outputs = library.outdraft_attention_outputs
        self._outputs.argtypes = [
            *(c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
            *[c_int64] * 4,
            *(c_void_p, c_int),
        ]
        self._layer = library.outdraft_layer
        self._layer.argtypes = [
            *(c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_int64, c_int64),
            *[c_void_p] * 3,
            *[c_int64] * 4,
            *(c_void_p, c_int),
        ]
        for function in (self._linear, self._inputs, self._outputs, self._layer):
            function.restype = None

    def linear(self, x: Tensor, weight: PackedWeight) -> Tensor:
        """`x [..., k]` times the matrix, `[..., n]`."""
        y = x.new_empty(*x.shape[:-1], weight.n)
        x = pad(x, (0, weight.padding)) if weight.padding else x.contiguous()
        self._linear(
            ctypes.byref(weight.struct),
            _TYPES[x.dtype],
            x.data_ptr(),
            x.shape[:-1].numel(),
            y.data_ptr(),
            torch.get_num_threads(),
        )
        return y

    def attention_inputs(
        self, layer: LayerWeights, x: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Norm, projections and rotation of `x [seqs, rows, hidden]`.

        Args:
            cos, sin: `[seqs or 1, rows, rotated dims]`.

        Returns:
            Queries `[seqs, heads, rows, head_dim]` in float32, and keys and values.
        """
        x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
        seqs, rows, _ = x.shape
        q = torch.empty(seqs, layer.heads, rows, layer.head_dim)
        k = x.new_empty(seqs, layer.kv_heads, rows, layer.head_dim)
        v = torch.empty_like(k)
        self._inputs(
            ctypes.byref(layer.struct),
            _TYPES[x.dtype],
            *(x.data_ptr(), cos.data_ptr(), sin.data_ptr()),
            *(cos.shape[0], cos.shape[2], seqs, rows),
            q.data_ptr(),
            *(ctypes.byref(_Strided.of(k)), ctypes.byref(_Strided.of(v))),
            torch.get_num_threads(),
        )
        return q, k, v

    def attention_outputs(
        self,
        layer: LayerWeights,
        x: Tensor,
        q: Tensor,
        *,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Attention, the feed-forward block and both residuals; the layer's output, as `x`.

        Args:
            keys, values: `[seqs, kv_heads, context, head_dim]`, the last dimension contiguous.
            mask: bool `[seqs or 1, rows, context]`, true where a row sees a slot; each sees one.
        """
        x, mask = x.contiguous(), mask.contiguous()
        seqs, rows, _ = x.shape
        y = torch.empty_like(x)
        self._outputs(
            ctypes.byref(layer.struct),
            _TYPES[x.dtype],
            *(x.data_ptr(), q.data_ptr()),
            *(ctypes.byref(_Strided.of(keys)), ctypes.byref(_Strided.of(values))),
            *(mask.data_ptr(), mask.shape[0], seqs, rows, mask.shape[2]),
            *(y.data_ptr(), torch.get_num_threads()),
        )
        return y

    def layer(
        self,
        layer: LayerWeights,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        *,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Both halves in one call; see `attention_inputs` and `attention_outputs`.

        Args:
            keys, values: the rows' own are written into the last slots.
        """
        x, cos, sin, mask = x.contiguous(), cos.contiguous(), sin.contiguous(), mask.contiguous()
        seqs, rows, _ = x.shape
        y = torch.empty_like(x)
        self._layer(
            ctypes.byref(layer.struct),
            _TYPES[x.dtype],
            *(x.data_ptr(), cos.data_ptr(), sin.data_ptr(), cos.shape[0], cos.shape[2]),
            *(ctypes.byref(_Strided.of(keys)), ctypes.byref(_Strided.of(values))),
            *(mask.data_ptr(), mask.shape[0], seqs, rows, mask.shape[2]),
            *(y.data_ptr(), torch.get_num_threads()),
        )
        return y


@functools.cache
def load_kernels() -> Kernels:
    """The kernels, compiled on first use.

    Raises:
        NativeError: they are switched off, cannot be compiled or cannot be loaded here.
    """
    if os.environ.get(SWITCH) == "0":
        raise NativeError(f"{SWITCH}=0 switches the compiled kernels off")
    return Kernels(built_library())


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
