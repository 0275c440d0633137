"""Prepares a loaded model for the machine it is on: the same function, laid out for speed.

Three roads, in this order, each module by the first that fits it:

    fused layers     decoder layers of the Llama kind, whole, in the compiled kernels
    packed linears   any other linear layer and the output head: compiled kernels, or oneDNN where
                     none can be compiled
    fused norms      RMSNorm in one call of torch

Every replacement is compared with the module it replaces, on numbers, before it takes its place.
Weights move: what a replacement has taken is freed in the original, so that memory stays the same,
and `Packing.undo` moves it back.
"""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.pytorch_utils import Conv1D

from outdraft.errors import NativeError, SettingsError
from outdraft.models.fused import can_fuse, eps_of, fuse, linears_of, unpacked_weights
from outdraft.models.native import Kernels, load_kernels
from outdraft.models.onednn import OneDnnLinear, can_pack
from outdraft.models.packed import FusedLayer, FusedRMSNorm, PackedEmbedding, PackedLinear
from outdraft.models.quantize import Pack, packed, quantized_int8

QUANTIZATIONS = ("int8",)
_DTYPES = (torch.float32, torch.bfloat16)
# Size of the difference from the original's output, as a share of the output's own.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.03}
_INT8_TOLERANCE = 0.1
_TEST_ROWS = 5


class PackingWarning(UserWarning):
    """A module was left as it is, because its replacement computes something else."""


@dataclass
class Packing:
    """What was done to a model, and how to take it back.

    Args:
        road: what computes the linear layers.
        why_slow: why the compiled kernels are not used; empty if they are.
    """

    road: str
    why_slow: str = ""
    layers: int = 0
    linears: int = 0
    norms: int = 0
    _undo: list[Callable[[], None]] = field(default_factory=list)

    def __str__(self) -> str:
        counts = {"layer": self.layers, "linear": self.linears, "norm": self.norms}
        done = [f"{n} {kind}{'s' * (n != 1)}" for kind, n in counts.items() if n]
        line = f"{self.road}: {', '.join(done) or 'nothing to replace'}"
        return f"{line} ({self.why_slow})" if self.why_slow else line

    def did(self, what: Literal["layers", "linears", "norms"], undo: Callable[[], None]) -> None:
        """Counts a replacement."""
        setattr(self, what, getattr(self, what) + 1)
        self._undo.append(undo)

    def undo(self) -> None:
        """Puts the original modules back, and the weights into them."""
        while self._undo:
            self._undo.pop()()
        self.layers = self.linears = self.norms = 0


@torch.no_grad()
def pack(model: PreTrainedModel, quantize: str | None = None) -> Packing:
    """Prepares a model on a CPU, in place; what does not help there or elsewhere is left alone.

    Args:
        quantize: `"int8"` rounds the weights of linear layers, which makes it another model.

    Raises:
        SettingsError: it cannot be quantised like that here.
    """
    if quantize is not None and quantize not in QUANTIZATIONS:
        raise SettingsError(f"quantize={quantize!r} is none of {', '.join(QUANTIZATIONS)}")
    if model.device.type != "cpu" or model.dtype not in _DTYPES:
        if quantize is not None:
            raise SettingsError(
                f"quantize={quantize!r} is for float32 and bfloat16 models on the CPU; this one is "
                f"{str(model.dtype).removeprefix('torch.')} on {model.device}"
            )
        return Packing("as loaded", f"{model.dtype} on {model.device} is not packed")
    try:
        kernels = load_kernels()
    except NativeError as error:
        if quantize is not None:
            raise SettingsError(
                f"quantize={quantize!r} needs the compiled kernels: {error}"
            ) from error
        return _pack_with_onednn(model, str(error))
    return _Packer(model, kernels, quantize).run()


class _Packer:
    """Replaces what the compiled kernels can compute."""

    def __init__(self, model: PreTrainedModel, kernels: Kernels, quantize: str | None) -> None:
        self._model = model
        self._kernels = kernels
        self._pack: Pack = packed if quantize is None else quantized_int8
        self._tolerance = _TOLERANCE[model.dtype] if quantize is None else _INT8_TOLERANCE
        self._packing = Packing(f"compiled kernels, {quantize or _name(model.dtype)}")

    def run(self) -> Packing:
        for place, layer in _places(self._model, nn.Module):
            if can_fuse(layer):
                self._fuse(place, layer)
        for place, linear in _places(self._model, nn.Linear, Conv1D):
            self._pack_linear(place, linear)
        _fuse_norms(self._model, self._packing)
        _give_back_memory()
        return self._packing

    def _fuse(self, place: _Place, layer: Any) -> None:
        rotary = getattr(self._model.get_submodule(place.grandparent), "rotary_emb", None)
        if rotary is None:
            return
        fused = fuse(self._kernels, layer, self._pack)
        if not _agree(_outputs(layer, fused, rotary), self._tolerance, layer):
            return
        linears = linears_of(layer)
        _free(linears)
        place.put(fused)

        def undo() -> None:
            for linear, weight in zip(linears, unpacked_weights(fused.weights), strict=True):
                linear.weight.data = weight
            place.put(layer)

        self._packing.did("layers", undo)

    def _pack_linear(self, place: _Place, linear: Any) -> None:
        is_conv = isinstance(linear, Conv1D)
        weight = linear.weight.T if is_conv else linear.weight
        ours = PackedLinear(self._kernels, self._pack(weight, linear.bias))
        x = _noise(1, _TEST_ROWS, weight.shape[1], dtype=self._model.dtype)
        if not _agree((linear(x), ours(x)), self._tolerance, linear):
            return
        embeddings = _embeddings_on(self._model, linear.weight)
        _free([linear])
        place.put(ours)
        for embedding_place, embedding in embeddings:
            embedding_place.put(PackedEmbedding(ours.packed, embedding.weight.dtype))

        def undo() -> None:
            weight = ours.packed.unpacked()
            linear.weight.data = weight.T.contiguous() if is_conv else weight
            place.put(linear)
            for embedding_place, embedding in embeddings:
                embedding.weight.data = linear.weight.data
                embedding_place.put(embedding)

        self._packing.did("linears", undo)


