from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from outdraft.draft.recycling import (
    _MAX_PENDING,
    MAX_CONTEXT,
    WIDTH,
    Recycling,
    context_of,
    key_of,
    keys_of,
)
from outdraft.interfaces import TargetModel
from outdraft.models.table import TableTarget
from outdraft.sequence import Sequence
from outdraft.types import Budget, DraftTree
from support.runs import run
from support.tiny_models import tiny_target
from support.toys import make_sequence

VOCAB = 200


def small() -> Recycling:
    return Recycling(num_slots=256)


def says(*rows: dict[int, float]) -> Tensor:
    """Logits of rows that give some tokens these probabilities, and the rest to many others."""
    logits = torch.full((len(rows), VOCAB), 1e-9)
    for row, probs in enumerate(rows):
        logits[row, 100:] = (1.0 - sum(probs.values())) / (VOCAB - 100)
        for token_id, prob in probs.items():
            logits[row, token_id] = prob
    return logits.log()


def text(token_ids: Seq[int], **more: Any) -> Sequence:
    return make_sequence(token_ids, eos_ids=[], max_new_tokens=1000, **more)


def hear(drafter: Recycling, token_ids: Seq[int], probs: dict[int, float]) -> None:
    """A plain step behind this text, after which the drafter is asked again."""
    drafter.observe_logits(text(token_ids), DraftTree(), says(probs))
    drafter.propose([], Budget(0))


def guess(
    drafter: Recycling, token_ids: Seq[int], max_nodes: int = 23, max_depth: int = 99
) -> DraftTree:
    (tree,) = drafter.propose([text(token_ids)], Budget(max_nodes, (max_depth,)))
    return tree


def first_guesses(tree: DraftTree) -> dict[int, float]:
    return {
        token_id: acceptance
        for token_id, parent, acceptance in zip(
            tree.token_ids, tree.parents, tree.acceptance, strict=True
        )
        if parent == -1
    }


# --- what it learns -------------------------------------------------------------------------------


def test_without_experience_nothing_is_guessed() -> None:
    assert len(guess(small(), [1, 2, 3])) == 0


def test_what_the_target_said_once_is_guessed_where_the_text_ends_alike() -> None:
    drafter = small()
    hear(drafter, [1, 2, 3], {50: 0.7, 60: 0.3})
    assert list(first_guesses(guess(drafter, [1, 2, 3]))) == [50, 60]
    assert list(first_guesses(guess(drafter, [9, 9, 3]))) == [50, 60]
    assert first_guesses(guess(drafter, [1, 2, 4])) == {}


def test_rejected_guesses_teach_as_much_as_accepted_ones() -> None:
    drafter = small()
    #  3 ──▶ 50 ──▶ 51        the target says 60 after 3: both branches are wrong
    #    └─▶ 40
    tree = DraftTree((50, 51, 40), (-1, 0, -1), (0.9, 0.9, 0.1))
    rows = says({60: 0.9}, {70: 0.8}, {80: 0.7}, {90: 0.6})
    drafter.observe_logits(text([1, 2, 3]), tree, rows)
    for context, token_id in [([3], 60), ([3, 50], 70), ([50, 51], 80), ([2, 3, 40], 90)]:
        assert list(first_guesses(guess(drafter, context))) == [token_id]


def test_what_it_knows_outlives_the_request() -> None:
    drafter = small()
    sequence = text([1, 2, 3])
    drafter.observe_logits(sequence, DraftTree(), says({50: 0.9}))
    drafter.finish(sequence)
    assert first_guesses(guess(drafter, [1, 2, 3]))


def test_chains_of_opinions_become_paths() -> None:
    drafter = small()
    for token_id in range(10, 20):
        hear(drafter, [token_id], {token_id + 1: 0.95})
    tree = guess(drafter, [10], max_nodes=5)
    assert tree.token_ids == (11, 12, 13, 14, 15)
    assert tree.parents == (-1, 0, 1, 2, 3)


# --- what it thinks of it -------------------------------------------------------------------------


def test_longer_contexts_are_heard_first() -> None:
    drafter = small()
    for _ in range(5):
        hear(drafter, [7, 7, 3], {50: 0.9})
        hear(drafter, [1, 2, 3], {60: 0.9})
        hear(drafter, [7, 7, 3], {50: 0.9})
    assert next(iter(first_guesses(guess(drafter, [1, 2, 3])))) == 60
    assert next(iter(first_guesses(guess(drafter, [7, 7, 3])))) == 50


def test_a_context_seen_often_leaves_less_to_shorter_ones() -> None:
    acceptances = []
    drafter = small()
    for _ in range(4):
        hear(drafter, [9, 9, 3], {50: 0.9})
        hear(drafter, [1, 2, 3], {60: 0.9})
        hear(drafter, [9, 9, 3], {50: 0.9})
        acceptances.append(first_guesses(guess(drafter, [1, 2, 3]))[60])
    assert acceptances == sorted(acceptances)
    assert acceptances[0] < acceptances[-1] < 0.9


