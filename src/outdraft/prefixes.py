"""Texts that were read and are kept, so that a prompt that begins like one need not read it again.

A chat's next turn begins with all turns before it, and requests to one assistant share its system
prompt. What is compared are token ids, so nothing is assumed of templates and tokenizers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Seq
from typing import NamedTuple

from outdraft.interfaces import KVCache, TargetModel


class Beginning(NamedTuple):
    """The first `length` tokens of a text that a cache holds."""

    cache: KVCache
    seq_idx: int
    length: int


class _Kept(NamedTuple):
    token_ids: tuple[int, ...]
    cache: KVCache  # of this one sequence


class KeptTexts:
    """Copies of what the target remembers of texts, the most recently used ones.

    Args:
        max_tokens: of all texts together; a longer text is kept from its beginning.
    """

    def __init__(self, target: TargetModel, max_tokens: int) -> None:
        self._target = target
        self._max_tokens = max_tokens
        self._kept: list[_Kept] = []  # used last, stands last

    @property
    def num_tokens(self) -> int:
        return sum(len(kept.token_ids) for kept in self._kept)

    def keep(self, cache: KVCache, seq_idx: int, token_ids: Seq[int]) -> None:
        """Copies what a cache holds of a text; texts that it begins with need not stay.

        Args:
            token_ids: the text; the cache may lack its end.
        """
        length = min(cache.committed_lens[seq_idx], self._max_tokens)
        if length == 0:
            return
        known = tuple(token_ids[:length])
        if any(kept.token_ids[:length] == known for kept in self._kept):
            return
        self._kept = [kept for kept in self._kept if kept.token_ids != known[: len(kept.token_ids)]]
        while self.num_tokens + length > self._max_tokens:
            del self._kept[0]
        copied = self._target.new_cache()
        copied.add_from(cache, seq_idx, length)
        self._kept.append(_Kept(known, copied))

    def longest(self, token_ids: Seq[int]) -> Beginning | None:
        """Of the kept texts, the one that shares the longest beginning with this text."""
        lengths = [common_len(kept.token_ids, token_ids) for kept in self._kept]
        if not any(lengths):
            return None
        length = max(lengths)
        kept = self._kept.pop(lengths.index(length))
        self._kept.append(kept)
        return Beginning(kept.cache, 0, length)

    def clear(self) -> None:
        """Forgets all texts."""
        self._kept.clear()


def common_len(one: Iterable[int], other: Iterable[int]) -> int:
    """Tokens that two texts begin with."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length