def _pack_with_onednn(model: PreTrainedModel, why_slow: str) -> Packing:
    if not can_pack(model.dtype):
        return Packing("as loaded", why_slow)
    packing = Packing(f"oneDNN, {_name(model.dtype)}", why_slow)
    for place, linear in _places(model, nn.Linear):
        _use_onednn(model, place, linear, packing)
    _fuse_norms(model, packing)
    _give_back_memory()
    return packing


def _use_onednn(model: PreTrainedModel, place: _Place, linear: Any, packing: Packing) -> None:
    ours = OneDnnLinear(linear)
    x = _noise(1, _TEST_ROWS, linear.in_features, dtype=model.dtype)
    if not _agree((linear(x), ours(x)), _TOLERANCE[model.dtype], linear):
        return
    is_free = not _embeddings_on(model, linear.weight)
    if is_free:
        _free([linear])
    place.put(ours)

    def undo() -> None:
        if is_free:
            linear.weight.data = ours.unpacked()
        place.put(linear)

    packing.did("linears", undo)


def _fuse_norms(model: PreTrainedModel, packing: Packing) -> None:
    for place, norm in _places(model, nn.Module):
        eps = eps_of(norm)
        if eps is None:
            continue
        ours = FusedRMSNorm(norm.weight, eps)
        x = _noise(1, _TEST_ROWS, norm.weight.numel(), dtype=model.dtype)
        # Some kinds scale by 1 + weight, or round elsewhere: they are left alone, without a word.
        difference = _difference(norm(x), ours(x))
        if difference <= _TOLERANCE[model.dtype]:
            place.put(ours)
            packing.did("norms", partial(place.put, norm))


# --- where modules are ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """A module's name in its model, where another one can be put."""

    root: nn.Module
    name: str

    @property
    def grandparent(self) -> str:
        """What holds the list that a layer is in."""
        return ".".join(self.name.split(".")[:-2])

    def put(self, module: nn.Module) -> None:
        parent, _, child = self.name.rpartition(".")
        self.root.get_submodule(parent)._modules[child] = module


def _places(model: nn.Module, *kinds: type[nn.Module]) -> list[tuple[_Place, Any]]:
    """The modules of exactly these kinds, or with `nn.Module` of any; the model itself is none."""
    return [
        (_Place(model, name), module)
        for name, module in model.named_modules()
        if name and (nn.Module in kinds or type(module) in kinds)
    ]


def _embeddings_on(model: nn.Module, weight: Tensor) -> list[tuple[_Place, nn.Embedding]]:
    """Embeddings that share this very weight ("tied")."""
    return [place for place in _places(model, nn.Embedding) if place[1].weight is weight]


def _free(linears: list[nn.Linear]) -> None:
    for linear in linears:
        linear.weight.data = linear.weight.new_empty(0)


def _give_back_memory() -> None:
    """Has the C library return what was freed to the system; glibc keeps it otherwise."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


# --- whether they agree ---------------------------------------------------------------------------


def _outputs(layer: Any, fused: FusedLayer, rotary: Any) -> tuple[Tensor, Tensor]:
    """Both layers' outputs for some rows that see one another as a tree does."""
    dtype, rows = fused.dtype, _TEST_ROWS
    # Small numbers, next to which what the layer adds is large; the norms make them large anyway.
    x = _noise(2, rows, fused.weights.qkv.k, dtype=dtype) * 0.02
    position_ids = torch.tensor([[3, 4, 5, 4, 5], [70, 71, 72, 71, 72]])
    sees = torch.ones(rows, rows, dtype=torch.bool).tril()
    sees[3:, 1:3] = False
    mask = sees.expand(2, 1, rows, rows)
    given = {
        "attention_mask": mask,
        "position_ids": position_ids,
        "position_embeddings": rotary(x, position_ids),
    }
    outputs = []
    for module in (layer, fused):
        output = module(x, **given, cache=DynamicCache(), use_cache=True)
        outputs.append(output[0] if isinstance(output, tuple) else output)
    return outputs[0], outputs[1]


def _agree(outputs: tuple[Tensor, Tensor], tolerance: float, module: nn.Module) -> bool:
    difference = _difference(*outputs)
    if difference <= tolerance:
        return True
    warnings.warn(
        f"a {type(module).__name__} was left as it is: its replacement differs by "
        f"{difference:.1%}, of which rounding explains {tolerance:.1%}",
        PackingWarning,
        stacklevel=2,
    )
    return False


def _difference(theirs: Tensor, ours: Tensor) -> float:
    """How far two outputs are apart, as a share of how large they are (root mean squares)."""
    return float((theirs.double() - ours.double()).norm() / theirs.double().norm())


def _noise(*shape: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator).to(dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
