"""Guesses behind a text, while a draft model is still reading them.

The tree grows best-first: the likeliest guesses that the model has not read yet are read next, and
each gets children (the dynamic trees of EAGLE-2, Li et al. 2024, with unread nodes of all depths in
competition).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

from outdraft.draft.best_first import MIN_PATH_PROB

# A node less likely than this is not worth a pass of the draft model: its children would be
# accepted too rarely.
MIN_READ_PROB = 0.1
# Guesses that one pass reads for each text, and children that each of them gets.
READ_WIDTH = 2

ROOT = -1
_UNREAD = -1


class Guess(NamedTuple):
    """A token that may come next.

    Args:
        acceptance: probability that the target takes it, given that it took all before.
        prob: probability that the draft model gives it.
    """

    token_id: int
    acceptance: float
    prob: float


class GuessTree:
    """Guesses behind one text; grows while the model reads. Node `i` stands behind `parents[i]`."""

    def __init__(self) -> None:
        self.guesses: list[Guess] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.path_probs: list[float] = []
        self.rows: list[int] = []  # in the draft pass; _UNREAD for those it has not read
        self._children: dict[tuple[int, int], int] = {}

    def add(self, parent: int, guesses: Seq[Guess]) -> None:
        """Gives a node children, the root if it is -1; the unlikeliest are left out."""
        path_prob = 1.0 if parent == ROOT else self.path_probs[parent]
        for guess in guesses:
            if path_prob * guess.acceptance >= MIN_PATH_PROB:
                self._children[parent, guess.token_id] = len(self.guesses)
                self.guesses.append(guess)
                self.parents.append(parent)
                self.depths.append(1 if parent == ROOT else self.depths[parent] + 1)
                self.path_probs.append(path_prob * guess.acceptance)
                self.rows.append(_UNREAD)

    def best(self, max_nodes: int) -> list[int]:
        """The likeliest nodes, by falling path probability; they form a tree."""
        # children come later than their parents and are never likelier; sorting is stable
        nodes = range(len(self.guesses))
        return sorted(nodes, key=lambda node: -self.path_probs[node])[:max_nodes]

    def worth_reading(self, max_nodes: int, max_depth: int) -> list[int]:
        """The likeliest nodes whose children may still be among the best."""
        return [
            node
            for node in self.best(max_nodes)
            if self.rows[node] == _UNREAD
            and self.depths[node] <= max_depth
            and self.path_probs[node] >= MIN_READ_PROB
        ][:READ_WIDTH]

    def expected_behind(self, nodes: Seq[int]) -> float:
        """Tokens that reading these nodes may bring in: what follows a sure guess is sure too."""
        return sum(self.path_probs[node] * self.guesses[node].acceptance for node in nodes)

    def row_of(self, node: int) -> int:
        """The row that holds a node that was read; -1 for the root."""
        return ROOT if node == ROOT else self.rows[node]

    def take_in(self, nodes: Seq[int], first_row: int, guesses: Seq[Seq[Guess]]) -> None:
        """Notes that these nodes were read, in rows from `first_row` on, and what follows each."""
        for row, node in enumerate(nodes, start=first_row):
            self.rows[node] = row
        for node, found in zip(nodes, guesses, strict=True):
            self.add(node, found)

    def read_along(self, token_ids: Seq[int]) -> list[int]:
        """Rows of the read nodes that `token_ids` run through, from the root down."""
        rows: list[int] = []
        node = ROOT
        for token_id in token_ids:
            node = self._children.get((node, token_id), ROOT)
            if node == ROOT or self.rows[node] == _UNREAD:
                break
            rows.append(self.rows[node])
        return rows
