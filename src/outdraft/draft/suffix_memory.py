"""`suffix` with a memory: what earlier requests said stands behind what this one says.

Guesses from: prompt and output of the request, and of earlier requests, each in suffix automata.
Score: as in `suffix`; of contexts equally long the request's own comes first, and its occurrences
weigh more. Cost: `suffix` for one text more per generation of the memory, and when a request ends
its tokens are added to the youngest generation. Source: SuffixDecoding (Oliaro et al. 2024), which
keeps a tree of earlier outputs beside that of the request.
"""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Iterable, Sequence as Seq

from outdraft.draft.base import IndexDrafter
from outdraft.draft.memory_file import MemoryFile, check_namespace
from outdraft.draft.suffix import (
    BYTES_PER_STATE,
    Place,
    SuffixAutomaton,
    likeliest_tree,
    place_at_end,
)
from outdraft.models.bundled import cache_home
from outdraft.sequence import Sequence
from outdraft.text.vocabulary import Vocabulary
from outdraft.types import DraftTree

MAX_TOKENS = 100_000
_NUM_GENERATIONS = 4
_SEPARATOR = -1  # no token; it keeps matches from running on into another request
# The last tokens of a text find its place in a memory it was not followed through.
_MAX_REPLAYED = 64
# Of an occurrence in an earlier request, against one in the request itself.
_WEIGHT = 0.5


class _Generation:
    """Requests that ended one after another, and are forgotten together."""

    def __init__(self) -> None:
        self.automaton = SuffixAutomaton()
        self.requests: list[array[int]] = []

    def add(self, token_ids: Seq[int]) -> None:
        self.requests.append(array("i", token_ids))
        self.automaton.extend([*token_ids, _SEPARATOR])


class SuffixMemory:
    """Prompts and outputs of requests that have ended; the oldest are forgotten first.

    An automaton cannot forget a part of its text, so requests are kept in a few generations, and
    the oldest generation goes as a whole when there is no room for a new one.

    Whoever shares a memory shares what was said: it changes no text, but how fast a text comes
    tells whether something like it was said before.

    Args:
        max_tokens: of all requests, each with one more for its end. A request that does not fit
            into a generation, a quarter of that, is kept from its end.
    """

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self._room = max(2, max_tokens // _NUM_GENERATIONS)
        self._generations: list[_Generation] = []

    def add(self, token_ids: Seq[int]) -> None:
        """Takes in a request."""
        token_ids = token_ids[-(self._room - 1) :]
        needed = len(token_ids) + 1
        if not self._generations or self._youngest.num_tokens + needed > self._room:
            self._generations = [*self._generations[1 - _NUM_GENERATIONS :], _Generation()]
        self._generations[-1].add(token_ids)

    @property
    def _youngest(self) -> SuffixAutomaton:
        return self._generations[-1].automaton

    @property
    def automata(self) -> list[SuffixAutomaton]:
        """Oldest first."""
        return [generation.automaton for generation in self._generations]

    @property
    def requests(self) -> list[Seq[int]]:
        """All that is remembered, oldest first."""
        return [request for generation in self._generations for request in generation.requests]

    @property
    def num_tokens(self) -> int:
        return sum(automaton.num_tokens for automaton in self.automata)

    @property
    def num_bytes(self) -> int:
        num_states = sum(len(automaton.links) for automaton in self.automata)
        return num_states * BYTES_PER_STATE + 4 * self.num_tokens


class TextInMemory:
    """A growing text: its own automaton, and where it stands in those of a memory."""

    def __init__(self, memory: SuffixMemory) -> None:
        self.own = SuffixAutomaton()
        self._memory = memory
        self._places: list[Place] = []
        self._last_ids: Seq[int] = ()

    def extend(self, token_ids: Seq[int]) -> None:
        self.own.extend(token_ids)
        self._last_ids = [*self._last_ids, *token_ids][-_MAX_REPLAYED:]
        known = {id(place.automaton): place.settled() for place in self._places}
        self._places = []
        for automaton in self._memory.automata:
            place, unread = known.get(id(automaton)), token_ids
            if place is None:
                place, unread = Place(automaton, weight=_WEIGHT), self._last_ids
            self._places.append(_read(place, unread))

    @property
    def places(self) -> tuple[Place, ...]:
        """Where the text stands: in itself, then in the memory, youngest first."""
        return (place_at_end(self.own), *reversed(self._places))


def _read(place: Place, token_ids: Iterable[int]) -> Place:
    for token_id in token_ids:
        place = place.after(token_id)
    return place


class SuffixWithMemory(IndexDrafter[TextInMemory]):
    """The likeliest continuations in the request and in earlier ones.

    Args:
        memory: takes in each request that ends; drafters may share it.
        file: where it is saved whenever a request has ended.
    """

    score_names = ("context length", "share of its continuations")

    def __init__(
        self, memory: SuffixMemory, file: MemoryFile | None = None, *, name: str = "suffix"
    ) -> None:
        super().__init__()
        self.name = name
        self.memory = memory
        self._file = file

    def new_index(self) -> TextInMemory:
        return TextInMemory(self.memory)

    def guess(
        self, index: TextInMemory, max_nodes: int, max_depth: int, min_path_prob: float = 0.0
    ) -> DraftTree:
        return likeliest_tree(self.name, index.places, max_nodes, max_depth, min_path_prob)

    def finish(self, sequence: Sequence) -> None:
        super().finish(sequence)
        self.memory.add(sequence.ids)
        if self._file is None:
            return
        try:
            self._file.save(self.memory.requests)
        except OSError as error:
            # The request has its text; that the next process starts without it is no reason to
            # lose the others.
            warnings.warn(
                f"the memory {self._file.path} could not be saved ({error}); from here on it is "
                "kept until this process ends and no longer",
                stacklevel=2,
            )
            self._file = None

    @property
    def memory_bytes(self) -> int:
        num_states = sum(len(index.own.links) for index, _ in self._indexes.values())
        return self.memory.num_bytes + num_states * BYTES_PER_STATE


def open_suffix_memory(namespace: str, vocabulary: Vocabulary) -> SuffixWithMemory:
    """The drafter `suffix:memory=NAMESPACE`, its memory in outdraft's cache folder.

    Raises:
        DrafterError: the name is none for a file, or the file cannot be used.
    """
    path = cache_home() / "memory" / f"{check_namespace(namespace)}.tokens"
    file = MemoryFile(path, vocabulary)
    memory = SuffixMemory()
    for request in file.load():
        memory.add(request)
    return SuffixWithMemory(memory, file, name=f"suffix:memory={namespace}")
