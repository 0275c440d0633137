from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outdraft.errors import UnsupportedModelError
from outdraft.models.skip import LayerSkippingLM, layer_influence, num_layers
from outdraft.models.target import CausalLM
from outdraft.types import Rows
from support.tiny_models import MODELS, tiny_model as shared_model

# Models of this file's own: others' calls leave hooks of transformers on the shared ones.
tiny_model = shared_model.__wrapped__

CPU = torch.device("cpu")
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]


def tiny_target(name: str) -> CausalLM:
    return CausalLM(tiny_model(name))


def read(model: CausalLM) -> Tensor:
    cache = model.new_cache()
    cache.add()
    return model.forward(Rows.chain(TEXT, 0, CPU), cache)[0]


def layers_of(model: Any) -> nn.ModuleList:
    """Written down apart from the code under test: where these families keep their layers."""
    inner = getattr(model, model.base_model_prefix)
    return inner.h if hasattr(inner, "h") else inner.layers


def read_with_layers_bypassed(target: CausalLM, skipped: list[int]) -> Tensor:
    """The whole model, in which these layers run and what they say is thrown away."""

    def bypass(_module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return (args[0], *output[1:]) if isinstance(output, tuple) else args[0]

    layers = layers_of(target.model)
    handles = [layers[layer].register_forward_hook(bypass) for layer in skipped]
    logits = target.model(input_ids=torch.tensor([TEXT])).logits[0]
    for handle in handles:
        handle.remove()
    return logits


@pytest.mark.parametrize("name", MODELS)
def test_the_other_layers_compute_as_if_the_skipped_ones_did_nothing(name: str) -> None:
    target = tiny_target(name)
    for layer in range(num_layers(target)):
        found = read(LayerSkippingLM(target, [layer]))
        expected = read_with_layers_bypassed(target, [layer])
        torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-9)
        assert not torch.allclose(found, read(target), atol=1e-3)


def test_several_layers_of_different_types_may_go() -> None:
    target = tiny_target("gemma3-mixed")
    for skipped in ([0, 1], [0, 2], [1, 2]):
        found = read(LayerSkippingLM(target, skipped))
        expected = read_with_layers_bypassed(target, skipped)
        torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_the_target_stays_as_it_is(name: str) -> None:
    target = tiny_target(name)
    model, before = target.model, read(target)
    variables, config = dict(vars(model)), model.config.to_dict()
    read(LayerSkippingLM(target, [0]))
    assert dict(vars(model)) == variables
    assert model.config.to_dict() == config
    assert len(layers_of(model)) == num_layers(target)
    assert torch.equal(read(target), before)


def test_the_weights_are_the_targets_own() -> None:
    target = tiny_target("llama")
    own = {parameter.data_ptr() for parameter in target.model.parameters()}
    shorter = LayerSkippingLM(target, [1])
    assert own.issuperset(parameter.data_ptr() for parameter in shorter.model.parameters())


def test_skipped_layers_cache_nothing() -> None:
    target = tiny_target("gemma3-mixed")
    sizes = []
    for skipped in ([0], [0, 1]):
        model = LayerSkippingLM(target, skipped)
        cache = model.new_cache()
        cache.add()
        model.forward(Rows.chain(TEXT, 0, CPU), cache)
        sizes.append(cache.num_bytes)
    assert sizes[0] == 2 * sizes[1] > 0


def test_a_wrapped_forward_call_is_refused() -> None:
    model = tiny_model("llama")
    inner = model.model
    inner.forward = inner.forward  # as accelerate's hooks do
    try:
        with pytest.raises(UnsupportedModelError, match="LlamaModel is wrapped"):
            LayerSkippingLM(CausalLM(model), [0])
    finally:
        del inner.forward


def test_layers_that_cannot_be_found_are_an_error_with_their_number() -> None:
    target = tiny_target("llama")
    target.model.config.num_hidden_layers = 7
    try:
        with pytest.raises(UnsupportedModelError, match="keeps its 7 layers in no list"):
            num_layers(target)
    finally:
        target.model.config.num_hidden_layers = 2


@pytest.mark.parametrize("name", ["gemma3-mixed", "gpt2", "gpt-neox"])
def test_a_layer_that_does_nothing_has_no_influence(name: str) -> None:
    target = tiny_target(name)
    last = num_layers(target) - 1
    handle = layers_of(target.model)[last].register_forward_hook(
        lambda _module, args, _out: args[0]
    )
    influence = layer_influence(target, TEXT)
    handle.remove()
    assert influence[last] == pytest.approx(0.0, abs=1e-6)
    assert min(influence[:last]) > 1e-3


def test_measuring_leaves_no_hooks_behind() -> None:
    target = tiny_target("llama")
    layer_influence(target, TEXT)
    assert not any(layer._forward_hooks for layer in layers_of(target.model))
