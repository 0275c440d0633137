from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import product

import pytest
from hypothesis import given, strategies as st

from outdraft.errors import DrafterError
from outdraft.plan.budget import MARGIN_TO_BEGIN, MARGIN_TO_GO_ON, Choice, choose_nodes
from outdraft.plan.cost_model import CostModel, PassSize
from outdraft.types import DraftTree
from support.trees import Parts, build, tree_parts

ANY_DEPTH = 99
COSTS = st.lists(st.floats(0.0, 2.0), min_size=14, max_size=14)
"""Seconds that each further row takes."""


def choose(
    trees: Seq[DraftTree],
    seconds: Seq[float],
    max_depths: Seq[int] | None = None,
    max_nodes: int = 12,
    *,
    draft_seconds: float = 0.0,
    other_seconds: float = 0.0,
    is_drafting: bool = False,
) -> Choice:
    """`seconds[i]` is what a pass of `i + 1` rows per sequence takes."""
    return choose_nodes(
        trees,
        max_depths or [ANY_DEPTH] * len(trees),
        max_nodes,
        pass_seconds=lambda rows: seconds[rows - 1],
        draft_seconds=draft_seconds,
        other_seconds=other_seconds,
        is_drafting=is_drafting,
    )


def growing(steps: Seq[float], first: float = 1.0) -> list[float]:
    seconds = [first]
    for step in steps:
        seconds.append(seconds[-1] + step)
    return seconds


FLAT = [1.0] * 20
CHAIN = DraftTree.chain([1, 2, 3, 4], 0.5)


# --- what pays ------------------------------------------------------------------------------------


def test_rows_that_cost_nothing_are_all_taken() -> None:
    choice = choose([CHAIN], FLAT)
    assert choice.max_nodes == 4
    assert choice.num_nodes == (4,)
    assert choice.expected_tokens == pytest.approx(1 + 0.5 + 0.25 + 0.125 + 0.0625)
    assert choice.speedup == pytest.approx(choice.expected_tokens)


def test_rows_as_dear_as_a_pass_are_never_taken() -> None:
    tree = DraftTree.chain([1, 2, 3, 4], 1.0)
    choice = choose([tree], growing([1.0] * 12), is_drafting=True)
    assert choice.max_nodes == 0
    assert choice.expected_tokens == 1.0
    assert choice.speedup == 1.0


def test_taking_ends_where_the_next_node_is_not_worth_its_time() -> None:
    # 1.5 / 1.2 = 1.25, 1.75 / 1.4 = 1.25, 1.875 / 1.6 = 1.17
    choice = choose([CHAIN], growing([0.19, 0.21, 0.2, 0.2]))
    assert choice.max_nodes == 1
    assert choice.rate == pytest.approx(1.5 / 1.19)


def test_a_cheap_stretch_behind_a_dear_one_is_found() -> None:
    tree = DraftTree.chain([1, 2, 3, 4], 0.95)
    choice = choose([tree], growing([1.5, 0.0, 0.0, 0.0]))
    assert choice.max_nodes == 4


def test_nothing_drafted_is_plain() -> None:
    choice = choose([DraftTree(), DraftTree()], FLAT)
    assert choice.max_nodes == 0
    assert choice.num_nodes == (0, 0)
    assert choice.expected_tokens == 2.0
    assert choice.speedup == 1.0


def test_no_node_may_be_allowed() -> None:
    assert choose([CHAIN], FLAT, max_nodes=0).max_nodes == 0


def test_likeliest_nodes_are_taken_wherever_they_stand() -> None:
    tree = DraftTree((1, 2, 3), (-1, -1, 1), (0.1, 0.8, 0.9))
    choice = choose([tree], FLAT, max_nodes=2)
    assert choice.expected_tokens == pytest.approx(1 + 0.8 + 0.72)


def test_a_batch_pays_for_its_widest_sequence() -> None:
    costs = CostModel([1, 16], [1.0, 2.0])
    sure, unsure = DraftTree.chain([1, 2, 3], 0.9), DraftTree.chain([1], 0.2)

    def pass_seconds(rows: int) -> float:
        return costs.seconds(PassSize(2, rows, 0))

    choice = choose_nodes([sure, unsure], [9, 9], 8, pass_seconds=pass_seconds)
    assert choice.max_nodes == 3
    assert choice.num_nodes == (3, 1)
    assert choice.seconds == pytest.approx(costs.seconds(PassSize(2, 4, 0)))
    assert choice.plain_seconds == pytest.approx(costs.seconds(PassSize(2, 1, 0)))


def test_draft_time_is_spent_already_and_makes_wider_passes_pay() -> None:
    costs = growing([0.3] * 12)
    plain, paid = choose([CHAIN], costs), choose([CHAIN], costs, draft_seconds=1.0)
    assert plain.max_nodes == 1
    assert paid.max_nodes > 1
    assert paid.speedup < plain.speedup
    assert paid.plain_seconds == 1.0


