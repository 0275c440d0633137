"""Tokenizers that cut the same text differently, and a model that knows a text by heart."""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from outdraft.interfaces import KVCache, TargetModel
from outdraft.models.table import TableCache
from outdraft.types import Rows

STORY = """\
The ferry to the island leaves at seven in the morning and comes back before dark. Most of the
people who live there work on the mainland, and on stormy days nobody goes to work. The school has
nineteen children and one teacher, who also runs the library. "Naïve?" she says. "No: brave! 🙂"
In winter the wind blows the sand over the road, and the road is cleared by whoever comes first.
"""
END = "<end>"


@cache
def byte_level(vocab: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE with `vocab` tokens, trained on the story; more tokens are longer tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END],
        show_progress=False,
    )
    backend.train_from_iterator([STORY], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END)


@cache
def metaspace(vocab: int) -> PreTrainedTokenizerFast:
    """BPE that writes spaces as part of words, with a token that begins every text."""
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    backend.train_from_iterator([STORY.replace("🙂", "").replace("ï", "")], trainer)
    # Bytes are ordinary tokens in such tokenizers; the trainer knows no other way to add them.
    parts = json.loads(backend.to_str())
    parts["added_tokens"] = [t for t in parts["added_tokens"] if not t["content"].startswith("<0x")]
    backend = Tokenizer.from_str(json.dumps(parts))
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


class Reciter(TargetModel):
    """Goes on with the story wherever the text stands in it, in tokens of its tokenizer.

    Args:
        confidence: how far the logit of the right token stands above all others.
    """

    def __init__(self, tokenizer: Any, *, confidence: float = 6.0, max_context: int = 4096) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = len(tokenizer)
        self.max_context = max_context
        self.device = torch.device("cpu")
        self._confidence = confidence

    def new_cache(self) -> TableCache:
        return TableCache()

    def forward(
        self, rows: Rows, cache: KVCache, *, first_seq: int = 0, logits_to_keep: int = 0
    ) -> Tensor:
        assert isinstance(cache, TableCache)
        logits = torch.zeros(rows.num_seqs, rows.num_rows, self.vocab_size, dtype=torch.float64)
        for seq in range(rows.num_seqs):
            token_ids, positions = rows.token_ids[seq].tolist(), rows.position_ids[seq].tolist()
            cache.take(first_seq + seq, list(zip(token_ids, positions, strict=True)))
            committed = [token_id for token_id, _ in cache.entries[first_seq + seq]]
            for row in range(rows.num_rows):
                seen = [token_ids[j] for j in range(rows.num_rows) if rows.ancestors[seq, row, j]]
                logits[seq, row, self._next([*committed, *seen])] += self._confidence
        return logits[:, -logits_to_keep:]

    def _next(self, token_ids: Seq[int]) -> int:
        return _next_of_story(self.tokenizer, tuple(token_ids[-30:]))


@cache
def _next_of_story(tokenizer: Any, token_ids: tuple[int, ...]) -> int:
    text = tokenizer.decode(token_ids, skip_special_tokens=True)
    whole = text.rstrip("\ufffd")[-20:]
    place = STORY.find(whole) + len(whole)
    rest = STORY[place : place + 20]
    if whole not in STORY or not rest:
        return int(tokenizer.eos_token_id)
    num_unfinished = len(text) - len(text.rstrip("\ufffd"))
    for before in (whole, "\n"):  # as it goes on, or from inside a token
        head = tokenizer(before, add_special_tokens=False)["input_ids"]
        full = tokenizer(before + rest, add_special_tokens=False)["input_ids"]
        if full[: len(head)] == head:
            return int(full[min(len(head) + num_unfinished, len(full) - 1)])
    return int(tokenizer.eos_token_id)
