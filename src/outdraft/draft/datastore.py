"""Continuations of the text's longest ending that occurs in a corpus, counted, as a tree.

Guesses from: a file that `outdraft datastore build` wrote, and the last tokens of the request.
Score: length of the match, and a node's share of the continuations; a share counts for more the
longer the match is. Cost: a few binary searches per step, each in the range of the step before
where the text has gone on as matched; of the file, only the pages these look at are read. Source:
REST (He et al. 2023); here the match follows the text from step to step, and what it goes on with
is read in sorted order, so that a tree needs no trie.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence as Seq
from heapq import nlargest
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from outdraft.draft.base import IndexDrafter
from outdraft.draft.best_first import Guess, best_first_tree
from outdraft.draft.datastore_file import (
    SUFFIX_DTYPE,
    Region,
    encode,
    map_file,
    read_header,
    separator,
)
from outdraft.text.vocabulary import Vocabulary
from outdraft.types import DraftTree

# A match this long says all there is to say; text that goes on as matched makes it longer still.
_MAX_MATCH = 32
# Continuations read of a match; where there are more, they are picked at equal distances.
_MAX_SAMPLES = 40
_MAX_CHILDREN = 8


class Match(NamedTuple):
    """Suffixes of a shard that begin with the last `length` tokens of a text."""

    first: int
    end: int
    length: int

    @property
    def num_places(self) -> int:
        return self.end - self.first


class Shard:
    """A part of the corpus that is sorted in itself.

    Patterns are tokens as they stand in the file, and never contain the separator.
    """

    def __init__(self, data: memoryview, region: Region, width: int) -> None:
        self._tokens = data[region.tokens_at : region.suffixes_at]
        size = region.num_suffixes * SUFFIX_DTYPE.itemsize
        suffixes = data[region.suffixes_at : region.suffixes_at + size]
        self._suffixes = np.frombuffer(suffixes, dtype=SUFFIX_DTYPE).data
        self._width = width

    @property
    def all(self) -> Match:
        """The match of no token."""
        return Match(0, len(self._suffixes), 0)

    def narrow(self, match: Match, pattern: bytes) -> Match | None:
        """The part of a match that goes on with the pattern; `None` if there is none."""
        tokens, width = self._tokens, self._width
        skip, stop = match.length * width, match.length * width + len(pattern)

        def read(position: int) -> bytes:
            return tokens[position * width + skip : position * width + stop].tobytes()

        first = bisect_left(self._suffixes, pattern, match.first, match.end, key=read)
        if first == match.end or read(self._suffixes[first]) != pattern:
            return None
        end = bisect_right(self._suffixes, pattern, first, match.end, key=read)
        return Match(first, end, match.length + len(pattern) // width)

    def longest(self, text: bytes, max_length: int) -> Match:
        """The longest ending of the text that occurs here, up to a length.

        If an ending occurs, so does every shorter one: the length is doubled while it does, then
        found by halving.
        """
        longest, length, too_long = self.all, 1, min(max_length, len(text) // self._width) + 1
        while longest.length + 1 < too_long:
            match = self.narrow(self.all, text[-length * self._width :])
            if match is None:
                too_long = length
            else:
                longest = match
            doubled = 2 * longest.length
            length = doubled if doubled < too_long else (longest.length + too_long) // 2
        return longest

    def continuations(self, match: Match, num_places: int, num_tokens: int) -> list[bytes]:
        """What stands behind a match in places at equal distances in the sorted order."""
        width = self._width
        continuations = []
        for i in range(num_places):
            place = match.first + i * match.num_places // num_places
            start = (self._suffixes[place] + match.length) * width
            continuations.append(self._tokens[start : start + num_tokens * width].tobytes())
        return continuations


class Datastore:
    """A datastore on disk, open for look-ups.

    Raises:
        DrafterError: there is none, or it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.header = read_header(path)
        self.token_bytes = self.header.token_bytes
        data = memoryview(map_file(path))
        self.shards = [Shard(data, region, self.token_bytes) for region in self.header.regions()]


class TextEnd:
    """The end of a growing text, and its longest match in each shard."""

    def __init__(self, datastore: Datastore) -> None:
        self.datastore = datastore
        self.matches: list[Match]
        self._text: bytes  # its last tokens
        self._forget()

    def extend(self, token_ids: Seq[int]) -> None:
        fitting = self._fitting(token_ids)
        if len(fitting) < len(token_ids):
            self._forget()
        width = self.datastore.token_bytes
        new = encode(fitting, width)
        self._text = (self._text + new)[-_MAX_MATCH * width :]
        for i, (shard, match) in enumerate(zip(self.datastore.shards, self.matches, strict=True)):
            self.matches[i] = self._follow(shard, match, new)

    def _forget(self) -> None:
        self.matches = [shard.all for shard in self.datastore.shards]
        self._text = b""

    def _fitting(self, token_ids: Seq[int]) -> Seq[int]:
        """The last tokens, as many as a match may have; none that no corpus can contain."""
        fitting = token_ids[-_MAX_MATCH:]
        size = self.datastore.header.vocabulary.size
        if not fitting or max(fitting) < size:
            return fitting
        last_foreign = max(i for i, token_id in enumerate(fitting) if token_id >= size)
        return fitting[last_foreign + 1 :]

    def _follow(self, shard: Shard, match: Match, new: bytes) -> Match:
        """The longest match once the text has gone on with `new`.

        A match grows by at most one with each token, so where a token does not continue it, the
        next one is no longer than it was.
        """
        width = self.datastore.token_bytes
        for start in range(0, len(new), width):
            longer = shard.narrow(match, new[start : start + width])
            if longer is None:
                num_left = (len(new) - start) // width
                return shard.longest(self._text, min(match.length + num_left - 1, _MAX_MATCH))
            match = longer
        return match


