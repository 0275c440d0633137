from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from outdraft.commit import append_tokens
from outdraft.draft.lookahead import (
    _FIRST_GUESS,
    _LATER_GUESS,
    _MAX_PENDING,
    _MAX_TRUNK,
    _MIN_TRUNK,
    Lookahead,
    Window,
)
from outdraft.draft.ngram_pool import BYTES_PER_CONTEXT
from outdraft.interfaces import Drafter
from outdraft.models.table import TableTarget
from outdraft.sequence import Sequence
from outdraft.testing import drafter_contract
from outdraft.types import Budget, DraftTree
from support.runs import run
from support.toys import TABLE, make_sequence

VOCAB = 200


def says(token_ids: Seq[int]) -> Tensor:
    """Logits of rows after which these tokens are the likeliest."""
    logits = torch.zeros(len(token_ids), VOCAB)
    logits[torch.arange(len(token_ids)), torch.tensor(token_ids)] = 1.0
    return logits


def text(token_ids: Seq[int], **more: Any) -> Sequence:
    return make_sequence(token_ids, eos_ids=[], max_new_tokens=1000, **more)


def guess(
    drafter: Drafter, sequence: Sequence, max_nodes: int = 6, max_depth: int = 99
) -> DraftTree:
    (tree,) = drafter.propose([sequence], Budget(max_nodes, (max_depth,)))
    return tree


def read(
    drafter: Drafter, sequence: Sequence, tree: DraftTree, target: Mapping[int, int]
) -> list[int]:
    """A step of a target that writes `target[token]` after each token, and 0 after others.

    Returns:
        What was committed.
    """
    said = [target.get(token_id, 0) for token_id in (sequence.root_id, *tree.token_ids)]
    drafter.observe_logits(sequence, tree, says(said))
    new_ids, node = [said[0]], -1
    children = {key: i for i, key in enumerate(zip(tree.parents, tree.token_ids, strict=True))}
    while (node, new_ids[-1]) in children:
        node = children[node, new_ids[-1]]
        new_ids.append(said[node + 1])
    drafter.observe(sequence, append_tokens(sequence, new_ids, ["plain"] * len(new_ids)))
    return new_ids


def paths_of(tree: DraftTree) -> set[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token_id))
    return set(paths)


def chain(token_ids: Seq[int]) -> DraftTree:
    return DraftTree.chain(token_ids, 0.5, "other")


# --- the trunk ------------------------------------------------------------------------------------


def test_before_anything_was_said_the_trunk_is_made_of_the_text() -> None:
    tree = guess(Lookahead(), text([1, 2, 3]))
    assert len(tree) == 6
    assert set(tree.token_ids) <= {1, 2, 3}


def test_what_is_said_after_a_row_of_the_trunk_is_the_next_guess_behind_it() -> None:
    drafter, sequence = Lookahead(), text([1])
    before = guess(drafter, sequence)
    assert before.token_ids == (1,) * 6
    #  row       root  1   1   1   1   1   1
    #  position   0    1   2   3   4   5   6
    #  says      90   91  92  93  94  95  96
    drafter.observe_logits(sequence, before, says(range(90, 97)))
    drafter.observe(sequence, append_tokens(sequence, [90], ["plain"]))
    after = guess(drafter, sequence)
    assert (91, 92, 93, 94, 95, 96) in paths_of(after)


def test_the_trunk_moves_on_by_as_many_tokens_as_were_committed() -> None:
    drafter, sequence = Lookahead(), text([1])
    before = guess(drafter, sequence)
    drafter.observe_logits(sequence, before, says(range(90, 97)))
    drafter.observe(sequence, append_tokens(sequence, [80, 81, 82], ["plain"] * 3))
    assert (93, 94, 95, 96) in paths_of(guess(drafter, sequence))


def test_behind_what_was_said_the_trunk_goes_on_with_the_pool() -> None:
    drafter, sequence = Lookahead(), text([5, 96, 97, 98, 99, 1])
    before = guess(drafter, sequence, max_nodes=1)
    assert before.token_ids == (5,)
    drafter.observe_logits(sequence, before, says([90, 96]))
    drafter.observe(sequence, append_tokens(sequence, [90], ["plain"]))
    assert (96, 97, 98, 99) in paths_of(guess(drafter, sequence))