def test_the_score_says_how_it_is_known() -> None:
    drafter = small()
    hear(drafter, [1, 2, 3], {50: 0.9})
    hear(drafter, [1, 2, 3], {50: 0.9})
    tree = guess(drafter, [1, 2, 3])
    assert len(drafter.score_names) == len(tree.scores[0])
    assert tree.scores[0] == pytest.approx((3.0, tree.acceptance[0], 2.0))
    assert guess(drafter, [8, 2, 3]).scores[0][0] == 2.0
    assert guess(drafter, [8, 8, 3]).scores[0][0] == 1.0


OPINIONS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), min_size=1, max_size=4),
        st.dictionaries(st.integers(0, 3), st.floats(0.05, 0.25), min_size=1, max_size=4),
    ),
    max_size=15,
)


@given(OPINIONS, st.integers(1, 12), st.integers(1, 6))
def test_trees_keep_the_budget_and_siblings_share_no_more_than_certainty(
    opinions: list[tuple[list[int], dict[int, float]]], max_nodes: int, max_depth: int
) -> None:
    drafter = small()
    for token_ids, probs in opinions:
        hear(drafter, token_ids, probs)
    tree = guess(drafter, [1, 2], max_nodes, max_depth)
    assert len(tree) <= max_nodes
    assert max(tree.depths(), default=0) <= max_depth
    for parent in {-1, *range(len(tree))}:
        children = [tree.acceptance[n] for n in range(len(tree)) if tree.parents[n] == parent]
        assert sum(children) < 1.0 + 1e-6


# --- how it keeps it ------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(*[st.integers(-1, 300_000)] * MAX_CONTEXT), min_size=1, max_size=9, unique=True
    )
)
def test_keys_are_the_same_one_by_one_and_together(contexts: list[tuple[int, ...]]) -> None:
    assert keys_of(contexts).T.tolist() == [key_of(context) for context in contexts]
    pairs = {context[-2:] for context in contexts}
    assert len({key_of((0, *pair))[1] for pair in pairs}) == len(pairs)


def test_texts_shorter_than_a_context_are_filled_up() -> None:
    assert context_of(text([5])) == (-1, -1, 5)
    assert context_of(text([1, 2, 3, 4])) == (2, 3, 4)


def test_the_memory_does_not_grow() -> None:
    drafter = small()
    size = drafter.memory_bytes
    for token_id in range(VOCAB):
        hear(drafter, [token_id, token_id], {token_id: 0.5, 3: 0.2})
        guess(drafter, [token_id])
    assert drafter.memory_bytes == size == MAX_CONTEXT * 256 * (8 + 4 + WIDTH * 8)


def test_rows_nobody_asks_for_do_not_pile_up() -> None:
    drafter = small()
    tree = DraftTree.chain(range(20))
    for _ in range(100):
        drafter.observe_logits(text([1]), tree, torch.zeros(21, VOCAB))
        assert sum(len(contexts) for contexts, _ in drafter._pending) <= _MAX_PENDING + 21
    guess(drafter, [1])
    assert drafter._pending == []


def test_of_equal_contexts_in_one_step_that_of_the_likeliest_path_counts() -> None:
    drafter = small()
    tree = DraftTree((5, 6, 5), (-1, -1, 1), (0.9, 0.1, 0.1))
    rows = says({1: 0.9}, {50: 0.9}, {2: 0.9}, {60: 0.9})
    drafter.observe_logits(text([1, 2, 3]), tree, rows)
    assert first_guesses(guess(drafter, [8, 8, 5])).keys() == {50}


# --- the text stays the plain one -----------------------------------------------------------------


def requests(temperature: float) -> list[Sequence]:
    """Of different lengths, so that some leave while others go on, and others join."""
    return [
        make_sequence(
            prompt,
            request_id=i,
            seed=i,
            eos_ids=[],
            temperature=temperature,
            max_new_tokens=10 + 7 * i,
        )
        for i, prompt in enumerate([(1, 2, 3), (4,), (5, 6, 7, 5, 6), (1, 2, 3), (9, 9, 9)])
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("max_batch", [1, 2, 5])
@pytest.mark.parametrize("name", ["table", "llama"])
def test_no_experience_changes_the_text(
    table: TableTarget, name: str, max_batch: int, temperature: float
) -> None:
    target: TargetModel = table if name == "table" else tiny_target("llama")
    plain = requests(temperature)
    run(target, small(), plain, max_draft_nodes=0)
    drafter = small()
    for _ in range(2):  # cold, then warm
        drafted = requests(temperature)
        run(target, drafter, drafted, max_batch=max_batch, max_draft_nodes=9)
        assert [sequence.new_ids for sequence in drafted] == [
            sequence.new_ids for sequence in plain
        ]
    assert sum(sequence.stats.accepted for sequence in drafted) > 0
