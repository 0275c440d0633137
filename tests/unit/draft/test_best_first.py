from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, strategies as st

from outdraft.draft.best_first import MIN_PATH_PROB, Guess, best_first_tree
from outdraft.types import DraftTree

Table = dict[tuple[int, ...], list[float]]
"""From a path to the probabilities of tokens 0, 1, ... after it."""

TABLES = st.dictionaries(
    st.lists(st.integers(0, 2), max_size=4).map(tuple),
    st.lists(st.sampled_from([0.1, 0.3, 0.5, 0.9, 1.0]), max_size=3),
)


def grow(
    table: Table,
    max_nodes: int = 20,
    max_depth: int = 20,
    *,
    min_path_prob: float = 0.0,
    heeds: bool = True,
) -> DraftTree:
    def guesses(path: tuple[int, ...], min_prob: float) -> Iterator[Guess[tuple[int, ...]]]:
        for token_id, prob in enumerate(table.get(path, [])):
            if prob >= min_prob or not heeds:
                yield Guess(token_id, prob, (*path, token_id), (prob,))

    return best_first_tree(
        "toy",
        (),
        guesses,
        max_nodes=max_nodes,
        max_depth=max_depth,
        min_path_prob=min_path_prob,
    )


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token_id))
    return paths


def all_paths(table: Table, max_depth: int) -> dict[tuple[int, ...], float]:
    """Every path that is likely enough, with its probability."""
    found: dict[tuple[int, ...], float] = {}
    waiting: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while waiting:
        path, path_prob = waiting.pop()
        for token_id, prob in enumerate(table.get(path, []) if len(path) < max_depth else []):
            if path_prob * prob >= MIN_PATH_PROB:
                found[*path, token_id] = path_prob * prob
                waiting.append(((*path, token_id), path_prob * prob))
    return found


@given(TABLES, st.sampled_from([0.0, 0.01, 0.1, 0.25, 0.6]))
def test_paths_that_would_not_pay_are_left_out(table: Table, min_path_prob: float) -> None:
    whole = all_paths(table, 20)
    known = {path for path, prob in whole.items() if prob >= min_path_prob}
    assert set(paths_of(grow(table, 10**6, min_path_prob=min_path_prob))) == known


@given(TABLES, st.integers(0, 12), st.integers(1, 5))
def test_the_likeliest_paths_are_taken(table: Table, max_nodes: int, max_depth: int) -> None:
    tree = grow(table, max_nodes, max_depth)
    known = all_paths(table, max_depth)
    assert len(tree) == min(max_nodes, len(known))
    assert set(paths_of(tree)) <= set(known)
    probs = tree.path_probs()
    assert probs == sorted(probs, reverse=True)
    left = [prob for path, prob in known.items() if path not in paths_of(tree)]
    assert not left or not probs or max(left) <= min(probs) + 1e-9


@given(TABLES)
def test_a_method_need_not_heed_what_is_too_unlikely(table: Table) -> None:
    assert grow(table, heeds=False) == grow(table)


def test_a_node_knows_its_score_and_drafter() -> None:
    tree = grow({(): [0.1, 0.9], (1,): [0.5]})
    assert tree.drafter == "toy"
    assert tree.token_ids == (1, 0, 0)
    assert tree.scores == ((0.9,), (0.5,), (0.1,))
