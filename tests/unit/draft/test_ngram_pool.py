from __future__ import annotations

import tracemalloc
from collections.abc import Sequence as Seq

import pytest
from hypothesis import given, strategies as st

from outdraft.draft.ngram_pool import _WIDTH, BYTES_PER_CONTEXT, MAX_CONTEXT, Context, NgramPool


def pool_of(token_ids: Seq[int], max_contexts: int = 1000) -> NgramPool:
    pool = NgramPool(max_contexts)
    read(pool, token_ids)
    return pool


def read(pool: NgramPool, token_ids: Seq[int]) -> None:
    for i, token_id in enumerate(token_ids):
        pool.add(tuple(token_ids[max(0, i - MAX_CONTEXT) : i]), token_id)


def probs(pool: NgramPool, context: Context, min_prob: float = 0.0) -> dict[int, float]:
    """By falling probability."""
    guesses = sorted(pool.guesses(context, min_prob), key=lambda guess: -guess.prob)
    assert len({guess.token_id for guess in guesses}) == len(guesses)
    return {guess.token_id: guess.prob for guess in guesses}


# --- what it knows --------------------------------------------------------------------------------


def test_a_run_that_was_never_seen_is_followed_by_nothing() -> None:
    pool = pool_of([1, 2, 3])
    assert probs(pool, (9,)) == probs(pool, ()) == probs(pool, (3,)) == {}
    assert pool.likeliest((9,)) is None


def test_what_followed_a_run_follows_it_again() -> None:
    pool = pool_of([1, 2, 3])
    assert list(probs(pool, (1,))) == [2]
    assert list(probs(pool, (9, 9, 2))) == [3]
    assert pool.likeliest((9, 9, 2)) == 3


def test_runs_begin_within_a_context_and_never_before_it() -> None:
    pool = NgramPool()
    pool.add((1, 2, 3), 4)
    for context in [(1, 2, 3), (2, 3), (3,)]:
        assert list(probs(pool, context)) == [4]
    assert probs(pool, (1, 2)) == {}


def test_longer_runs_are_heard_first() -> None:
    pool = pool_of([1, 2, 3, 50, 7, 8, 3, 60, 7, 9, 3, 60])
    assert list(probs(pool, (1, 2, 3))) == [50, 60]
    assert list(probs(pool, (4, 4, 3))) == [60, 50]
    assert (pool.likeliest((1, 2, 3)), pool.likeliest((4, 4, 3))) == (50, 60)


def test_a_run_seen_often_leaves_less_to_shorter_ones() -> None:
    pool = pool_of([7, 3, 60])
    left = []
    for _ in range(4):
        read(pool, [1, 2, 3, 50])
        left.append(probs(pool, (1, 2, 3))[60])
    assert left == sorted(left, reverse=True)
    assert left[-1] < left[0] / 2


def test_what_follows_oftener_is_likelier() -> None:
    found = probs(pool_of([3, 50, 3, 60, 3, 50]), (3,))
    assert list(found) == [50, 60]
    assert found[50] > found[60] > 0.0


def test_of_what_follows_equally_often_the_last_is_likelier() -> None:
    assert list(probs(pool_of([3, 50, 3, 60]), (3,))) == [60, 50]
    assert list(probs(pool_of([3, 60, 3, 50]), (3,))) == [50, 60]


def test_a_guess_knows_the_longest_run_that_it_followed() -> None:
    pool = pool_of([1, 2, 3, 50, 9, 2, 3, 60, 9, 9, 3, 70])
    lengths = {guess.token_id: guess.score for guess in pool.guesses((1, 2, 3), 0.0)}
    assert lengths == {50: (3.0,), 60: (2.0,), 70: (1.0,)}


def test_a_guess_leads_to_the_context_behind_it() -> None:
    pool = pool_of([1, 2, 3, 4])
    assert [guess.state for guess in pool.guesses((1,), 0.0)] == [(1, 2)]
    assert [guess.state for guess in pool.guesses((1, 2, 3), 0.0)] == [(2, 3, 4)]


def test_guesses_that_are_too_unlikely_are_left_out() -> None:
    pool = pool_of([3, 50, 3, 60, 3, 50, 3, 50])
    least = probs(pool, (3,))[60]
    assert list(probs(pool, (3,), least)) == [50, 60]
    assert list(probs(pool, (3,), least * 1.01)) == [50]


TEXTS = st.lists(st.integers(0, 3), max_size=40)


@given(TEXTS, st.lists(st.integers(0, 3), max_size=MAX_CONTEXT), st.sampled_from([0.0, 0.1, 0.5]))
def test_probabilities_are_some(text: list[int], context: list[int], min_prob: float) -> None:
    found = probs(pool_of(text), tuple(context), min_prob)
    assert sum(found.values()) < 1.0
    assert all(min_prob <= prob and prob > 0.0 for prob in found.values())


# --- how much it keeps ----------------------------------------------------------------------------


def test_after_one_run_only_the_tokens_seen_last_are_kept() -> None:
    pool = NgramPool()
    for token_id in range(_WIDTH):
        pool.add((9,), token_id)
    pool.add((9,), 0)  # the second one is the oldest now
    pool.add((9,), 50)
    assert set(probs(pool, (9,))) == {0, *range(2, _WIDTH), 50}


def test_the_runs_seen_last_are_kept() -> None:
    pool = NgramPool(max_contexts=3)
    for context in [(1,), (2,), (3,), (1,), (4,)]:
        pool.add(context, 50)
    assert len(pool) == 3
    assert [token_id for token_id in range(9) if probs(pool, (token_id,))] == [1, 3, 4]


def test_looking_keeps_nothing_alive() -> None:
    pool = NgramPool(max_contexts=2)
    pool.add((1,), 50)
    pool.add((2,), 50)
    assert probs(pool, (1,))
    pool.add((3,), 50)
    assert probs(pool, (1,)) == {}


@given(TEXTS, st.integers(MAX_CONTEXT, 12))
def test_there_are_never_more_runs_than_it_may_keep(text: list[int], max_contexts: int) -> None:
    assert len(pool_of(text, max_contexts)) <= max_contexts


def test_the_memory_it_is_said_to_take_is_what_it_takes() -> None:
    tracemalloc.start()
    pool = pool_of(range(1000, 3000), max_contexts=10_000)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken == pytest.approx(len(pool) * BYTES_PER_CONTEXT, rel=0.25)
