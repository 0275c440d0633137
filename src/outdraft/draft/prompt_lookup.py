"""Copies on from the last place where the text ended as it ends now.

Guesses from: prompt and output of the request. Score: length of the match. Cost: a few dictionary
look-ups. Source: prompt lookup decoding (Saxena 2023), here with the most recent occurrence and
over the output too.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from outdraft.draft.base import IndexDrafter
from outdraft.types import DraftTree

_MAX_MATCH = 8
# A tuple of a few tokens with its place in a dictionary.
_BYTES_PER_RUN = 200


class NgramIndex:
    """Where each run of up to `_MAX_MATCH` tokens was last continued."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._continued_at: dict[tuple[int, ...], int] = {}

    def extend(self, token_ids: Seq[int]) -> None:
        for token_id in token_ids:
            end = len(self.token_ids)
            for size in range(1, min(_MAX_MATCH, end) + 1):
                self._continued_at[tuple(self.token_ids[end - size :])] = end
            self.token_ids.append(token_id)

    @property
    def num_runs(self) -> int:
        return len(self._continued_at)

    def longest_match(self) -> tuple[int, int]:
        """Length of the longest known run that ends the text, and where it was continued.

        A length of 0 means that even the last token is new.
        """
        end = len(self.token_ids)
        for size in range(min(_MAX_MATCH, end), 0, -1):
            position = self._continued_at.get(tuple(self.token_ids[end - size :]))
            if position is not None:
                return size, position
        return 0, 0


class PromptLookup(IndexDrafter[NgramIndex]):
    """A chain: what followed the longest, most recent match of the last tokens."""

    name = "prompt-lookup"
    score_names = ("match length",)

    def new_index(self) -> NgramIndex:
        return NgramIndex()

    def guess(
        self, index: NgramIndex, max_nodes: int, max_depth: int, min_path_prob: float = 0.0
    ) -> DraftTree:
        del min_path_prob  # a copy costs nothing
        match_len, position = index.longest_match()
        if match_len == 0:
            return DraftTree(drafter=self.name)
        # Where the copy runs into the end of the text, it goes on with its own tokens: a text
        # that repeats with some period is guessed to keep repeating.
        copied = index.token_ids[position : position + min(max_nodes, max_depth)]
        period = len(index.token_ids) - position
        while len(copied) < min(max_nodes, max_depth):
            copied.append(copied[-period])
        chain = DraftTree.chain(copied, match_len / (match_len + 1), self.name)
        return replace(chain, scores=((float(match_len),),) * len(copied))

    @property
    def memory_bytes(self) -> int:
        num_runs = sum(index.num_runs for index, _ in self._indexes.values())
        return num_runs * _BYTES_PER_RUN
