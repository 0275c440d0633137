from __future__ import annotations

import torch
from hypothesis import given, strategies as st

from outdraft.types import NO_TOKEN, DraftTree, Plan, Rows, Verdict
from outdraft.verify import verify
from support.trees import Parts, build, tree_parts


def verdicts_of(trees: list[DraftTree], drawn: list[list[int]]) -> list[Verdict]:
    """`drawn[b][r]`: the token the target writes after row `r`; ragged lists are padded."""
    num_rows = max(len(row) for row in drawn)
    padded = [row + [0] * (num_rows - len(row)) for row in drawn]
    rows = Rows(  # what the rows read is not looked at
        token_ids=torch.zeros(len(trees), num_rows, dtype=torch.long),
        position_ids=torch.zeros(len(trees), num_rows, dtype=torch.long),
        ancestors=torch.zeros(len(trees), num_rows, num_rows, dtype=torch.bool),
        row_lens=tuple(1 + len(tree) for tree in trees),
    )
    return verify(Plan(tuple(trees), rows), torch.tensor(padded))


def verdict_of(tree: DraftTree, drawn: list[int]) -> Verdict:
    return verdicts_of([tree], [drawn])[0]


def test_without_guesses_the_target_writes_plainly() -> None:
    assert verdict_of(DraftTree(), [7]) == Verdict((0,), (7,), "plain", ())


def test_a_chain_is_accepted_up_to_its_first_wrong_guess() -> None:
    verdict = verdict_of(DraftTree.chain([1, 2, 3, 4]), [1, 2, 9, 4, 5])
    assert verdict == Verdict((0, 1, 2), (1, 2, 9), "corrected", (1, 1, 1))


def test_a_right_chain_gets_a_bonus() -> None:
    verdict = verdict_of(DraftTree.chain([1, 2]), [1, 2, 3])
    assert verdict == Verdict((0, 1, 2), (1, 2, 3), "bonus", (1, 1))


def test_a_guess_behind_a_wrong_one_is_not_accepted_even_if_right_by_itself() -> None:
    verdict = verdict_of(DraftTree.chain([9, 2, 3]), [1, 2, 3, 4])
    assert verdict == Verdict((0,), (1,), "corrected", (1,))


def test_a_row_where_nothing_is_allowed_ends_the_walk() -> None:
    assert verdict_of(DraftTree(), [NO_TOKEN]) == Verdict((0,), (), "plain", ())
    verdict = verdict_of(DraftTree.chain([1, 2, 3]), [1, 2, NO_TOKEN, 4])
    assert verdict == Verdict((0, 1, 2), (1, 2), "bonus", (1, 1))
    assert verdict.is_blocked
    assert not verdict_of(DraftTree.chain([1]), [1, 2]).is_blocked


#          root ─▶ 1 (a) ─▶ 3 (b) ─▶ 4 (c)
#            └───▶ 2 (x) ─▶ 5 (y)
TREE = DraftTree((10, 20, 11, 12, 21), (-1, -1, 0, 2, 1), (1.0,) * 5)


def test_a_tree_is_walked_down_along_the_targets_tokens() -> None:
    assert verdict_of(TREE, [10, 11, 0, 12, 13, 0]) == Verdict(
        (0, 1, 3, 4), (10, 11, 12, 13), "bonus", (2, 1, 1)
    )
    assert verdict_of(TREE, [20, 0, 21, 0, 0, 22]) == Verdict(
        (0, 2, 5), (20, 21, 22), "bonus", (2, 1)
    )


def test_siblings_are_judged_together_and_cousins_are_not() -> None:
    assert verdict_of(TREE, [30, 11, 21, 12, 13, 22]) == Verdict((0,), (30,), "corrected", (2,))
    assert verdict_of(TREE, [20, 11, 11, 12, 13, 22]) == Verdict(
        (0, 2), (20, 11), "corrected", (2, 1)
    )


def test_a_leaf_beside_a_longer_branch_ends_with_a_bonus() -> None:
    tree = DraftTree((1, 2, 3), (-1, -1, 0), (1.0,) * 3)
    assert verdict_of(tree, [2, 0, 9, 0]) == Verdict((0, 2), (2, 9), "bonus", (2,))


def test_each_sequence_gets_its_own_verdict_and_padding_rows_none() -> None:
    chain = DraftTree.chain([1, 2, 3])
    assert verdicts_of([DraftTree(), chain, DraftTree.chain([5])], [[4], [1, 2, 3, 4], [5, 6]]) == [
        Verdict((0,), (4,), "plain", ()),
        Verdict((0, 1, 2, 3), (1, 2, 3, 4), "bonus", (1, 1, 1)),
        Verdict((0, 1), (5, 6), "bonus", (1,)),
    ]


@given(
    parts=tree_parts(max_nodes=10, vocab=4),
    drawn=st.lists(st.integers(0, 3), min_size=11, max_size=11),
)
def test_the_accepted_path_is_the_longest_that_writes_what_the_target_draws(
    parts: Parts, drawn: list[int]
) -> None:
    tree = build(parts)
    verdict = verdict_of(tree, drawn)
    accepted = [0]  # rows whose every step from the root the target drew itself
    for node, (token_id, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
        if parent + 1 in accepted and drawn[parent + 1] == token_id:
            accepted.append(node + 1)
    assert list(verdict.path) == accepted
    assert list(verdict.token_ids) == [drawn[row] for row in accepted]
    children = [sum(parent + 1 == row for parent in tree.parents) for row in accepted]
    assert list(verdict.judged) == [count for count in children if count]
    is_at_leaf = children[-1] == 0
    expected = ("bonus" if len(tree) else "plain") if is_at_leaf else "corrected"
    assert verdict.origin == expected
