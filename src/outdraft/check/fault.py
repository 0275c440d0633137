"""Faults on purpose: a check that cannot fail proves nothing."""

from __future__ import annotations

import copy
from collections.abc import Sequence as Seq
from typing import Self

from torch import Tensor

from outdraft.errors import SettingsError
from outdraft.generate import Outdraft
from outdraft.interfaces import KVCache, TargetModel
from outdraft.types import Rows


def damaged(llm: Outdraft, kind: str) -> Outdraft:
    """The same model with something wrong in it; `llm` itself stays as it is.

    Raises:
        SettingsError: there is no such fault.
    """
    if kind not in FAULTS:
        raise SettingsError(f"there is no fault {kind!r} to inject; known are {', '.join(FAULTS)}")
    copied = copy.copy(llm)
    copied.target = FAULTS[kind](llm.target)
    return copied


class WrongCacheTarget(TargetModel):
    """A target whose cache is off by one after each rejected guess: see `WrongCache`."""

    def __init__(self, target: TargetModel) -> None:
        self.vocab_size = target.vocab_size
        self.max_context = target.max_context
        self.device = target.device
        self._target = target

    def new_cache(self) -> WrongCache:
        return WrongCache(self._target.new_cache())

    def forward(
        self, rows: Rows, cache: KVCache, *, first_seq: int = 0, logits_to_keep: int = 0
    ) -> Tensor:
        assert isinstance(cache, WrongCache)  # made by `new_cache`
        cache.num_rows = rows.num_rows
        return self._target.forward(
            rows, cache.inner, first_seq=first_seq, logits_to_keep=logits_to_keep
        )


class WrongCache(KVCache):
    """Keeps, of a pass with rejected guesses, each row after the one it should keep.

    rows of the pass     root   d1    d2    d3 ✗
    should keep          root   d1    d2
    keeps                       d1    d2    d3      as a rewind that counts from the wrong end would

    Plain steps have one row and prompts no guesses, so both are kept as they should be.
    """

    def __init__(self, inner: KVCache) -> None:
        self.inner = inner
        self.num_rows = 0

    @property
    def committed_lens(self) -> tuple[int, ...]:
        return self.inner.committed_lens

    def add(self) -> int:
        return self.inner.add()

    def add_from(self, source: Self, seq_idx: int, length: int) -> int:
        return self.inner.add_from(source.inner, seq_idx, length)

    def remove(self, seq_idx: int) -> None:
        self.inner.remove(seq_idx)

    def commit(self, seq_idx: int, path: Seq[int]) -> None:
        shift = 1 if path[-1] + 1 < self.num_rows else 0
        self.inner.commit(seq_idx, [row + shift for row in path])


FAULTS = {"cache": WrongCacheTarget}
