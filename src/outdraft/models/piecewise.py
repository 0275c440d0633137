"""A pass read in several pieces: later rows see earlier ones before any of them is committed.

A draft model reads its own guesses level by level, and none of them is part of the text yet:

    slot      0 … 4             │  5     6    7  │  8    9  │  10
    holds     committed context │  first piece   │  second  │  third
                                └ committed_lens

`commit` may then choose among the rows of all pieces, as if they had been read in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from torch import Tensor

from outdraft.errors import CacheError
from outdraft.interfaces import KVCache
from outdraft.models.cache import LayerShape, PositionCache, _Pass
from outdraft.models.target import CausalLM
from outdraft.types import Rows


class PiecewiseLM(CausalLM):
    """A causal language model that reads a pass in pieces."""

    def new_cache(self) -> PiecewiseCache:
        return PiecewiseCache(self._shapes)

    def forward(
        self,
        rows: Rows,
        cache: KVCache,
        *,
        first_seq: int = 0,
        logits_to_keep: int = 0,
        num_read: int = 0,
    ) -> Tensor:
        """Reads `rows` on top of what the cache holds; arguments and result as for any target.

        Args:
            num_read: the first rows, which the pieces before have read; above 0, the result is
                about the rest alone.

        Raises:
            CacheError: the pieces before read other sequences, or not so many rows.
        """
        if num_read:
            if not isinstance(cache, PiecewiseCache):
                raise CacheError(f"a {type(cache).__name__} takes no pass in pieces")
            cache.go_on(num_read)
            rows = _Rest.of(rows, num_read)
        return super().forward(rows, cache, first_seq=first_seq, logits_to_keep=logits_to_keep)

    def _masks(
        self, rows: Rows, starts: tuple[int, ...], context: int
    ) -> Tensor | dict[str, Tensor]:
        if not isinstance(rows, _Rest):
            return super()._masks(rows, starts, context)
        masks = super()._masks(rows.whole, starts, context)
        if isinstance(masks, dict):
            return {kind: mask[:, :, -rows.num_rows :] for kind, mask in masks.items()}
        return masks[:, :, -rows.num_rows :]


class PiecewiseCache(PositionCache):
    """A position-addressed cache that takes a pass in pieces and can be taken back."""

    def __init__(self, shapes: Seq[LayerShape]) -> None:
        super().__init__(shapes)
        self._num_read = 0

    @property
    def num_bytes(self) -> int:
        """Memory it has reserved."""
        tensors = [part for store in self._stores.values() for part in (store._keys, store._values)]
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def go_on(self, num_read: int) -> None:
        """Has the next pass continue the last one, which wrote `num_read` rows."""
        self._num_read = num_read

    def begin_pass(self, first_seq: int, num_seqs: int, num_rows: int) -> None:
        num_read, self._num_read = self._num_read, 0
        if num_read == 0:
            super().begin_pass(first_seq, num_seqs, num_rows)
            return
        starts = tuple(self._lens[first_seq : first_seq + num_seqs])
        if self._pass != _Pass(first_seq, num_seqs, num_read, starts, max(starts) + num_read):
            raise CacheError(
                f"rows behind the first {num_read} of sequences {first_seq} to "
                f"{first_seq + num_seqs - 1}, but the last pass was {self._pass}"
            )
        context = max(starts) + num_read + num_rows
        self._reserve(context)
        self._pass = _Pass(first_seq, num_seqs, num_read + num_rows, starts, context)
        behind = tuple(start + num_read for start in starts)
        for store in self._stores.values():
            store.open(_Pass(first_seq, num_seqs, num_rows, behind, context))

    def rewind(self, seq_idx: int, length: int) -> None:
        """Gives up what a sequence holds behind its first `length` positions.

        Raises:
            CacheError: it holds fewer.
        """
        if not 0 <= length <= self._lens[seq_idx]:
            raise CacheError(
                f"sequence {seq_idx} holds {self._lens[seq_idx]} positions, not {length} or more"
            )
        self._lens[seq_idx] = length
        self._pass = None


@dataclass(frozen=True, slots=True)
class _Rest(Rows):
    """The last piece of a pass; `whole` has all its rows."""

    whole: Rows

    @classmethod
    def of(cls, whole: Rows, num_read: int) -> _Rest:
        return cls(
            whole.token_ids[:, num_read:],
            whole.position_ids[:, num_read:],
            whole.ancestors[:, num_read:, num_read:],
            tuple(max(0, length - num_read) for length in whole.row_lens),
            whole,
        )
