from __future__ import annotations

import dataclasses

import pytest
import torch

from outdraft.errors import DrafterError
from outdraft.types import Budget, DraftTree, Rows


def test_a_chain_hangs_each_node_on_the_one_before() -> None:
    tree = DraftTree.chain([7, 8, 9], 0.5, "x")
    assert (tree.token_ids, tree.parents) == ((7, 8, 9), (-1, 0, 1))
    assert (tree.acceptance, tree.drafter) == ((0.5, 0.5, 0.5), "x")


def test_a_chain_takes_one_acceptance_per_node() -> None:
    assert DraftTree.chain([7, 8], [0.5, 0.25]).acceptance == (0.5, 0.25)


def test_an_empty_chain_is_an_empty_tree() -> None:
    tree = DraftTree.chain([])
    assert len(tree) == 0
    assert not tree
    assert tree.depths() == tree.path_probs() == []


def test_depths_and_path_probs_follow_the_parents() -> None:
    tree = DraftTree((1, 2, 3, 9), (-1, 0, 1, -1), (0.5, 0.5, 1.0, 0.25))
    assert tree.depths() == [1, 2, 3, 1]
    assert tree.path_probs() == [0.5, 0.25, 0.25, 0.25]


@pytest.mark.parametrize(
    ("token_ids", "parents", "acceptance", "message"),
    [
        ((1, 2), (-1,), (0.5, 0.5), "2 tokens, 1 parents, 2 acceptances"),
        ((1, 2), (-1, 0), (0.5,), "2 tokens, 2 parents, 1 acceptances"),
        ((1,), (0,), (0.5,), "node 0 has parent 0"),
        ((1, 2), (-1, 1), (0.5, 0.5), "node 1 has parent 1"),
        ((1, 2), (1, -1), (0.5, 0.5), "node 0 has parent 1"),
        ((1,), (-2,), (0.5,), "node 0 has parent -2"),
        ((1, 1), (-1, -1), (0.5, 0.5), "two siblings"),
        ((3, 1, 1), (-1, 0, 0), (0.5, 0.5, 0.5), "two siblings"),
        ((1,), (-1,), (0.0,), "0.0"),
        ((1,), (-1,), (-0.5,), "-0.5"),
        ((1, 2), (-1, 0), (0.5, 1.01), "1.01"),
        ((1,), (-1,), (float("nan"),), "nan"),
        ((1, 2), (-1, 0), (0.5, float("nan")), "(0, 1]"),
    ],
)
def test_what_is_no_tree_is_refused_by_the_drafters_name(
    token_ids: tuple[int, ...],
    parents: tuple[int, ...],
    acceptance: tuple[float, ...],
    message: str,
) -> None:
    with pytest.raises(DrafterError, match="'guesser'") as refused:
        DraftTree(token_ids, parents, acceptance, "guesser")
    assert message in str(refused.value)


def test_scores_are_given_for_all_nodes_or_for_none() -> None:
    assert DraftTree((1, 2), (-1, 0), (0.5, 0.5), "x", ((3.0,), (4.0,))).scores == ((3.0,), (4.0,))
    with pytest.raises(DrafterError, match="'x': 1 scores for 2 tokens"):
        DraftTree((1, 2), (-1, 0), (0.5, 0.5), "x", ((3.0,),))


def test_one_token_may_stand_under_different_parents() -> None:
    assert len(DraftTree((1, 1, 1), (-1, 0, 1), (1.0, 1.0, 1.0))) == 3


def test_chain_rows_stand_at_consecutive_positions_and_see_those_before() -> None:
    rows = Rows.chain([5, 6, 7], start=10, device=torch.device("cpu"))
    assert rows.token_ids.tolist() == [[5, 6, 7]]
    assert rows.position_ids.tolist() == [[10, 11, 12]]
    assert rows.ancestors.int().tolist() == [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]
    assert (rows.num_seqs, rows.num_rows, rows.row_lens) == (1, 3, (3,))


def test_the_nouns_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        DraftTree().drafter = "other"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Budget(3).max_nodes = 4  # type: ignore[misc]
