"""A tree of what followed every earlier occurrence of the text's ending, by how often it did.

Guesses from: prompt and output of the request, through a suffix automaton that grows with the text.
Score: a node's share of the occurrences of its context, mixed over shorter and shorter contexts and
trusted more the longer the context is. Cost: amortised O(1) per token to grow, and per guess a
look at the children of a few states. Sources: SAM-Decoding (Hu et al. 2024) for the automaton,
SuffixDecoding (Oliaro et al. 2024) for counted trees, PPM (Cleary and Witten 1984) for the mixture.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence as Seq
from typing import NamedTuple

from outdraft.draft.base import IndexDrafter
from outdraft.types import DraftTree

_ROOT = 0
_NONE = -1
# Occurrences are counted along this many suffix links, so that a token costs O(1) even in a text
# that repeats a single token; only such texts have longer chains.
_MAX_COUNTED_LINKS = 32
# Contexts consulted per node, and continuations taken from each.
_MAX_CONTEXTS = 3
_MAX_CHILDREN = 8
# Nodes less likely than this to be accepted are not worth a row on any machine.
_MIN_PATH_PROB = 0.03


class SuffixAutomaton:
    """The smallest automaton of all substrings of a growing token sequence.

    A state stands for the substrings that end at the same places; `lengths` is the longest of
    them, `links` the state of the longest one that ends at more places, `counts` at how many
    places they end. Online construction: Blumer et al. 1985.
    """

    def __init__(self) -> None:
        self.children: list[dict[int, int]] = [{}]
        self.links = [_NONE]
        self.lengths = [0]
        self.counts = [0]
        self._last = _ROOT

    @property
    def longest_repeated(self) -> int:
        """The state of the longest ending of the text that also occurs earlier."""
        return max(self.links[self._last], _ROOT)

    def extend(self, token_ids: Seq[int]) -> None:
        for token_id in token_ids:
            self._append(token_id)

    def _append(self, token_id: int) -> None:
        new = self._add_state(self.lengths[self._last] + 1, {}, _ROOT, count=0)
        state = self._last
        while state != _NONE and token_id not in self.children[state]:
            self.children[state][token_id] = new
            state = self.links[state]
        if state != _NONE:
            self.links[new] = self._state_ending_at(state, token_id)
        self._last = new
        self._count(new)

    def _state_ending_at(self, state: int, token_id: int) -> int:
        """The state of `state`'s longest string followed by the token, split off if need be."""
        child = self.children[state][token_id]
        length = self.lengths[state] + 1
        if self.lengths[child] == length:
            return child
        split = self._add_state(
            length, self.children[child].copy(), self.links[child], self.counts[child]
        )
        while state != _NONE and self.children[state].get(token_id) == child:
            self.children[state][token_id] = split
            state = self.links[state]
        self.links[child] = split
        return split

    def _add_state(self, length: int, children: dict[int, int], link: int, count: int) -> int:
        self.lengths.append(length)
        self.children.append(children)
        self.links.append(link)
        self.counts.append(count)
        return len(self.links) - 1

    def _count(self, state: int) -> None:
        for _ in range(_MAX_COUNTED_LINKS):
            if state == _ROOT:
                return
            self.counts[state] += 1
            state = self.links[state]


class Suffix(IndexDrafter[SuffixAutomaton]):
    """The likeliest continuations, each context's counts backed by those of shorter ones."""

    name = "suffix"
    score_names = ("context length", "share of its continuations")

    def new_index(self) -> SuffixAutomaton:
        return SuffixAutomaton()

    def guess(self, index: SuffixAutomaton, max_nodes: int, max_depth: int) -> DraftTree:
        """Takes the likeliest nodes one by one; each brings its own children into play."""
        chosen: list[tuple[_Continuation, int]] = []  # with the parent node
        # (-path probability, order of arrival, continuation, parent node, depth)
        waiting: list[tuple[float, int, _Continuation, int, int]] = []
        arrivals = itertools.count()

        def open_children(parent: int, state: int, path_prob: float, depth: int) -> None:
            for continuation in _continuations(index, state):
                prob = path_prob * continuation.prob
                if prob >= _MIN_PATH_PROB:
                    heapq.heappush(waiting, (-prob, next(arrivals), continuation, parent, depth))

        open_children(_NONE, index.longest_repeated, 1.0, 1)
        while waiting and len(chosen) < max_nodes:
            negative_prob, _, continuation, parent, depth = heapq.heappop(waiting)
            chosen.append((continuation, parent))
            if depth < max_depth:
                open_children(len(chosen) - 1, continuation.state, -negative_prob, depth + 1)
        return DraftTree(
            token_ids=tuple(node.token_id for node, _ in chosen),
            parents=tuple(parent for _, parent in chosen),
            acceptance=tuple(node.prob for node, _ in chosen),
            drafter=self.name,
            scores=tuple((float(node.context_len), node.share) for node, _ in chosen),
        )


class _Continuation(NamedTuple):
    """A token that followed a context, and the state the text is in after it."""

    token_id: int
    prob: float
    state: int
    context_len: int
    share: float


def _continuations(index: SuffixAutomaton, state: int) -> Iterator[_Continuation]:
    """What followed the context of `state`, then what followed shorter ones only.

    A context with `total` counted continuations gives a token seen `count` times
    `count / (total + escape)`; the rest of the probability is left to the next shorter context.
    The longer the context, the smaller the escape.
    """
    left = 1.0
    seen: set[int] = set()
    for _ in range(_MAX_CONTEXTS):
        if state <= _ROOT:
            return
        children = index.children[state]
        if children:
            counted = [(index.counts[child], token) for token, child in children.items()]
            total = sum(count for count, _ in counted)
            length = index.lengths[state]
            escape = 2.0 / length
            for count, token_id in heapq.nlargest(_MAX_CHILDREN, counted):
                if token_id not in seen:
                    seen.add(token_id)
                    prob = left * count / (total + escape)
                    yield _Continuation(token_id, prob, children[token_id], length, count / total)
            left *= escape / (total + escape)
        state = index.links[state]
