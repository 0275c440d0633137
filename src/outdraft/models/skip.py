"""The same model with some of its decoder layers left out.

The weights are shared, and the model given is not touched: the modules on the way down to its list
of layers are copied, shallowly, and the copy of the list holds the layers that stay. Each layer
goes on using its own place in the cache.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outdraft.errors import UnsupportedModelError
from outdraft.models.cache import LayerShape
from outdraft.models.piecewise import PiecewiseLM
from outdraft.models.target import CausalLM


class LayerSkippingLM(PiecewiseLM):
    """A target without the layers `skipped`, which neither compute nor cache anything.

    Args:
        skipped: by index, from 0; at least one layer has to stay.

    Raises:
        UnsupportedModelError: no list of layers was found that can be shortened.
    """

    def __init__(self, target: CausalLM, skipped: Collection[int]) -> None:
        self._full = target
        self._skipped = frozenset(skipped)
        super().__init__(_without_layers(target.model, self._skipped))

    def _probe(self) -> tuple[list[LayerShape], int]:
        shapes = list(self._full._shapes)
        for layer in self._skipped:
            # nothing per position, so that the layers behind it keep their places
            shapes[layer] = LayerShape(0, 0, 0, shapes[layer].dtype, shapes[layer].device)
        return shapes, self._full.vocab_size


def first_layers(target: CausalLM, count: int) -> CausalLM:
    """The model without its layers from `count` on: a smaller model that shares the weights.

    Raises:
        UnsupportedModelError: no list of layers was found that can be shortened.
    """
    return CausalLM(_without_layers(target.model, frozenset(range(count, num_layers(target)))))


def num_layers(target: CausalLM) -> int:
    """Decoder layers of a model."""
    return len(_find_layers(target.model)[1])


@torch.inference_mode()
def layer_influence(target: CausalLM, token_ids: list[int]) -> list[float]:
    """How much each layer turns the hidden states of a text: 1 - cosine of its input and output.

    The less it does, the less it is missed ("block influence", Men et al. 2024, ShortGPT).
    """
    _, layers = _find_layers(target.model)
    influence = [0.0] * len(layers)

    def measure(index: int, before: Tensor, after: Any) -> None:
        after = after[0] if isinstance(after, tuple) else after
        cosine = torch.cosine_similarity(before.float(), after.float(), dim=-1)
        influence[index] = 1.0 - float(cosine.mean())

    handles = [
        layer.register_forward_hook(
            lambda _module, args, named, output, index=index: measure(
                index, args[0] if args else named["hidden_states"], output
            ),
            with_kwargs=True,
        )
        for index, layer in enumerate(layers)
    ]
    try:
        target.model(input_ids=torch.tensor([token_ids], device=target.device), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return influence


def _find_layers(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """The list of decoder layers and its name."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for name, module in model.named_modules():
        if (
            isinstance(module, nn.ModuleList)
            and len(module) == count
            and _are_decoder_layers(module)
        ):
            return name, module
    raise UnsupportedModelError(
        f"{type(model).__name__} keeps its {count} layers in no list that outdraft can find; "
        "choose another drafter"
    )


def _are_decoder_layers(layers: nn.ModuleList) -> bool:
    """Whether each layer knows its place in the cache, which must not depend on the list."""
    return all(
        any(getattr(module, "layer_idx", None) == index for module in layer.modules())
        for index, layer in enumerate(layers)
    )


def _without_layers(model: PreTrainedModel, skipped: frozenset[int]) -> PreTrainedModel:
    name, layers = _find_layers(model)
    kept = [index for index in range(len(layers)) if index not in skipped]
    shorter: nn.Module = nn.ModuleList(layers[index] for index in kept)
    path = name.split(".")
    for depth in reversed(range(len(path))):
        parent = _copied(model.get_submodule(".".join(path[:depth])), kept)
        parent._modules[path[depth]] = shorter
        shorter = parent
    assert isinstance(shorter, PreTrainedModel)  # the root of the path is the model
    return shorter


def _copied(module: nn.Module, kept: list[int]) -> nn.Module:
    if "forward" in vars(module):
        raise UnsupportedModelError(
            f"the forward call of {type(module).__name__} is wrapped (device_map or hooks), and "
            "would run all layers; load the model on one device, or choose another drafter"
        )
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    if hasattr(module, "config"):
        copied.config = _shortened(module.config, kept)
    return copied


def _shortened(config: Any, kept: list[int]) -> Any:
    """The config of a model that has these layers only."""
    text_config = config.get_text_config(decoder=True)
    if text_config is not config:
        shorter = copy.copy(config)
        for name, value in vars(config).items():
            if value is text_config:
                setattr(shorter, name, _shortened(text_config, kept))
        return shorter
    shorter = copy.copy(config)
    for name, value in vars(config).items():
        if isinstance(value, list) and len(value) == config.num_hidden_layers:
            setattr(shorter, name, [value[index] for index in kept])
    shorter.num_hidden_layers = len(kept)
    return shorter