def test_the_trunk_is_found_again_however_rows_were_ordered_or_cut() -> None:
    drafter, sequence = Lookahead(), text([1])
    guess(drafter, sequence)
    #  root ──▶ 70          of the trunk's rows only the first two were planned, behind a row of
    #    └────▶ 1 ──▶ 1     somebody else
    planned = DraftTree((70, 1, 1), (-1, -1, 1), (0.9, 0.1, 0.1))
    drafter.observe_logits(sequence, planned, says([90, 60, 91, 92]))
    drafter.observe(sequence, append_tokens(sequence, [90], ["plain"]))
    assert (91, 92) in paths_of(guess(drafter, sequence))


def test_guesses_outlive_a_step_in_which_others_were_read() -> None:
    drafter, sequence = Lookahead(), text([1])
    drafter.observe_logits(sequence, guess(drafter, sequence), says(range(90, 97)))
    drafter.observe(sequence, append_tokens(sequence, [90], ["plain"]))
    drafter.observe_logits(sequence, chain([70, 71]), says([80, 81, 82]))
    drafter.observe(sequence, append_tokens(sequence, [80], ["plain"]))
    assert (92, 93, 94, 95, 96) in paths_of(guess(drafter, sequence))


def test_guesses_of_the_trunk_have_no_run_behind_them() -> None:
    tree = guess(Lookahead(), text([1]))
    assert tree.scores == ((0.0,),) * 6
    assert max(tree.path_probs()) < 0.1


def test_the_trunk_gets_a_little_of_what_the_pool_leaves() -> None:
    window = Window()
    window.extend([1])
    pool = DraftTree((5,), (-1,), (0.9,), "lookahead", ((1.0,),))
    tree = window.with_trunk(pool, max_nodes=3, max_depth=9)
    assert (tree.token_ids, tree.parents) == ((5, 1, 1), (-1, -1, 1))
    assert tree.acceptance == pytest.approx((0.9, 0.1 * _FIRST_GUESS, _LATER_GUESS))


def test_a_guess_that_the_pool_has_too_takes_no_row_of_its_own() -> None:
    tree = guess(Lookahead(), text([5, 6, 7, 8, 5, 6, 7, 8, 5]), max_nodes=12)
    assert (6, 7, 8, 5, 6) in paths_of(tree)
    assert tree.scores[:3] == ((3.0,),) * 3


def test_the_trunk_is_no_longer_than_it_pays() -> None:
    tree = guess(Lookahead(), text([1]), max_nodes=99)
    assert max(tree.depths()) == _MAX_TRUNK


def test_the_pool_leaves_rows_to_the_trunk() -> None:
    drafter, sequence = Lookahead(), text([1, 2, 1, 3, 1, 4, 1, 5, 1, 6, 1, 7, 1, 8, 1, 2, 1])
    tree = guess(drafter, sequence, max_nodes=15)
    assert len(tree) == 15
    assert sum(score > 0.0 for (score,) in tree.scores) <= 15 - _MIN_TRUNK


def test_a_single_row_is_the_pools() -> None:
    sequence = text([5, 6, 7, 8, 5, 6, 7])
    tree = guess(Lookahead(), sequence, max_nodes=1)
    assert (tree.token_ids, tree.scores) == ((8,), ((3.0,),))


# --- the pool -------------------------------------------------------------------------------------


def test_ngrams_of_the_prompt_are_guessed() -> None:
    tree = guess(Lookahead(), text([5, 6, 7, 8, 9, 5]), max_nodes=15)
    assert (6, 7, 8, 9) in paths_of(tree)
    assert tree.token_ids[0] == 6


def test_ngrams_that_the_target_said_after_wrong_guesses_are_guessed_when_the_text_gets_there() -> (
    None
):
    drafter, sequence = Lookahead(), text([1])
    read(drafter, sequence, chain([40, 50]), {1: 2, 2: 3, 3: 40, 40: 41, 50: 51})
    assert sequence.ids == [1, 2]
    drafter.observe(sequence, append_tokens(sequence, [3, 40], ["plain"] * 2))
    tree = guess(drafter, sequence)
    assert (tree.token_ids[0], tree.scores[0]) == (41, (1.0,))


def test_ngrams_are_told_apart_by_the_guesses_before_them() -> None:
    drafter, sequence = Lookahead(), text([1])
    #  1 ──▶ 10 ──▶ 30      says 70 behind 10, and 80 behind 20
    #    └─▶ 20 ──▶ 30
    tree = DraftTree((10, 30, 20, 30), (-1, 0, -1, 2), (0.5, 0.5, 0.4, 0.5))
    drafter.observe_logits(sequence, tree, says([0, 30, 70, 30, 80]))
    drafter.observe(sequence, append_tokens(sequence, [0, 20, 30], ["plain"] * 3))
    assert guess(drafter, sequence).token_ids[0] == 80
    drafter.observe(sequence, append_tokens(sequence, [10, 30], ["plain"] * 2))
    assert guess(drafter, sequence).token_ids[0] == 70


