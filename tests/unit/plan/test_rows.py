from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
import torch
from hypothesis import given, strategies as st

from outdraft.errors import DrafterError
from outdraft.plan import make_plan
from outdraft.sequence import Sequence
from outdraft.types import DraftTree, Plan
from support.toys import make_sequence
from support.trees import Parts, build, tree_parts

CPU = torch.device("cpu")


def plan_of(
    drafts: Seq[DraftTree], batch: Seq[Sequence] | None = None, max_nodes: int = 99
) -> Plan:
    batch = batch or [make_sequence(request_id=i) for i in range(len(drafts))]
    return make_plan(drafts, batch, max_nodes, vocab_size=100, device=CPU)


def paths_of(tree: DraftTree) -> set[tuple[int, ...]]:
    """The tokens from the root to each node; no two nodes of a tree share them."""
    paths: list[tuple[int, ...]] = []
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token_id))
    return set(paths)


# --- layout ---------------------------------------------------------------------------------------


def test_without_drafts_a_pass_reads_the_roots_alone() -> None:
    batch = [make_sequence([4, 5]), make_sequence([6, 7, 8])]
    plan = plan_of([DraftTree(), DraftTree()], batch)
    assert plan.rows.token_ids.tolist() == [[5], [8]]
    assert plan.rows.position_ids.tolist() == [[1], [2]]
    assert plan.rows.ancestors.tolist() == [[[True]], [[True]]]
    assert plan.rows.row_lens == (1, 1)


def test_a_chain_follows_its_root() -> None:
    rows = plan_of([DraftTree.chain([7, 8])], [make_sequence([4, 5])]).rows
    assert rows.token_ids.tolist() == [[5, 7, 8]]
    assert rows.position_ids.tolist() == [[1, 2, 3]]
    assert rows.ancestors.int().tolist() == [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]


def test_siblings_share_a_position_and_do_not_see_each_other() -> None:
    tree = DraftTree((7, 8, 9), (-1, -1, 1), (0.9, 0.5, 0.5))
    rows = plan_of([tree], [make_sequence([5])]).rows
    assert rows.token_ids.tolist() == [[5, 7, 8, 9]]
    assert rows.position_ids.tolist() == [[0, 1, 1, 2]]
    assert rows.ancestors.int().tolist() == [
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
    ]


def test_padding_rows_repeat_the_root_and_see_themselves_alone() -> None:
    batch = [make_sequence([4, 5]), make_sequence([6])]
    rows = plan_of([DraftTree.chain([1, 2]), DraftTree()], batch).rows
    assert rows.row_lens == (3, 1)
    assert rows.token_ids[1].tolist() == [6, 6, 6]
    assert rows.position_ids[1].tolist() == [0, 0, 0]
    assert rows.ancestors[1].int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


@given(parts=st.lists(tree_parts(), min_size=1, max_size=4), data=st.data())
def test_ids_positions_and_ancestors_agree_with_the_trees(
    parts: list[Parts], data: st.DataObject
) -> None:
    drafts = [build(part) for part in parts]
    batch = [
        make_sequence(data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5)))
        for _ in drafts
    ]
    plan = plan_of(drafts, batch, max_nodes=data.draw(st.integers(0, 15)))
    num_rows = 1 + max(len(tree) for tree in plan.trees)
    assert plan.rows.token_ids.shape == (len(batch), num_rows)
    assert plan.rows.row_lens == tuple(1 + len(tree) for tree in plan.trees)
    for i, (tree, sequence) in enumerate(zip(plan.trees, batch, strict=True)):
        for row in range(num_rows):
            is_padding = row > len(tree)
            line = [] if is_padding else _rows_up_to_the_root(tree, row)
            token_id = sequence.root_id if is_padding or row == 0 else tree.token_ids[row - 1]
            assert plan.rows.token_ids[i, row] == token_id
            assert plan.rows.position_ids[i, row] == sequence.root_position + max(0, len(line) - 1)
            seen = plan.rows.ancestors[i, row].nonzero()[:, 0].tolist()
            assert seen == ([row] if is_padding else sorted(line))


def _rows_up_to_the_root(tree: DraftTree, row: int) -> list[int]:
    line = [row]
    while line[-1] > 0:
        line.append(tree.parents[line[-1] - 1] + 1)
    return line


# --- the cut --------------------------------------------------------------------------------------


def test_the_nodes_most_likely_to_be_accepted_stay() -> None:
    #   root ─▶ 1 (0.9) ─▶ 2 (0.81) ─▶ 3 (0.08)
    #     └───▶ 4 (0.3) ─▶ 5 (0.3)
    tree = DraftTree((1, 2, 3, 4, 5), (-1, 0, 1, -1, 3), (0.9, 0.9, 0.1, 0.3, 1.0))
    kept = [paths_of(plan_of([tree], max_nodes=count).trees[0]) for count in range(6)]
    assert kept[0] == set()
    assert kept[1] == {(1,)}
    assert kept[2] == {(1,), (1, 2)}
    assert kept[3] == {(1,), (1, 2), (4,)}
    assert kept[4] == {(1,), (1, 2), (4,), (4, 5)}
    assert kept[5] == {(1,), (1, 2), (4,), (4, 5), (1, 2, 3)}


