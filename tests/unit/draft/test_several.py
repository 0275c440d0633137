from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
import torch
from torch import Tensor

from outdraft.draft.several import Several
from outdraft.errors import DrafterError
from outdraft.interfaces import Drafter
from outdraft.sequence import Sequence
from outdraft.types import Budget, Commit, DraftTree
from support.toys import make_sequence

COMMIT = Commit(0, (4, 5), ("drafted", "bonus"))


class Noting(Drafter):
    """Guesses what it is told to and notes all it hears."""

    def __init__(self, name: str, *guesses: int, wants_logits: bool = False, size: int = 0) -> None:
        self.name = name
        self.wants_logits = wants_logits
        self.guesses = guesses
        self.size = size
        self.heard: list[object] = []

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        self.heard.append(budget)
        return [DraftTree.chain(self.guesses, 0.5, self.name) for _ in batch]

    def observe(self, sequence: Sequence, commit: Commit) -> None:
        self.heard.append((sequence, commit))

    def observe_logits(self, sequence: Sequence, tree: DraftTree, logits: Tensor) -> None:
        self.heard.append((sequence, tree, logits))

    def finish(self, sequence: Sequence) -> None:
        self.heard.append(sequence)

    @property
    def memory_bytes(self) -> int:
        return self.size


def test_its_parts_are_asked_one_by_one_and_it_has_their_names() -> None:
    parts = (Noting("a"), Noting("b:c"))
    drafter = Several(parts)
    assert drafter.parts == parts
    assert drafter.name == "a,b:c"


def test_a_drafter_alone_is_its_only_part() -> None:
    drafter = Noting("a")
    assert drafter.parts == (drafter,)


@pytest.mark.parametrize("names", [("a", "a"), ("a", "b", "a")])
def test_two_of_one_name_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(DrafterError, match=f"^{', '.join(names)}: name each drafter once"):
        Several([Noting(name) for name in names])


def test_every_part_hears_of_commits_and_ends() -> None:
    parts = [Noting("a"), Noting("b"), Noting("c")]
    drafter, sequence = Several(parts), make_sequence()
    drafter.observe(sequence, COMMIT)
    drafter.finish(sequence)
    for part in parts:
        assert part.heard == [(sequence, COMMIT), sequence]


def test_logits_go_to_those_who_want_them() -> None:
    wanting = [Noting("a", wants_logits=True), Noting("c", wants_logits=True)]
    other = Noting("b")
    drafter = Several([wanting[0], other, wanting[1]])
    sequence, tree, logits = make_sequence(), DraftTree.chain([1]), torch.zeros(2, 16)
    assert drafter.wants_logits
    drafter.observe_logits(sequence, tree, logits)
    assert [len(part.heard) for part in (*wanting, other)] == [1, 1, 0]
    for part in wanting:
        assert part.heard == [(sequence, tree, logits)]


def test_nobody_wants_logits_if_no_part_does() -> None:
    assert not Several([Noting("a"), Noting("b")]).wants_logits


def test_asked_itself_it_answers_for_the_first_that_knows_something() -> None:
    parts = [Noting("a"), Noting("b", 4, 5), Noting("c", 6)]
    budget = Budget(3, (2, 2))
    trees = Several(parts).propose([make_sequence(), make_sequence()], budget)
    assert trees == [DraftTree.chain([4, 5], 0.5, "b")] * 2
    assert [part.heard for part in parts] == [[budget]] * 3


def test_where_none_knows_anything_the_tree_is_empty() -> None:
    assert Several([Noting("a"), Noting("b")]).propose([make_sequence()], Budget(3, (2,))) == [
        DraftTree(drafter="a,b")
    ]


def test_its_memory_is_that_of_all() -> None:
    assert Several([Noting("a", size=3), Noting("b", size=40)]).memory_bytes == 43