def test_of_equal_ngrams_in_one_step_that_of_the_likeliest_path_counts_most() -> None:
    drafter, sequence = Lookahead(), text([1])
    tree = DraftTree((5, 6, 5), (-1, -1, 1), (0.9, 0.1, 0.1))
    drafter.observe_logits(sequence, tree, says([0, 50, 0, 60]))
    drafter.observe(sequence, append_tokens(sequence, [0, 9, 9, 5], ["plain"] * 4))
    first, second = guess(drafter, sequence).token_ids[:2]
    assert (first, second) == (50, 60)


def test_requests_share_nothing() -> None:
    drafter = Lookahead()
    first, second = text([1], request_id=0), text([1], request_id=1)
    read(drafter, first, chain([40]), {1: 2, 40: 41})
    assert guess(drafter, second) == guess(Lookahead(), text([1]))


OPINIONS = st.lists(st.integers(0, 4), min_size=1, max_size=8)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.lists(OPINIONS, max_size=6))
def test_siblings_share_no_more_than_certainty(prompt: list[int], steps: list[list[int]]) -> None:
    drafter, sequence = Lookahead(), text(prompt)
    for said in steps:
        tree = guess(drafter, sequence, max_nodes=9)
        rows = [said[row % len(said)] for row in range(len(tree) + 1)]
        read(drafter, sequence, tree, dict(zip(tree.token_ids, rows, strict=False)))
    tree = guess(drafter, sequence, max_nodes=15)
    for parent in {-1, *range(len(tree))}:
        children = [tree.acceptance[n] for n in range(len(tree)) if tree.parents[n] == parent]
        assert sum(children) <= 1.0


# --- how it keeps it ------------------------------------------------------------------------------


def test_nothing_is_read_from_the_device_before_guesses_are_asked_for() -> None:
    drafter, sequence = Lookahead(), text([1])
    drafter.observe_logits(sequence, chain([40]), says([2, 41]))
    before = drafter.memory_bytes
    guess(drafter, text([9], request_id=1))
    assert drafter.memory_bytes > before == 0


def test_rows_nobody_asks_for_do_not_pile_up() -> None:
    drafter, sequence = Lookahead(), text([1])
    for _ in range(100):
        drafter.observe_logits(sequence, chain(range(20)), says(range(21)))
        assert sum(len(heard.said) for heard in drafter._pending) <= _MAX_PENDING
    assert drafter.memory_bytes > 0


def test_what_was_said_to_a_finished_request_is_not_kept_for_the_next() -> None:
    drafter = Lookahead()
    first, other = text([1], request_id=0), text([1], request_id=1)
    for sequence in (first, other):
        drafter.observe_logits(sequence, chain([40]), says([2, 41]))
    drafter.finish(first)
    assert [heard.window.num_tokens for heard in drafter._pending] == [1]
    again = text([40], request_id=0)
    assert guess(drafter, again) == guess(Lookahead(), text([40]))
    assert guess(drafter, text([40], request_id=1)).token_ids[0] != 41
    drafter.observe(other, append_tokens(other, [40], ["plain"]))
    assert guess(drafter, other).token_ids[0] == 41


def test_memory_goes_with_the_requests() -> None:
    drafter, sequences = Lookahead(), [text([1, 2, 3], request_id=i) for i in range(3)]
    for sequence in sequences:
        guess(drafter, sequence)
    #  2 after 1; 3 after 1 2 and after 2
    assert drafter.memory_bytes == 3 * 3 * BYTES_PER_CONTEXT
    for sequence in sequences:
        drafter.finish(sequence)
    assert drafter.memory_bytes == 0


# --- in a run -------------------------------------------------------------------------------------


def test_it_keeps_the_contract() -> None:
    drafter_contract(Lookahead)


def test_the_trunk_saves_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, n-grams come from text and verified rows alone."""

    def num_steps() -> int:
        sequences = [
            make_sequence([i], request_id=i, eos_ids=[], max_new_tokens=60) for i in range(8)
        ]
        run(TableTarget(**TABLE), Lookahead(), sequences, max_draft_nodes=9)
        return sum(sequence.stats.steps for sequence in sequences)

    with_trunk = num_steps()
    monkeypatch.setattr("outdraft.draft.lookahead._MAX_TRUNK", 0)
    assert with_trunk < num_steps()
