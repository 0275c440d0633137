"""A packed model computes what it computed before, can be unpacked, and holds nothing twice."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from outdraft.errors import NativeError, SettingsError
from outdraft.models import pack as packing_module
from outdraft.models.pack import PackingWarning, pack
from outdraft.models.packed import FusedLayer, PackedEmbedding, PackedLinear
from outdraft.models.sizes import num_parameters, weight_bytes
from outdraft.models.target import CausalLM
from outdraft.types import Rows
from support.compilers import needs_compiler
from support.tiny_models import MODELS, tiny_model

LLAMAS = ("llama", "mistral-window", "qwen2", "qwen2-mixed", "qwen3")
DTYPES = [torch.float32, torch.bfloat16]

pytestmark = needs_compiler
SIZES: dict[str, Any] = {
    "vocab_size": 56,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
}


def model_of(name: str, dtype: torch.dtype) -> PreTrainedModel:
    return copy.deepcopy(tiny_model(name)).to(dtype)


def tied_llama(dtype: torch.dtype = torch.float32) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)).eval().to(dtype)


def logits(model: PreTrainedModel) -> Tensor:
    """Of a tree behind a context, both past every window."""
    target = CausalLM(model)
    cache = target.new_cache()
    cache.add()
    target.forward(Rows.chain(range(3, 20), 0, target.device), cache)
    cache.commit(0, range(17))
    ancestors = torch.eye(4, dtype=torch.bool)
    ancestors[1:, 0] = ancestors[3, 2] = True
    rows = Rows(
        torch.tensor([[7, 8, 9, 10]]), torch.tensor([[17, 18, 18, 19]]), ancestors[None], (4,)
    )
    return target.forward(rows, cache)


def apart(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm() / one.double().norm())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_the_logits_stay_what_they_were(name: str, dtype: torch.dtype) -> None:
    model = model_of(name, dtype)
    before = logits(model)
    packing = pack(model)
    assert packing.layers == (model.config.num_hidden_layers if name in LLAMAS else 0)
    assert packing.linears >= 1
    # Weights this wide carry rounding from layer to layer.
    assert apart(before, logits(model)) < (1e-5 if dtype == torch.float32 else 0.15)


@pytest.mark.parametrize("name", MODELS)
def test_unpacked_it_is_the_model_it_was(name: str) -> None:
    model = model_of(name, torch.bfloat16)
    modules = [(key, type(module)) for key, module in model.named_modules()]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    packing = pack(model)
    packing.undo()
    assert [(key, type(module)) for key, module in model.named_modules()] == modules
    after = model.state_dict()
    assert after.keys() == state.keys()
    assert all(torch.equal(after[key], state[key]) for key in state)


@pytest.mark.parametrize("name", LLAMAS)
def test_no_weight_is_held_twice(name: str) -> None:
    model = model_of(name, torch.float32)
    target = CausalLM(model)
    numbers, num_bytes = num_parameters(target), weight_bytes(target)
    pack(model)
    # Panels are filled up to 16 outputs, here of 56 (the vocabulary).
    assert numbers <= num_parameters(target) <= numbers + 8 * 32
    assert num_bytes <= weight_bytes(target) <= num_bytes + 8 * 32 * 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tied_embedding_reads_from_the_packed_head(dtype: torch.dtype) -> None:
    model = tied_llama(dtype)
    before, embedding = logits(model), model.model.embed_tokens
    rows = embedding(torch.tensor([[0, 17, 55]]))
    packing = pack(model)
    head, ours = model.lm_head, model.model.embed_tokens
    assert isinstance(head, PackedLinear)
    assert isinstance(ours, PackedEmbedding)
    assert ours.packed is head.packed
    assert torch.equal(ours(torch.tensor([[0, 17, 55]])), rows)
    assert embedding.weight.numel() == 0
    assert apart(before, logits(model)) < (1e-5 if dtype == torch.float32 else 0.05)
    packing.undo()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(logits(model), before)


def test_transformers_still_generates_with_it() -> None:
    model = tied_llama()
    prompt = torch.tensor([[3, 1, 4, 1, 5]])
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    before = model.generate(prompt, **options)
    pack(model)
    assert isinstance(model.model.layers[0], FusedLayer)
    assert torch.equal(model.generate(prompt, **options), before)


class Doubling(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_subclass_of_linear_is_left_alone() -> None:
    model = tied_llama()
    model.model.layers[0].mlp.up_proj.__class__ = Doubling
    before = logits(model)
    assert pack(model).layers == 1
    assert type(model.model.layers[0].mlp.up_proj) is Doubling
    assert apart(before, logits(model)) < 1e-5


def test_a_layer_that_does_something_else_is_left_alone_with_a_warning() -> None:
    model = tied_llama()
    original = type(model.model.layers[1])

    class Halving(original):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any, **kwargs: Any) -> Tensor:
            return super().forward(*args, **kwargs) / 2

    model.model.layers[1].__class__ = Halving
    before = logits(model)
    with pytest.warns(PackingWarning, match=r"Halving was left as it is.* differs by 100"):
        assert pack(model).layers == 1
    assert apart(before, logits(model)) < 1e-5


def test_a_layer_with_more_parts_is_no_llama() -> None:
    model = tied_llama()
    model.model.layers[0].extra = nn.Linear(4, 4)
    assert pack(model).layers == 1


def test_norms_of_another_kind_stay() -> None:
    model = model_of("gemma3-mixed", torch.float32)  # scales by 1 + weight
    assert pack(model).norms == 0


def test_int8_is_another_model_close_by() -> None:
    model = tied_llama()
    before, num_bytes = logits(model), weight_bytes(CausalLM(model))
    packing = pack(model, "int8")
    assert "int8" in str(packing)
    assert 1e-4 < apart(before, logits(model)) < 0.05
    assert weight_bytes(CausalLM(model)) < num_bytes / 2


@pytest.mark.parametrize(
    ("dtype", "quantize", "message"),
    [
        (torch.float32, "int3", "quantize='int3' is none of int8"),
        (torch.float64, "int8", "float32 and bfloat16 models on the CPU; this one is float64"),
    ],
)
def test_what_cannot_be_quantised_is_refused(
    dtype: torch.dtype, quantize: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        pack(tied_llama(dtype), quantize)


def test_float64_is_left_as_it_is() -> None:
    model = tied_llama(torch.float64)
    before = logits(model)
    assert "float64" in str(pack(model))
    assert torch.equal(logits(model), before)


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NativeError("no compiler here")

    monkeypatch.setattr(packing_module, "load_kernels", fail)


@pytest.mark.usefixtures("no_kernels")
def test_without_kernels_onednn_packs_what_is_not_tied() -> None:
    model = tied_llama()
    before = logits(model)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    packing = pack(model)
    assert str(packing) == "oneDNN, float32: 15 linears, 5 norms (no compiler here)"
    assert apart(before, logits(model)) < 1e-5
    packing.undo()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@pytest.mark.usefixtures("no_kernels")
def test_without_kernels_nothing_is_quantised() -> None:
    with pytest.raises(SettingsError, match="needs the compiled kernels: no compiler here"):
        pack(tied_llama(), "int8")
