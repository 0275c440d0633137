"""Tiny random models as files: a folder as `save_pretrained` writes it, and a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

VOCAB = 280  # the 256 bytes, some merges, some special tokens
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def tiny_llama(**changes: Any) -> LlamaForCausalLM:
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return LlamaForCausalLM(LlamaConfig(**{**sizes, **changes}))


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    words = {word: index for index, word in enumerate([*SPECIAL, "hello", "world", "<unk>"])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", eos_token="<|im_end|>"
    )


def save_folder(folder: Path, **changes: Any) -> Path:
    """A tiny Llama with its tokenizer; `changes` go into config.json afterwards."""
    bars = logging.set_tqdm_hook(lambda bar, args, options: bar(*args, **options, disable=True))
    tiny_llama().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    logging.set_tqdm_hook(bars)
    edit_json(folder / "config.json", **changes)
    return folder


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def write_gguf(path: Path, *, architecture: str = "llama", with_tokenizer: bool = True) -> Path:
    """A tiny Llama of float32 numbers, with a byte-level tokenizer."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    if with_tokenizer:
        _add_tokenizer(writer)
    rng = np.random.default_rng(5)
    for name, shape in _gguf_tensors().items():
        writer.add_tensor(name, rng.standard_normal(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_embedding(path: Path) -> torch.Tensor:
    """The numbers of the embedding, read without transformers."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    return torch.tensor(np.array(tensors["token_embd.weight"].data)).reshape(VOCAB, 32)


def _gguf_tensors() -> dict[str, tuple[int, ...]]:
    return {
        "token_embd.weight": (VOCAB, 32),
        "output_norm.weight": (32,),
        "blk.0.attn_norm.weight": (32,),
        "blk.0.attn_q.weight": (32, 32),
        "blk.0.attn_k.weight": (16, 32),
        "blk.0.attn_v.weight": (16, 32),
        "blk.0.attn_output.weight": (32, 32),
        "blk.0.ffn_norm.weight": (32,),
        "blk.0.ffn_gate.weight": (32, 32),
        "blk.0.ffn_up.weight": (32, 32),
        "blk.0.ffn_down.weight": (32, 32),
    }


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w"]
    tokens = [*SPECIAL, *alphabet, *(merge.replace(" ", "") for merge in merges)]
    unused = [f"<unused{index}>" for index in range(VOCAB - len(tokens))]
    types = [gguf.TokenType.CONTROL] * len(SPECIAL)
    types += [gguf.TokenType.NORMAL] * (len(tokens) - len(SPECIAL))
    types += [gguf.TokenType.UNUSED] * len(unused)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*tokens, *unused])
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
