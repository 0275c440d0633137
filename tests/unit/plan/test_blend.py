from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
from hypothesis import given, strategies as st

from outdraft.errors import DrafterError
from outdraft.plan.blend import Blend, blend
from outdraft.types import DraftTree
from support.trees import Parts, build, tree_parts

PARTS = st.lists(tree_parts(), max_size=4)
Path = tuple[int, ...]


def named(tree: DraftTree, drafter: str) -> DraftTree:
    return DraftTree(tree.token_ids, tree.parents, tree.acceptance, drafter)


def trees_of(parts: Seq[Parts]) -> list[DraftTree]:
    return [named(build(part), f"drafter {i}") for i, part in enumerate(parts)]


def paths_of(tree: DraftTree) -> list[Path]:
    paths: list[Path] = []
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token_id))
    return paths


def probs_of(merged: Blend) -> dict[Path, float]:
    return dict(zip(paths_of(merged.tree), merged.tree.acceptance, strict=True))


A = DraftTree((1, 2, 3), (-1, 0, 1), (0.5, 0.5, 0.5), "suffix")
B = DraftTree((1, 2, 4, 5), (-1, 0, 0, 2), (0.6, 0.4, 0.3, 0.9), "recycling")


# --- the tree -------------------------------------------------------------------------------------


def test_a_node_of_several_drafters_stands_once_and_knows_them() -> None:
    merged = blend([A, B])
    assert merged.tree.drafter == "suffix,recycling"
    sources = dict(zip(paths_of(merged.tree), merged.sources, strict=True))
    assert sources == {
        (1,): ("suffix", "recycling"),
        (1, 2): ("suffix", "recycling"),
        (1, 2, 3): ("suffix",),
        (1, 4): ("recycling",),
        (1, 4, 5): ("recycling",),
    }


def test_the_same_token_after_other_tokens_is_another_node() -> None:
    merged = blend([DraftTree.chain([1, 2]), DraftTree.chain([2, 1])])
    assert set(paths_of(merged.tree)) == {(1,), (1, 2), (2,), (2, 1)}


@given(PARTS)
def test_no_guess_is_lost_and_none_is_added(parts: list[Parts]) -> None:
    trees = trees_of(parts)
    merged = blend(trees)
    found = dict(zip(paths_of(merged.tree), merged.sources, strict=True))
    assert len(found) == len(merged.tree)
    expected: dict[Path, tuple[str, ...]] = {}
    for tree in trees:
        for path in paths_of(tree):
            expected[path] = (*expected.get(path, ()), tree.drafter)
    assert found == expected


@given(PARTS)
def test_the_first_nodes_are_the_likeliest_and_form_a_tree(parts: list[Parts]) -> None:
    tree = blend(trees_of(parts)).tree
    probs = tree.path_probs()
    assert probs == sorted(probs, reverse=True)
    assert all(parent < node for node, parent in enumerate(tree.parents))


@pytest.mark.parametrize("trees", [[], [DraftTree()], [DraftTree(), DraftTree(drafter="x")]])
def test_nothing_guessed_makes_an_empty_tree(trees: list[DraftTree]) -> None:
    merged = blend(trees)
    assert len(merged.tree) == 0
    assert merged.sources == ()


def test_a_drafter_asked_twice_is_named_once() -> None:
    assert set(blend([A, A]).sources) == {("suffix",)}


# --- probabilities --------------------------------------------------------------------------------


def test_of_several_estimates_the_highest_counts_and_is_lowered() -> None:
    probs = probs_of(blend([A, B]))
    assert probs[1,] == pytest.approx(0.75 * 1.5 / (0.75 * 1.5 + 1))
    assert probs[1, 2] == pytest.approx(0.75 / 1.75)
    assert probs[1, 2, 3] == pytest.approx(0.75 / 1.75)


@given(tree_parts(), st.integers(0, 2))
def test_a_drafter_alone_is_taken_at_its_word(parts: Parts, num_empty: int) -> None:
    tree = build(parts)
    merged = blend([DraftTree()] * num_empty + [tree])
    sums: dict[int, float] = {}
    for parent, prob in zip(tree.parents, tree.acceptance, strict=True):
        sums[parent] = sums.get(parent, 0.0) + prob
    expected = {
        path: prob / max(1.0, sums[parent])
        for path, prob, parent in zip(paths_of(tree), tree.acceptance, tree.parents, strict=True)
    }
    assert probs_of(merged) == pytest.approx(expected)


@given(PARTS)
def test_siblings_never_sum_up_to_more_than_one(parts: list[Parts]) -> None:
    tree = blend(trees_of(parts)).tree
    for parent in {*tree.parents}:
        siblings = [
            prob
            for prob, other in zip(tree.acceptance, tree.parents, strict=True)
            if other == parent
        ]
        assert sum(siblings) <= 1.0 + 1e-9


def test_calibrated_probabilities_take_the_place_of_stated_ones() -> None:
    merged = blend([A, DraftTree()], [[0.9, 0.8, 0.1], []])
    assert probs_of(merged) == {(1,): 0.9, (1, 2): 0.8, (1, 2, 3): 0.1}


def test_calibration_may_change_which_nodes_are_best() -> None:
    tree = DraftTree((1, 2), (-1, -1), (0.6, 0.3))
    assert blend([tree]).tree.token_ids == (1, 2)
    assert blend([tree], [[0.1, 0.7]]).tree.token_ids == (2, 1)


@pytest.mark.parametrize("acceptance", [[], [[0.5]], [[0.5] * 3, [0.5] * 3]])
def test_each_node_needs_its_probability(acceptance: list[list[float]]) -> None:
    with pytest.raises(DrafterError, match=r"trees of \[3, 4\] nodes"):
        blend([A, B], acceptance)


# --- whose a planned node is ----------------------------------------------------------------------


def test_planned_nodes_are_found_again_in_any_order() -> None:
    merged = blend([A, B])
    planned = DraftTree((1, 4, 2), (-1, 0, 0), (0.5, 0.5, 0.5), "blend")
    both = ("suffix", "recycling")
    assert merged.sources_of(planned) == [both, ("recycling",), both]
    assert merged.sources_of(DraftTree()) == []


def test_a_node_of_another_draft_is_refused() -> None:
    planned = DraftTree((1, 2, 7), (-1, 0, 0), (0.5, 0.5, 0.5))
    with pytest.raises(DrafterError, match="token 7 after node 0"):
        blend([A, B]).sources_of(planned)
