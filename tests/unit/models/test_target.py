"""What is special to `CausalLM`; the contract of all targets is in `tests/contract`."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

from outdraft.errors import CacheError, ModelError, UnsupportedModelError
from outdraft.models.table import TableCache
from outdraft.models.target import CausalLM
from outdraft.types import Rows
from support.tiny_models import CONTEXT, VOCAB, WINDOW, tiny_model, tiny_target

CPU = torch.device("cpu")


def llama(attention: str = "sdpa", **config: object) -> LlamaForCausalLM:
    sizes = LlamaConfig(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        **config,
    )
    sizes._attn_implementation = attention
    return LlamaForCausalLM(sizes).eval()


def test_sizes_come_from_the_model() -> None:
    target = tiny_target("llama")
    assert (target.vocab_size, target.max_context, target.device) == (VOCAB, CONTEXT, CPU)


def test_the_vocabulary_is_as_wide_as_the_output() -> None:
    model = llama()
    model.resize_token_embeddings(24)
    assert CausalLM(model).vocab_size == 24


def test_each_layer_type_has_its_own_mask() -> None:
    target = tiny_target("gemma3-mixed")
    cache = target.new_cache()
    cache.add()
    ids = list(range(WINDOW + 4))
    rows = Rows.chain(ids, 0, CPU)
    masks = target._masks(rows, (0,), len(ids))
    assert isinstance(masks, dict)
    assert masks["full_attention"][0, 0, -1].sum() == len(ids)
    assert masks["sliding_attention"][0, 0, -1].sum() == WINDOW
    assert masks["sliding_attention"][0, 0, 2].sum() == 3


@pytest.mark.parametrize(("attention", "dtype"), [("sdpa", torch.bool), ("eager", torch.float64)])
def test_masks_are_of_the_kind_the_attention_takes(attention: str, dtype: torch.dtype) -> None:
    mask = tiny_target("llama", attention)._masks(Rows.chain([1, 2], 0, CPU), (0,), 2)
    assert isinstance(mask, torch.Tensor)
    assert (mask.dtype, tuple(mask.shape)) == (dtype, (1, 1, 2, 2))


def test_a_model_in_training_mode_is_refused() -> None:
    model = llama()
    target = CausalLM(model)
    cache = target.new_cache()
    cache.add()
    model.train()
    with pytest.raises(ModelError, match="eval"):
        target.forward(Rows.chain([1], 0, CPU), cache)


def test_a_cache_of_another_target_is_refused() -> None:
    with pytest.raises(CacheError, match="TableCache"):
        tiny_target("llama").forward(Rows.chain([1], 0, CPU), TableCache())


def test_an_attention_that_takes_no_mask_is_refused_with_the_way_out() -> None:
    model = llama()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(
        UnsupportedModelError, match=r'flash_attention_2.*attn_implementation="sdpa"'
    ):
        CausalLM(model)


def test_a_recurrent_model_is_refused() -> None:
    config = MambaConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, state_size=2)
    with pytest.raises(UnsupportedModelError, match="mamba"):
        CausalLM(MambaForCausalLM(config).eval())


def test_a_model_without_a_context_limit_has_a_huge_one() -> None:
    model = llama()
    model.config.max_position_embeddings = 0  # as a config that names none
    assert CausalLM(model).max_context >= 2**30


def test_a_model_that_takes_no_explicit_mask_is_refused() -> None:
    config = BloomConfig(vocab_size=20, hidden_size=8, n_layer=1, n_head=2)
    with pytest.raises(UnsupportedModelError, match="BloomForCausalLM takes no explicit"):
        CausalLM(BloomForCausalLM(config).eval())


def test_nothing_is_hung_on_the_model() -> None:
    model = tiny_model("llama")
    before = set(vars(model))
    target = CausalLM(model)
    cache = target.new_cache()
    cache.add()
    target.forward(Rows.chain([1, 2, 3], 0, CPU), cache)
    assert set(vars(model)) == before


def test_no_graph_is_kept() -> None:
    target = tiny_target("llama")
    cache = target.new_cache()
    cache.add()
    assert not target.forward(Rows.chain([1, 2], 0, CPU), cache).requires_grad
