from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from outdraft.draft.first_of import FirstOf
from outdraft.interfaces import Drafter
from outdraft.sequence import Sequence
from outdraft.types import Budget, Commit, DraftTree
from support.toys import make_sequence


class Knows(Drafter):
    """Has something to say about some requests, and notes all it hears."""

    def __init__(self, name: str, request_ids: Seq[int], *, wants_logits: bool = False) -> None:
        self.name = name
        self.wants_logits = wants_logits
        self.request_ids = request_ids
        self.lines: list[tuple[str, object]] = []

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        asked = [sequence.request_id for sequence in batch]
        self.lines.append(("asked", (asked, budget)))
        return [
            DraftTree.chain([1], drafter=self.name) if i in self.request_ids else DraftTree()
            for i in asked
        ]

    def observe(self, sequence: Sequence, commit: Commit) -> None:
        self.lines.append(("observe", commit))

    def observe_logits(self, sequence: Sequence, tree: DraftTree, logits: Tensor) -> None:
        self.lines.append(("logits", tree))

    def finish(self, sequence: Sequence) -> None:
        self.lines.append(("finish", sequence.request_id))

    @property
    def memory_bytes(self) -> int:
        return 100


BATCH = [make_sequence([1], request_id=i) for i in range(4)]
BUDGET = Budget(9, (5, 6, 7, 8))


def test_the_first_that_knows_something_is_taken() -> None:
    first, second = Knows("a", [1]), Knows("b", [0, 1, 3])
    trees = FirstOf([first, second]).propose(BATCH, BUDGET)
    assert [tree.drafter if tree else None for tree in trees] == ["b", "a", None, "b"]


def test_the_next_is_asked_for_the_rest_alone_with_their_depths() -> None:
    first, second = Knows("a", [1, 3]), Knows("b", [])
    FirstOf([first, second]).propose(BATCH, BUDGET)
    assert first.lines == [("asked", ([0, 1, 2, 3], BUDGET))]
    assert second.lines == [("asked", ([0, 2], Budget(9, (5, 7))))]


def test_nobody_is_asked_for_nothing() -> None:
    first, second = Knows("a", range(4)), Knows("b", [])
    FirstOf([first, second]).propose(BATCH, BUDGET)
    assert second.lines == []


def test_all_hear_of_commits_and_ends_and_those_that_want_of_logits() -> None:
    first, second = Knows("a", []), Knows("b", [], wants_logits=True)
    both = FirstOf([first, second])
    commit = Commit(0, (1,), ("plain",))
    both.observe_logits(BATCH[0], DraftTree(), torch.zeros(1, 16))
    both.observe(BATCH[0], commit)
    both.finish(BATCH[0])
    assert first.lines == [("observe", commit), ("finish", 0)]
    assert second.lines == [("logits", DraftTree()), ("observe", commit), ("finish", 0)]


def test_logits_are_wanted_if_anybody_wants_them() -> None:
    assert not FirstOf([Knows("a", [])]).wants_logits
    assert FirstOf([Knows("a", []), Knows("b", [], wants_logits=True)]).wants_logits


def test_names_and_memory_add_up() -> None:
    both = FirstOf([Knows("a", []), Knows("b", [])])
    assert (both.name, both.memory_bytes) == ("a,b", 200)
