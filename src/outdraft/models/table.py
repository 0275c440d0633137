"""A tiny fake target, for tests of everything that is not a model.

Its logits depend on every token a row may see and on how far back it stands, so a wrong mask, a
wrong position or a wrongly moved cache entry changes the text, as it would with a real model.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Self

import torch
from torch import Tensor

from outdraft.errors import CacheError
from outdraft.interfaces import KVCache, TargetModel
from outdraft.types import Rows


class TableTarget(TargetModel):
    """Logits are a sum over visible tokens of a random table's rows, fading with distance.

    Args:
        vocab_size: small, so that guesses are often right.
        fade: how fast far tokens lose influence; near 0 only the last token counts.
    """

    def __init__(
        self, vocab_size: int = 16, *, max_context: int = 4096, fade: float = 0.5, seed: int = 0
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.device = torch.device("cpu")
        self._fade = fade
        self._table = 3.0 * torch.randn(
            vocab_size, vocab_size, generator=generator, dtype=torch.float64
        )

    def new_cache(self) -> TableCache:
        return TableCache()

    def forward(
        self, rows: Rows, cache: KVCache, *, first_seq: int = 0, logits_to_keep: int = 0
    ) -> Tensor:
        if not isinstance(cache, TableCache):
            raise CacheError(f"a table target needs its own cache, not a {type(cache).__name__}")
        cache.begin_pass(first_seq, rows.num_seqs)
        logits = torch.zeros(rows.num_seqs, rows.num_rows, self.vocab_size, dtype=torch.float64)
        for i in range(rows.num_seqs):
            token_ids, positions = rows.token_ids[i].tolist(), rows.position_ids[i].tolist()
            cache.take(first_seq + i, list(zip(token_ids, positions, strict=True)))
            committed = cache.entries[first_seq + i]
            for row in range(rows.num_rows):
                seen = [(token_ids[j], positions[j]) for j in _where(rows.ancestors[i, row])]
                for token_id, position in [*committed, *seen]:
                    weight = self._fade ** (positions[row] - position)
                    logits[i, row] += weight * self._table[token_id]
        return logits[:, -logits_to_keep:]


class TableCache(KVCache):
    """Remembers (token, position) pairs: the plainest cache that can be committed to."""

    def __init__(self) -> None:
        self.entries: list[list[tuple[int, int]]] = []
        self._rows: dict[int, list[tuple[int, int]]] = {}

    @property
    def committed_lens(self) -> tuple[int, ...]:
        return tuple(len(entries) for entries in self.entries)

    def add(self) -> int:
        self.entries.append([])
        return len(self.entries) - 1

    def add_from(self, source: Self, seq_idx: int, length: int) -> int:
        source.check_beginning(seq_idx, length)
        self.entries.append(source.entries[seq_idx][:length])
        return len(self.entries) - 1

    def remove(self, seq_idx: int) -> None:
        self.entries[seq_idx] = self.entries[-1]
        self.entries.pop()
        self._rows.clear()

    def begin_pass(self, first_seq: int, num_seqs: int) -> None:
        """From now on only the rows of this pass can be committed."""
        self.check_seqs(first_seq, num_seqs)
        self._rows.clear()

    def take(self, seq_idx: int, rows: list[tuple[int, int]]) -> None:
        """Notes the rows of the pass in flight."""
        self._rows[seq_idx] = rows

    def commit(self, seq_idx: int, path: Seq[int]) -> None:
        if seq_idx not in self._rows:
            raise CacheError(f"commit of sequence {seq_idx}, but the last pass did not read it")
        rows = self._rows[seq_idx]
        self.check_path(path, len(rows))
        self.entries[seq_idx].extend(rows[row] for row in path)
        del self._rows[seq_idx]


def _where(mask: Tensor) -> list[int]:
    return [int(index) for index in mask.nonzero()[:, 0]]