class _Run(NamedTuple):
    """Neighbours among sorted continuations that agree on their first `depth` tokens."""

    first: int
    end: int
    depth: int


class _Continuations:
    """What followed a match, in sorted order, each with the occurrences it stands for.

    Args:
        counted: continuations and their occurrences, of all shards.
    """

    def __init__(self, counted: list[tuple[bytes, float]], match_len: int, width: int) -> None:
        counted.sort()
        self._texts = [text for text, _ in counted]
        self._counts_before = [0.0, *accumulate(count for _, count in counted)]
        self._match_len = match_len
        self._width = width
        self._separator = separator(width)

    @property
    def all(self) -> _Run:
        return _Run(0, len(self._texts), 0)

    def guesses(self, run: _Run, min_prob: float) -> Iterator[Guess[_Run]]:
        """What a run goes on with.

        Of `total` continuations, `count` of which go on with a token, its probability is
        `count / (total + escape)`: the longer the match, the less is left to what was never seen.
        """
        first, end, depth = run
        start, stop = depth * self._width, (depth + 1) * self._width
        length = self._match_len + depth
        total = self._count(first, end)
        for count, part in nlargest(_MAX_CHILDREN, self._parts(run)):
            token = self._texts[part.first][start:stop]
            prob = count / (total + 2.0 / length)
            if prob < min_prob:
                return
            if token != self._separator:
                score = (float(length), count / total)
                yield Guess(int.from_bytes(token, "big"), prob, part, score)

    def _parts(self, run: _Run) -> list[tuple[float, _Run]]:
        """The run cut into those that agree on one more token."""
        first, end, depth = run
        texts, start, stop = self._texts, depth * self._width, (depth + 1) * self._width
        if texts[first][start:stop] == texts[end - 1][start:stop]:  # so all between are alike
            return [(self._count(first, end), _Run(first, end, depth + 1))]
        tokens = [text[start:stop] for text in texts[first:end]]
        parts = []
        while first < end:
            offset = first - run.first
            part_end = run.first + bisect_right(tokens, tokens[offset], offset)
            parts.append((self._count(first, part_end), _Run(first, part_end, depth + 1)))
            first = part_end
        return parts

    def _count(self, first: int, end: int) -> float:
        return self._counts_before[end] - self._counts_before[first]


class DatastoreDrafter(IndexDrafter[TextEnd]):
    """The likeliest continuations in a corpus.

    Args:
        vocabulary: of the target's tokenizer.

    Raises:
        DrafterError: there is no datastore, it is damaged, or it is of another tokenizer.
    """

    score_names = ("match length", "share of its continuations")

    def __init__(self, path: Path, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.name = f"datastore:{path}"
        self._datastore = Datastore(path)
        self._datastore.header.vocabulary.check_same(
            vocabulary,
            f"the datastore {path}",
            "build one for it with `outdraft datastore build FILES... --model REF -o PATH`",
        )

    def new_index(self) -> TextEnd:
        return TextEnd(self._datastore)

    def guess(
        self, index: TextEnd, max_nodes: int, max_depth: int, min_path_prob: float = 0.0
    ) -> DraftTree:
        match_len = max(match.length for match in index.matches)
        if match_len == 0:
            return DraftTree(drafter=self.name)
        max_depth = min(max_nodes, max_depth)
        matches = [match for match in index.matches if match.length == match_len]
        num_places = sum(match.num_places for match in matches)
        counted: list[tuple[bytes, float]] = []
        for shard, match in zip(self._datastore.shards, index.matches, strict=True):
            if match.length == match_len:
                num_read = min(match.num_places, 1 + _MAX_SAMPLES * match.num_places // num_places)
                texts = shard.continuations(match, num_read, max_depth)
                counted.extend((text, match.num_places / num_read) for text in texts)
        continuations = _Continuations(counted, match_len, self._datastore.token_bytes)
        return best_first_tree(
            self.name,
            continuations.all,
            continuations.guesses,
            max_nodes=max_nodes,
            max_depth=max_depth,
            min_path_prob=min_path_prob,
        )
