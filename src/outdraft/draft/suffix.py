"""A tree of what followed every earlier occurrence of the text's ending, by how often it did.

Guesses from: prompt and output of the request, through a suffix automaton that grows with the text.
Score: a node's share of the occurrences of its context, mixed over shorter and shorter contexts and
trusted more the longer the context is. Cost: amortised O(1) per token to grow, and per guess a
look at the children of a few states. Sources: SAM-Decoding (Hu et al. 2024) for the automaton,
SuffixDecoding (Oliaro et al. 2024) for counted trees, PPM (Cleary and Witten 1984) for the mixture.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence as Seq
from itertools import islice
from typing import NamedTuple

from outdraft.draft.base import IndexDrafter
from outdraft.draft.best_first import Guess, best_first_tree
from outdraft.types import DraftTree

_ROOT = 0
_NONE = -1
# Occurrences are counted along this many suffix links, so that a token costs O(1) even in a text
# that repeats a single token; only such texts have longer chains.
_MAX_COUNTED_LINKS = 32
# Contexts consulted per node, and continuations taken from each.
_MAX_CONTEXTS = 3
_MAX_CHILDREN = 8
# After a frequent token thousands of others have been seen; a guess costs no more for it.
_MAX_COUNTED_CHILDREN = 128

BYTES_PER_STATE = 330
"""Of memory, roughly; a text has between one and two states per token."""


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
    def num_tokens(self) -> int:
        return self.lengths[self._last]

    @property
    def longest_repeated(self) -> int:
        """The state of the longest ending of the text that also occurs earlier."""
        return max(self.links[self._last], _ROOT)

    def counted_children(self, state: int) -> list[tuple[int, int]]:
        """How often each token followed the strings of a state, and the token.

        Of very many tokens only those seen first, which frequent ones mostly are.
        """
        counts = self.counts
        children = islice(self.children[state].items(), _MAX_COUNTED_CHILDREN)
        return [(counts[child], token_id) for token_id, child in children]

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


class Place(NamedTuple):
    """Where a text stands in an automaton, which may be that of another text.

    Args:
        length: of the text's longest ending that is known there; `state` contains it.
        weight: of an occurrence there, against 1.0 for one in the request itself.
    """

    automaton: SuffixAutomaton
    state: int = _ROOT
    length: int = 0
    weight: float = 1.0

    def after(self, token_id: int) -> Place:
        """The place once the text has gone on with this token."""
        automaton, state, length, weight = self
        while token_id not in automaton.children[state]:
            if state == _ROOT:
                return Place(automaton, _ROOT, 0, weight)
            state = automaton.links[state]
            length = automaton.lengths[state]
        return Place(automaton, automaton.children[state][token_id], length + 1, weight)

    def settled(self) -> Place:
        """The same place after the automaton has grown, which may have split its state."""
        automaton, state, length, weight = self
        while state != _ROOT and length <= automaton.lengths[automaton.links[state]]:
            state = automaton.links[state]
        return Place(automaton, state, length, weight)

    def shorter(self) -> Place:
        """The place of the longest ending that occurs in more places."""
        automaton, state, _, weight = self
        link = automaton.links[state]
        return Place(automaton, link, automaton.lengths[link], weight)


Reading = tuple[tuple[Place, ...], tuple[int, ...]]
"""Places of a text, and the guessed tokens still to be read from there."""


class Suffix(IndexDrafter[SuffixAutomaton]):
    """The likeliest continuations, each context's counts backed by those of shorter ones."""

    name = "suffix"
    score_names = ("context length", "share of its continuations")

    def new_index(self) -> SuffixAutomaton:
        return SuffixAutomaton()

    def guess(
        self, index: SuffixAutomaton, max_nodes: int, max_depth: int, min_path_prob: float = 0.0
    ) -> DraftTree:
        places = (place_at_end(index),)
        return likeliest_tree(self.name, places, max_nodes, max_depth, min_path_prob)

    @property
    def memory_bytes(self) -> int:
        num_states = sum(len(index.links) for index, _ in self._indexes.values())
        return num_states * BYTES_PER_STATE


def place_at_end(automaton: SuffixAutomaton) -> Place:
    """Where a text stands in its own automaton: at its longest ending that it repeats."""
    state = automaton.longest_repeated
    return Place(automaton, state, automaton.lengths[state])


def likeliest_tree(
    drafter: str,
    places: tuple[Place, ...],
    max_nodes: int,
    max_depth: int,
    min_path_prob: float = 0.0,
) -> DraftTree:
    """What may follow a text that stands at these places, of one or several automata."""
    root: Reading = (places, ())
    return best_first_tree(
        drafter,
        root,
        _guesses,
        max_nodes=max_nodes,
        max_depth=max_depth,
        min_path_prob=min_path_prob,
    )


def _guesses(reading: Reading, min_prob: float) -> Iterator[Guess[Reading]]:
    """What followed the longest context, then what followed shorter ones only.

    A context with `total` counted continuations gives a token seen `count` times
    `count / (total + escape)`; the rest of the probability is left to the next shorter context.
    The longer the context and the heavier its occurrences, the smaller the escape.
    """
    places, unread = reading
    for token_id in unread:
        places = tuple(place.after(token_id) for place in places)
    # Where much less of the text is known than elsewhere, nothing is to be learnt any more.
    longest = max(place.length for place in places)
    places = tuple(place for place in places if place.length > longest / 4)
    left = 1.0
    seen: set[int] = set()
    for automaton, state, length, weight in _longest_contexts(places):
        counted = automaton.counted_children(state)
        total = sum(count for count, _ in counted)
        if len(counted) == _MAX_COUNTED_CHILDREN:
            total = max(total, automaton.counts[state])
        escape = 2.0 / (length * weight)
        scale = left / (total + escape)
        if len(counted) > 1:
            # Most children of a short context are rare; only the others need to be sorted.
            counted = [child for child in counted if child[0] * scale >= min_prob]
            counted = heapq.nlargest(_MAX_CHILDREN, counted)
        for count, token_id in counted:
            if token_id not in seen and token_id >= 0:  # below 0, a text of a memory ends
                seen.add(token_id)
                score = (float(length), count / total)
                yield Guess(token_id, count * scale, (places, (token_id,)), score)
        left = escape * scale
        if left < min_prob:
            return


def _longest_contexts(places: tuple[Place, ...]) -> Iterator[Place]:
    """The places' contexts, longest first; of equally long ones, the heaviest."""
    waiting = list(places)
    for _ in range(_MAX_CONTEXTS):
        longest = max(waiting, key=_precedence, default=None)
        if longest is None or longest.length == 0:
            return
        yield longest
        waiting[waiting.index(longest)] = longest.shorter()


def _precedence(place: Place) -> tuple[int, float]:
    return place.length, place.weight
