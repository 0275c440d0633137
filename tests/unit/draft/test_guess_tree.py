from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
from hypothesis import given, strategies as st

from outdraft.draft.guess_tree import (
    MIN_PATH_PROB,
    MIN_READ_PROB,
    READ_WIDTH,
    ROOT,
    Guess,
    GuessTree,
)

GUESSES = st.lists(
    st.tuples(st.integers(0, 9), st.floats(0.01, 1.0)),
    max_size=4,
    unique_by=lambda guess: guess[0],
)


def guesses(*pairs: tuple[int, float]) -> list[Guess]:
    return [Guess(token_id, acceptance, acceptance) for token_id, acceptance in pairs]


def grown(
    levels: Seq[Seq[tuple[int, float]]], max_nodes: int = 10, max_depth: int = 10
) -> GuessTree:
    """Reads what is worth it, one list of guesses after the other standing behind each node."""
    tree = GuessTree()
    left = iter(levels)
    tree.add(ROOT, guesses(*next(left, ())))
    num_rows = 0
    while nodes := tree.worth_reading(10, 10):
        tree.take_in(nodes, num_rows, [guesses(*next(left, ())) for _ in nodes])
        num_rows += len(nodes)
    return tree


TREES = st.lists(GUESSES, max_size=8).map(grown)


def test_the_likeliest_nodes_come_first() -> None:
    tree = grown([[(1, 0.6), (2, 0.3)], [(3, 0.9), (4, 0.05)], [(5, 0.5)]])
    found = [(tree.guesses[node].token_id, tree.parents[node]) for node in tree.best(10)]
    assert found == [(1, ROOT), (3, 0), (2, ROOT), (5, 1), (4, 0)]
    assert [tree.depths[node] for node in tree.best(3)] == [1, 2, 1]


def test_unlikely_guesses_are_left_out() -> None:
    tree = grown([[(1, 0.5), (2, MIN_PATH_PROB), (3, MIN_PATH_PROB - 1e-9)]])
    assert [guess.token_id for guess in tree.guesses] == [1, 2]


def test_hardly_likely_ones_are_not_read() -> None:
    tree = grown([[(1, MIN_READ_PROB), (2, MIN_READ_PROB - 1e-9)]])
    assert [tree.row_of(node) for node in range(2)] == [0, -1]


def test_a_piece_reads_no_more_than_its_width() -> None:
    tree = GuessTree()
    tree.add(ROOT, guesses((1, 0.3), (2, 0.25), (3, 0.2), (4, 0.15)))
    assert tree.worth_reading(10, 10) == [0, 1][:READ_WIDTH]
    assert tree.worth_reading(1, 10) == [0]
    assert tree.worth_reading(10, 0) == []


@pytest.mark.parametrize(
    ("text", "rows"), [((1, 3, 6), [0, 2]), ((2, 5), [1]), ((9,), []), ((), []), ((3,), [])]
)
def test_rows_are_found_along_a_text(text: tuple[int, ...], rows: list[int]) -> None:
    #  root ─▶ 1 ─▶ 3 ─▶ 6 (not read)    and    root ─▶ 2 ─▶ 5 (not read)
    tree = GuessTree()
    tree.add(ROOT, guesses((1, 0.6), (2, 0.4)))
    tree.take_in([0, 1], 0, [guesses((3, 0.9)), guesses((5, 0.1))])
    tree.take_in([2], 2, [guesses((6, 0.9))])
    assert tree.read_along(text) == rows


@given(TREES, st.integers(0, 12))
def test_the_best_nodes_are_a_tree(tree: GuessTree, max_nodes: int) -> None:
    best = tree.best(max_nodes)
    assert len(best) == min(max_nodes, len(tree.guesses))
    for place, node in enumerate(best):
        assert tree.parents[node] == ROOT or tree.parents[node] in best[:place]


@given(TREES)
def test_rows_rise_along_every_path(tree: GuessTree) -> None:
    for node, parent in enumerate(tree.parents):
        if tree.row_of(node) >= 0:
            assert tree.row_of(parent) < tree.row_of(node)
