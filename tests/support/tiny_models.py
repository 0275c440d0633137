"""Tiny random models of many architectures: varied texts in milliseconds, in exact arithmetic.

Weights are drawn wide, so that the likeliest token changes from place to place, and everything is
float64, so that a k-row pass and k one-row passes never disagree by rounding. Windows are so small
that every text of the tests passes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from outdraft.models.target import CausalLM

VOCAB = 56
WINDOW = 8
CONTEXT = 96
ATTENTION = ("eager", "sdpa")

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.5,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_SIZES_GPT2: dict[str, Any] = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_inner": 48,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": CONTEXT,
    "initializer_range": 0.5,
    "bos_token_id": None,
    "eos_token_id": None,
}
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
_MIXED_SIZES: dict[str, Any] = {
    **_SIZES,
    "num_hidden_layers": 3,
    "sliding_window": WINDOW,
    "layer_types": _MIXED,
}
_NEOX_SIZES = {name: size for name, size in _SIZES.items() if name != "num_key_value_heads"}

_MAKERS: dict[str, tuple[type[PreTrainedModel], Callable[[], Any]]] = {
    "llama": (LlamaForCausalLM, lambda: LlamaConfig(**_SIZES)),
    "mistral-window": (
        MistralForCausalLM,
        lambda: MistralConfig(**_SIZES, sliding_window=WINDOW),
    ),
    "gemma3-mixed": (
        Gemma3ForCausalLM,
        lambda: Gemma3TextConfig(
            **_MIXED_SIZES, head_dim=8, query_pre_attn_scalar=8, tie_word_embeddings=False
        ),
    ),
    "qwen2": (Qwen2ForCausalLM, lambda: Qwen2Config(**_SIZES)),
    "qwen2-mixed": (
        Qwen2ForCausalLM,
        lambda: Qwen2Config(**_MIXED_SIZES, use_sliding_window=True),
    ),
    "qwen3": (Qwen3ForCausalLM, lambda: Qwen3Config(**_SIZES, head_dim=8)),
    "gpt2": (GPT2LMHeadModel, lambda: GPT2Config(**_SIZES_GPT2)),
    "gpt-neox": (GPTNeoXForCausalLM, lambda: GPTNeoXConfig(**_NEOX_SIZES)),
    "phi3": (Phi3ForCausalLM, lambda: Phi3Config(**_SIZES)),
    "olmo2": (Olmo2ForCausalLM, lambda: Olmo2Config(**_SIZES)),
}

MODELS = tuple(_MAKERS)
WINDOWED = ("mistral-window", "gemma3-mixed", "qwen2-mixed")


@cache
def tiny_model(
    name: str, attention: str = "sdpa", dtype: torch.dtype = torch.float64
) -> PreTrainedModel:
    """The random model of that name; the same weights for every attention and dtype."""
    model_class, make_config = _MAKERS[name]
    config = make_config()
    config._attn_implementation = attention
    with torch.random.fork_rng():
        torch.manual_seed(MODELS.index(name))
        return model_class(config).eval().to(dtype)


@cache
def tiny_target(name: str, attention: str = "sdpa", dtype: torch.dtype = torch.float64) -> CausalLM:
    return CausalLM(tiny_model(name, attention, dtype))