def test_other_time_counts_for_plain_steps_too() -> None:
    choice = choose([CHAIN], FLAT, other_seconds=0.5)
    assert choice.plain_seconds == 1.5
    assert choice.speedup == pytest.approx(choice.expected_tokens)


# --- the margin -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_drafting", "margin"), [(False, MARGIN_TO_BEGIN), (True, MARGIN_TO_GO_ON)]
)
def test_drafting_has_to_be_better_by_a_margin(is_drafting: bool, margin: float) -> None:
    def width(speedup: float) -> int:
        costs = [1.0, 1.5 / speedup]
        tree = DraftTree.chain([1], 0.5)
        return choose([tree], costs, is_drafting=is_drafting).max_nodes

    assert width(1.0 + margin + 0.001) == 1
    assert width(1.0 + margin - 0.001) == 0


def test_it_is_easier_to_go_on_than_to_begin() -> None:
    assert 0.0 < MARGIN_TO_GO_ON < MARGIN_TO_BEGIN


# --- limits ---------------------------------------------------------------------------------------


def test_nodes_too_deep_to_be_committed_count_nothing() -> None:
    tree = DraftTree((1, 2, 3, 9), (-1, 0, 1, -1), (1.0, 1.0, 1.0, 0.1))
    choice = choose([tree, tree], FLAT, [1, 2])
    assert choice.num_nodes == (2, 3)
    assert choice.expected_tokens == pytest.approx(2 + 1.1 + 2.1)
    assert choose([tree], FLAT, [0]).max_nodes == 0


@given(parts=st.lists(tree_parts(), min_size=1, max_size=4), data=st.data())
def test_never_more_nodes_than_allowed_or_than_there_are(
    parts: list[Parts], data: st.DataObject
) -> None:
    trees = [build(part) for part in parts]
    max_depths = [data.draw(st.integers(0, 4)) for _ in trees]
    max_nodes = data.draw(st.integers(0, 13))
    choice = choose(trees, FLAT, max_depths, max_nodes)
    assert choice.max_nodes <= max_nodes
    assert choice.max_nodes == max(choice.num_nodes)
    for tree, depth, count in zip(trees, max_depths, choice.num_nodes, strict=True):
        assert count <= sum(other <= depth for other in tree.depths())


@given(
    parts=st.lists(tree_parts(max_nodes=4), min_size=1, max_size=3),
    steps=COSTS,
    draft_seconds=st.floats(0.0, 3.0),
    is_drafting=st.booleans(),
    data=st.data(),
)
def test_no_other_choice_of_nodes_has_a_higher_rate(
    parts: list[Parts],
    steps: list[float],
    draft_seconds: float,
    is_drafting: bool,
    data: st.DataObject,
) -> None:
    trees = [build(part) for part in parts]
    max_depths = [data.draw(st.integers(0, 3)) for _ in trees]
    seconds = growing(steps)
    choice = choose(
        trees, seconds, max_depths, draft_seconds=draft_seconds, is_drafting=is_drafting
    )

    def rate(chosen: Seq[set[int]]) -> float:
        """With just these nodes; the pass is as wide as the sequence with most of them."""
        gain = sum(
            tree.path_probs()[node]
            for tree, nodes in zip(trees, chosen, strict=True)
            for node in nodes
        )
        width = max(map(len, chosen))
        return (len(trees) + gain) / (seconds[width] + draft_seconds)

    everything = [
        list(subtrees(tree, depth)) for tree, depth in zip(trees, max_depths, strict=True)
    ]
    best = max(rate(chosen) for chosen in product(*everything))
    plain = len(trees) / (seconds[0] + draft_seconds)
    margin = MARGIN_TO_GO_ON if is_drafting else MARGIN_TO_BEGIN
    if choice.max_nodes == 0:
        assert best <= plain * (1.0 + margin) * (1 + 1e-9)
    else:
        assert choice.rate == pytest.approx(best)
        assert choice.rate > plain * (1.0 + margin) * (1 - 1e-9)


def subtrees(tree: DraftTree, max_depth: int) -> list[set[int]]:
    """All sets of nodes that hold the parents of their members, none too deep."""
    depths = tree.depths()
    found: list[set[int]] = [set()]
    for node, parent in enumerate(tree.parents):
        if depths[node] <= max_depth:
            found += [{*nodes, node} for nodes in found if parent in {-1, *nodes}]
    return found


@pytest.mark.parametrize(("num_trees", "num_depths"), [(1, 2), (2, 1), (0, 0)])
def test_there_is_one_draft_and_one_depth_per_sequence(num_trees: int, num_depths: int) -> None:
    with pytest.raises(DrafterError, match=f"{num_trees} drafts and {num_depths} depths"):
        choose_nodes([DraftTree()] * num_trees, [1] * num_depths, 5, pass_seconds=lambda _: 1.0)
