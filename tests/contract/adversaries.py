"""Drafters that do their worst. None of them may change a single token.

Most know the text that plain decoding writes, which makes them right or wrong on purpose and at
chosen places; a drafter that is only ever wrong, or only ever right, would leave most of the code
unvisited.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence as Seq

from outdraft.interfaces import Drafter
from outdraft.sequence import Sequence
from outdraft.types import Budget, DraftTree

PlainTexts = Mapping[tuple[int, ...], Seq[int]]
"""From a prompt to the tokens plain decoding appends to it."""


class Adversary(Drafter):
    """Knows the plain texts.

    Args:
        vocab_size: wrong guesses are taken from these tokens.
        eos_id: a token that ends texts.
    """

    name = "adversary"

    def __init__(self, texts: PlainTexts, vocab_size: int, eos_id: int) -> None:
        self.texts = texts
        self.vocab_size = vocab_size
        self.eos_id = eos_id
        self.num_calls = 0

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        self.num_calls += 1
        return [
            self.draft(sequence, budget.max_nodes, max_depth)
            for sequence, max_depth in zip(batch, budget.max_depths, strict=True)
        ]

    def draft(self, sequence: Sequence, max_nodes: int, max_depth: int) -> DraftTree:
        """The tree for one sequence."""
        raise NotImplementedError

    def right(self, sequence: Sequence, count: int) -> list[int]:
        """The next tokens of the plain text; fewer at its end."""
        text = self.texts[tuple(sequence.ids[: sequence.prompt_len])]
        start = len(sequence.new_ids)
        return list(text[start : start + count])

    def wrong(self, token_id: int, by: int = 1) -> int:
        return (token_id + by) % self.vocab_size

    def tree(
        self, nodes: Seq[tuple[int, int]], acceptance: Callable[[int], float] | None = None
    ) -> DraftTree:
        """From (token, parent) pairs; all equally likely unless said otherwise."""
        return DraftTree(
            token_ids=tuple(token_id for token_id, _ in nodes),
            parents=tuple(parent for _, parent in nodes),
            acceptance=tuple(
                0.9 if acceptance is None else acceptance(node) for node in range(len(nodes))
            ),
            drafter=self.name,
        )


class AlwaysRight(Adversary):
    """Every guess is accepted, the bonus comes on top."""

    def draft(self, sequence: Sequence, max_nodes: int, max_depth: int) -> DraftTree:
        return DraftTree.chain(self.right(sequence, max_nodes), 0.9, self.name)


class AlwaysWrong(Adversary):
    """Every step commits a correction and throws all rows but the root away."""

    def draft(self, sequence: Sequence, max_nodes: int, max_depth: int) -> DraftTree:
        right = self.right(sequence, max_nodes)
        return DraftTree.chain([self.wrong(token_id) for token_id in right], 0.9, self.name)


class RightThenWrong(Adversary):
    """Right for 0, 1, 2, ... tokens, then wrong, then right again too late."""

    def draft(self, sequence: Sequence, max_nodes: int, max_depth: int) -> DraftTree:
        guesses = self.right(sequence, max_nodes)
        turn = self.num_calls % (max_nodes + 1)
        if turn < len(guesses):
            guesses[turn] = self.wrong(guesses[turn])
        return DraftTree.chain(guesses, 0.9, self.name)


class WrongSibling(Adversary):
    """Beside each right guess a wrong one that stands first, so that accepted rows have gaps."""

    def draft(self, sequence: Sequence, max_nodes: int, max_depth: int) -> DraftTree:
        nodes: list[tuple[int, int]] = []
        parent = -1
        for token_id in self.right(sequence, max(1, max_nodes // 2)):
            nodes += [(self.wrong(token_id), parent), (token_id, parent)]
            parent = len(nodes) - 1
        return self.tree(nodes, acceptance=lambda node: 0.9 if node % 2 else 0.95)


class WrongBranchFirst(Adversary):
    """A long wrong branch that looks better than the right one, which comes behind all of it."""

    def draft(self, sequence: Sequence, max_nodes: int, max_depth: int) -> DraftTree:
        right = self.right(sequence, max(1, max_nodes // 2))
        wrong = [self.wrong(right[0]), *right[1:]] if right else []
        nodes: list[tuple[int, int]] = []
        for branch in (wrong, right):
            parent = -1
            for token_id in branch:
                nodes.append((token_id, parent))
                parent = len(nodes) - 1
        return self.tree(nodes, acceptance=lambda node: 0.99 if node < len(wrong) else 0.9)


class Empty(Adversary):
    """Never has an idea."""

    def draft(self, sequence: Sequence, max_nodes: int, max_depth: int) -> DraftTree:
        return DraftTree(drafter=self.name)


class SometimesEmpty(Adversary):
    """Steps with and without guesses take turns, and differ within a batch."""

    def draft(self, sequence: Sequence, max_nodes: int, max_depth: int) -> DraftTree:
        has_idea = (self.num_calls + sequence.request_id) % 2 == 0
        guesses = self.right(sequence, max_nodes) if has_idea else []
        return DraftTree.chain(guesses, 0.9, self.name)


class TooLong(Adversary):
    """Ignores both limits of the budget and goes on far behind the end of the text."""

    def draft(self, sequence: Sequence, max_nodes: int, max_depth: int) -> DraftTree:
        size = 2 * max_nodes + max_depth + 3
        guesses = self.right(sequence, size)
        guesses += [node % self.vocab_size for node in range(size - len(guesses))]
        return DraftTree.chain(guesses, 0.999, self.name)


class EndInTheMiddle(Adversary):
    """Guesses that the text ends here, and how it goes on from there."""

    def draft(self, sequence: Sequence, max_nodes: int, max_depth: int) -> DraftTree:
        guesses = self.right(sequence, max_nodes)
        guesses.insert(len(guesses) // 2, self.eos_id)
        return DraftTree.chain(guesses[:max_nodes], 0.9, self.name)


class UpsideDown(Adversary):
    """Wrong guesses are said to be nearly sure, right ones to be next to impossible."""

    def draft(self, sequence: Sequence, max_nodes: int, max_depth: int) -> DraftTree:
        nodes: list[tuple[int, int]] = []
        parent = -1
        for token_id in self.right(sequence, max(1, max_nodes // 2)):
            nodes += [(token_id, parent), (self.wrong(token_id), parent)]
            parent = len(nodes) - 2
        return self.tree(nodes, acceptance=lambda node: 1.0 if node % 2 else 1e-9)


class RandomTrees(Adversary):
    """Any tree of any size, right at random places; nodes stand in any order a tree allows."""

    def draft(self, sequence: Sequence, max_nodes: int, max_depth: int) -> DraftTree:
        rng = random.Random(f"{sequence.request_id} {len(sequence.ids)} {max_nodes}")
        size = rng.randint(0, 2 * max_nodes)
        right = self.right(sequence, size)
        nodes: list[tuple[int, int]] = []
        depths = [0]
        for _ in range(size):
            parent = rng.randint(-1, len(nodes) - 1)
            depth = depths[parent + 1]
            is_right = depth < len(right) and rng.random() < 0.7
            token_id = right[depth] if is_right else rng.randrange(self.vocab_size)
            if (token_id, parent) not in nodes:
                nodes.append((token_id, parent))
                depths.append(depth + 1)
        return self.tree(nodes, acceptance=lambda node: rng.uniform(0.01, 1.0))


class Wild(Adversary):
    """Another of the above in every step, and for every sequence of the batch."""

    def __init__(self, texts: PlainTexts, vocab_size: int, eos_id: int) -> None:
        super().__init__(texts, vocab_size, eos_id)
        self._others = [make(texts, vocab_size, eos_id) for make in ADVERSARIES[:-1]]

    def draft(self, sequence: Sequence, max_nodes: int, max_depth: int) -> DraftTree:
        turn = 5 * self.num_calls + sequence.request_id
        other = self._others[turn % len(self._others)]
        other.num_calls = self.num_calls
        return other.draft(sequence, max_nodes, max_depth)


ADVERSARIES: tuple[type[Adversary], ...] = (
    AlwaysRight,
    AlwaysWrong,
    RightThenWrong,
    WrongSibling,
    WrongBranchFirst,
    Empty,
    SometimesEmpty,
    TooLong,
    EndInTheMiddle,
    UpsideDown,
    RandomTrees,
    Wild,
)
