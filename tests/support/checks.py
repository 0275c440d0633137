"""Things to check: letters to show, and targets whose logits somebody reworks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from outdraft.generate import Outdraft
from outdraft.interfaces import KVCache, TargetModel
from outdraft.models.table import TableCache, TableTarget
from outdraft.sequence import Decode
from outdraft.types import Rows
from support.toys import EOS, LetterTokenizer, decode_letters

PROMPTS = ["abcabcabc", "ddd", "efgefg", "hijklmnohijk"]


class Letters(LetterTokenizer):
    """Shows single tokens, the special one included."""

    def decode(self, token_ids: Seq[int], *, skip_special_tokens: bool, **options: Any) -> str:
        if not skip_special_tokens:
            return f"<{token_ids[0]}>"
        return super().decode(token_ids, skip_special_tokens=True, **options)


def make_llm(target: TargetModel, **options: Any) -> Outdraft:
    decode: Decode = options.pop("decode", decode_letters)
    return Outdraft(target, Letters(decode=decode), **{"eos_ids": [EOS], **options})


class Reworked(TargetModel):
    """A table target whose logits somebody reworks."""

    def __init__(self, rework: Callable[[Tensor, Rows], Tensor], **options: Any) -> None:
        self._table = TableTarget(vocab_size=16, **options)
        self._rework = rework
        self.vocab_size = self._table.vocab_size
        self.max_context = self._table.max_context
        self.device = self._table.device

    def new_cache(self) -> TableCache:
        return self._table.new_cache()

    def forward(
        self, rows: Rows, cache: KVCache, *, first_seq: int = 0, logits_to_keep: int = 0
    ) -> Tensor:
        logits = self._table.forward(
            rows, cache, first_seq=first_seq, logits_to_keep=logits_to_keep
        )
        return self._rework(logits, rows)


def tied(step: float, dtype: torch.dtype) -> Callable[[Tensor, Rows], Tensor]:
    """Two leading tokens whose logits are equal, but for a step up for one in wide passes.

    Rounding does no more: rows that are read together come out a step of the format away.
    """

    def rework(logits: Tensor, rows: Rows) -> Tensor:
        logits = 0.01 * logits
        logits[..., [3, 7]] = 8.0
        if rows.num_rows > 1:
            logits[..., 7] += step
        return logits.to(dtype)

    return rework


def nan_in_wide_passes(logits: Tensor, rows: Rows) -> Tensor:
    """No numbers in the passes of drafted steps; prompts and plain steps are as they were."""
    return logits * math.nan if rows.num_rows in range(2, 17) else logits
