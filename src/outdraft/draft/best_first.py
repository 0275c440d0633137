"""From guesses of the next token to a tree: the likeliest node is taken, its own guesses follow."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from outdraft.types import DraftTree

# Nodes less likely than this to be accepted are not worth a row on any machine.
MIN_PATH_PROB = 0.03

State = TypeVar("State")


class Guess(NamedTuple, Generic[State]):
    """A token that may come next.

    Args:
        prob: that it does.
        state: from which the method guesses what follows it.
        score: what the method knows of it, as its `score_names` say.
    """

    token_id: int
    prob: float
    state: State
    score: tuple[float, ...]


def best_first_tree(
    drafter: str,
    state: State,
    guesses: Callable[[State, float], Iterable[Guess[State]]],
    *,
    max_nodes: int,
    max_depth: int,
    min_path_prob: float = 0.0,
) -> DraftTree:
    """Takes the likeliest nodes one by one; each brings its own children into play.

    Nodes stand by falling path probability, so that a larger budget adds nodes and changes none.

    Args:
        drafter: name of the method.
        state: of the root.
        guesses: what may follow a state, no token twice; those less likely than the second
            argument are not needed.
        min_path_prob: as in `Budget`.
    """
    least_prob = max(MIN_PATH_PROB, min_path_prob)
    chosen: list[tuple[Guess[State], int]] = []  # with the parent node
    # (-path probability, order of arrival, guess, parent node, depth)
    waiting: list[tuple[float, int, Guess[State], int, int]] = []
    arrivals = itertools.count()

    def open_children(parent: int, state: State, path_prob: float, depth: int) -> None:
        min_prob = least_prob / path_prob
        for guess in guesses(state, min_prob):
            if guess.prob >= min_prob:
                negative_prob = -path_prob * guess.prob
                heapq.heappush(waiting, (negative_prob, next(arrivals), guess, parent, depth))

    open_children(-1, state, 1.0, 1)
    while waiting and len(chosen) < max_nodes:
        negative_prob, _, guess, parent, depth = heapq.heappop(waiting)
        chosen.append((guess, parent))
        if depth < max_depth and len(chosen) < max_nodes:
            open_children(len(chosen) - 1, guess.state, -negative_prob, depth + 1)
    return DraftTree(
        token_ids=tuple(guess.token_id for guess, _ in chosen),
        parents=tuple(parent for _, parent in chosen),
        acceptance=tuple(guess.prob for guess, _ in chosen),
        drafter=drafter,
        scores=tuple(guess.score for guess, _ in chosen),
    )
