"""The verbs: what a drafter, a target and its cache can do. Abstract or final, nothing between."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq
from typing import Self

import torch
from torch import Tensor

from outdraft.errors import CacheError
from outdraft.sequence import Sequence
from outdraft.types import Budget, Commit, DraftTree, Rows


class Drafter(ABC):
    """Guesses what the target will write.

    A drafter can cost time and never a token: whatever it proposes, the text is the target's. It
    keeps its own state per `request_id`, and only committed tokens reach that state.
    """

    name: str
    score_names: tuple[str, ...] = ()
    """What the numbers in a node's `scores` are."""
    levels: int | None = None
    """How many levels the last proposal bought one after the other, such as passes of a draft
    model, beyond what it takes to propose at all; `None` where levels take no time to speak of."""
    wants_logits: bool = False
    """Whether `observe_logits` is called; nothing is collected for drafters that guess from ids."""
    is_plain: bool = False
    """Whether it stands for plain decoding, where not even what is certain is guessed."""

    @abstractmethod
    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        """One tree per sequence, in the batch's order; an empty tree is a fine answer."""

    def observe(self, sequence: Sequence, commit: Commit) -> None:
        """Takes note of tokens that became part of the text; `sequence` already holds them."""
        del sequence, commit

    def observe_logits(self, sequence: Sequence, tree: DraftTree, logits: Tensor) -> None:
        """Takes note of all the target said in a step, of rejected guesses too.

        Called for steps in which it was asked, and for some of those in which it was left out.
        Called before the step is committed: `sequence` still ends with the root. Row 0 of
        `logits`, `[rows, vocab]`, is what the target says after the root, row `i + 1` after node
        `i`.
        """
        del sequence, tree, logits

    def finish(self, sequence: Sequence) -> None:
        """Forgets a request that ended, for whatever reason."""
        del sequence

    @property
    def parts(self) -> tuple[Drafter, ...]:
        """The drafters it is made of: itself, unless it stands for several."""
        return (self,)

    @property
    def memory_bytes(self) -> int:
        """Memory its stores take, roughly; bounded for any stream of requests."""
        return 0


class KVCache(ABC):
    """What the target remembers of each sequence, addressed by position.

    Sequence `i` owns the positions below `committed_lens[i]`. A pass writes its rows behind them;
    `commit` says which of these rows to keep, and anything else is unreachable from then on.
    """

    @property
    @abstractmethod
    def committed_lens(self) -> tuple[int, ...]:
        """Positions each sequence owns."""

    @abstractmethod
    def add(self) -> int:
        """Room for one more sequence, empty; returns its index, the highest."""

    @abstractmethod
    def add_from(self, source: Self, seq_idx: int, length: int) -> int:
        """One more sequence, which begins as another cache's does; returns its index.

        Args:
            source: a cache of the same target; it stays as it is.
            seq_idx: of the sequence there.
            length: positions to copy.

        Raises:
            CacheError: there is no such sequence, or it is shorter.
        """

    @abstractmethod
    def remove(self, seq_idx: int) -> None:
        """Drops a sequence; the last one takes its index."""

    @abstractmethod
    def commit(self, seq_idx: int, path: Seq[int]) -> None:
        """Keeps the rows of `path` of the last pass, in that order, as the next positions.

        Raises:
            CacheError: `path` is not strictly rising, or names a row the pass did not write.
        """

    def check_seqs(self, first_seq: int, num_seqs: int) -> None:
        """Refuses a pass over sequences the cache does not hold."""
        held = len(self.committed_lens)
        if not 0 <= first_seq < first_seq + num_seqs <= held:
            raise CacheError(
                f"a pass over sequences {first_seq} to {first_seq + num_seqs - 1}, "
                f"but the cache holds {held}"
            )

    def check_beginning(self, seq_idx: int, length: int) -> None:
        """Refuses a beginning that no sequence of this cache has."""
        self.check_seqs(seq_idx, 1)
        if not 0 <= length <= self.committed_lens[seq_idx]:
            raise CacheError(
                f"the first {length} positions of sequence {seq_idx}, but it has "
                f"{self.committed_lens[seq_idx]}"
            )

    @staticmethod
    def check_path(path: Seq[int], num_rows: int) -> None:
        """Refuses a path that is not a rising choice of a pass's rows."""
        is_rising = all(a < b for a, b in itertools.pairwise(path))
        if not path or not is_rising or not 0 <= path[0] <= path[-1] < num_rows:
            raise CacheError(
                f"path {tuple(path)} is not a rising choice of the pass's {num_rows} rows"
            )


class TargetModel(ABC):
    """The model whose text counts."""

    vocab_size: int
    max_context: int
    device: torch.device

    @abstractmethod
    def new_cache(self) -> KVCache:
        """A cache without sequences."""

    @abstractmethod
    def forward(
        self, rows: Rows, cache: KVCache, *, first_seq: int = 0, logits_to_keep: int = 0
    ) -> Tensor:
        """Reads `rows` on top of what the cache holds.

        Args:
            first_seq: the rows belong to the cache's sequences from this index on.
            logits_to_keep: judge only this many last rows; 0 judges all.

        Returns:
            Logits `[seqs, rows judged, vocab]` in the model's own precision.
        """
