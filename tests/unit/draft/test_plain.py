from __future__ import annotations

from outdraft.draft.plain import NoDrafter
from outdraft.types import Budget
from support.toys import make_sequence


def test_it_guesses_nothing_for_anybody() -> None:
    batch = [make_sequence([1, 1, 1, 1]), make_sequence([2, 2, 2])]
    trees = NoDrafter().propose(batch, Budget(9, (9, 9)))
    assert [len(tree) for tree in trees] == [0, 0]