def test_the_likeliest_path_takes_the_first_rows() -> None:
    #   root ─▶ 7 ─▶ 8        the unlikely branch stands first in the draft
    #     └───▶ 1 ─▶ 2 ─▶ 3
    tree = DraftTree((7, 1, 8, 2, 3), (-1, -1, 0, 1, 3), (0.2, 0.8, 0.9, 0.9, 0.9))
    planned = plan_of([tree]).trees[0]
    assert planned.token_ids == (1, 2, 3, 7, 8)
    assert planned.parents == (-1, 0, 1, -1, 3)
    assert planned.acceptance == (0.8, 0.9, 0.9, 0.2, 0.9)


def test_scores_stay_with_their_nodes() -> None:
    scores = ((7.0,), (1.0,), (8.0,), (2.0,))
    tree = DraftTree((7, 1, 8, 2), (-1, -1, 0, 1), (0.2, 0.8, 0.9, 0.9), "x", scores)
    planned = plan_of([tree], max_nodes=3).trees[0]
    assert planned.token_ids == (1, 2, 7)
    assert planned.scores == ((1.0,), (2.0,), (7.0,))


@pytest.mark.parametrize(("remaining", "depth"), [(1, 0), (2, 1), (3, 2), (9, 4)])
def test_nodes_that_the_length_leaves_no_room_for_are_not_read(remaining: int, depth: int) -> None:
    sequence = make_sequence(max_new_tokens=remaining)
    tree = DraftTree((1, 2, 3, 4, 9), (-1, 0, 1, 2, -1), (0.9,) * 5, "guesser")
    planned = plan_of([tree], [sequence]).trees[0]
    assert max(planned.depths(), default=0) == depth
    assert len(planned) == (0 if depth == 0 else depth + 1)
    assert planned.drafter == "guesser"


def test_room_freed_by_nodes_too_deep_goes_to_others() -> None:
    tree = DraftTree((1, 2, 3, 9), (-1, 0, 1, -1), (1.0, 1.0, 1.0, 0.1))
    planned = plan_of([tree], [make_sequence(max_new_tokens=2)], max_nodes=2).trees[0]
    assert planned.token_ids == (1, 9)


def test_positions_never_reach_the_end_of_the_context() -> None:
    sequence = make_sequence([1, 2, 3], max_context=6)
    rows = plan_of([DraftTree.chain(range(20))], [sequence]).rows
    assert rows.position_ids.max() == 4  # the bonus takes position 5 and is not read in this pass


@given(parts=tree_parts(), max_nodes=st.integers(0, 15), max_new_tokens=st.integers(1, 9))
def test_what_stays_is_a_tree_of_the_best_nodes(
    parts: Parts, max_nodes: int, max_new_tokens: int
) -> None:
    tree = build(parts)
    sequence = make_sequence(max_new_tokens=max_new_tokens)
    planned = plan_of([tree], [sequence], max_nodes).trees[0]
    fitting = [
        prob
        for prob, depth in zip(tree.path_probs(), tree.depths(), strict=True)
        if depth < max_new_tokens
    ]
    best = sorted(fitting, reverse=True)[:max_nodes]
    assert paths_of(planned) <= paths_of(tree)
    assert sorted(planned.path_probs(), reverse=True) == pytest.approx(best)


@given(parts=tree_parts())
def test_each_path_is_followed_to_its_end_before_the_next_begins(parts: Parts) -> None:
    tree = build(parts)
    planned = plan_of([tree]).trees[0]
    assert paths_of(planned) == paths_of(tree)
    line = [-1]  # the nodes above the last one
    for node, parent in enumerate(planned.parents):
        while line[-1] != parent:
            line.pop()  # runs empty if the order leaves a subtree and comes back
        line.append(node)
    probs = planned.path_probs()
    for node, parent in enumerate(planned.parents):
        earlier = [other for other in range(node) if planned.parents[other] == parent]
        assert all(probs[other] >= probs[node] for other in earlier)


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("token_id", [-1, 100, 10**6])
def test_a_guess_outside_the_vocabulary_is_refused(token_id: int) -> None:
    with pytest.raises(DrafterError, match=r"'guesser' guessed tokens .* has 100"):
        plan_of([DraftTree.chain([1, token_id], drafter="guesser")])


def test_the_last_token_of_the_vocabulary_is_a_guess() -> None:
    assert plan_of([DraftTree.chain([0, 99])]).rows.token_ids.tolist() == [[3, 0, 99]]


@pytest.mark.parametrize("num_drafts", [0, 1, 3])
def test_there_is_one_draft_per_sequence(num_drafts: int) -> None:
    with pytest.raises(DrafterError, match=f"{num_drafts} drafts for 2 sequences"):
        plan_of([DraftTree()] * num_drafts, [make_sequence(), make_sequence()])
