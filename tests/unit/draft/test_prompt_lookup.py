from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from outdraft.draft.prompt_lookup import _MAX_MATCH, NgramIndex, PromptLookup
from outdraft.types import Budget
from support.toys import make_sequence


def index_of(token_ids: list[int]) -> NgramIndex:
    index = NgramIndex()
    index.extend(token_ids)
    return index


def slow_longest_match(token_ids: list[int]) -> tuple[int, int]:
    """Tries every length and every earlier place."""
    end = len(token_ids)
    for size in range(min(_MAX_MATCH, end), 0, -1):
        for start in range(end - size - 1, -1, -1):
            if token_ids[start : start + size] == token_ids[end - size :]:
                return size, start + size
    return 0, 0


def guess(token_ids: list[int], max_nodes: int = 99, max_depth: int = 4) -> tuple[int, ...]:
    return PromptLookup().guess(index_of(token_ids), max_nodes, max_depth).token_ids


TEXTS = st.lists(st.integers(0, 3), max_size=40)


@given(TEXTS)
def test_the_match_is_the_longest_and_of_these_the_latest(token_ids: list[int]) -> None:
    assert index_of(token_ids).longest_match() == slow_longest_match(token_ids)


@given(TEXTS, st.integers(0, 40))
def test_an_index_grown_in_parts_is_the_same(token_ids: list[int], cut: int) -> None:
    index = index_of(token_ids[:cut])
    index.extend(token_ids[cut:])
    assert index.longest_match() == slow_longest_match(token_ids)


def test_what_followed_the_match_is_guessed() -> None:
    assert guess([1, 2, 3, 4, 5, 6, 9, 2, 3]) == (4, 5, 6, 9)


def test_the_longest_match_beats_a_later_shorter_one() -> None:
    assert guess([1, 2, 3, 7, 3, 8, 1, 2, 3], max_depth=1) == (7,)


def test_of_equal_matches_the_latest_counts() -> None:
    assert guess([3, 7, 3, 8, 3], max_depth=1) == (8,)


@pytest.mark.parametrize("token_ids", [[], [1], [1, 2, 3]])
def test_a_text_in_which_nothing_repeats_gives_no_guess(token_ids: list[int]) -> None:
    assert guess(token_ids) == ()


def test_a_repeating_text_is_guessed_to_keep_repeating() -> None:
    assert guess([1, 2, 3, 1, 2, 3], max_depth=8) == (1, 2, 3, 1, 2, 3, 1, 2)
    assert guess([5, 5], max_depth=3) == (5, 5, 5)


@given(TEXTS, st.integers(1, 12), st.integers(1, 12))
def test_the_guess_is_a_chain_that_copies_on_within_the_budget(
    token_ids: list[int], max_nodes: int, max_depth: int
) -> None:
    index = index_of(token_ids)
    tree = PromptLookup().guess(index, max_nodes, max_depth)
    match_len, position = slow_longest_match(token_ids)
    if match_len == 0:
        assert len(tree) == 0
        return
    assert len(tree) == min(max_nodes, max_depth)
    assert tree.parents == tuple(range(-1, len(tree) - 1))
    text = [*token_ids, *tree.token_ids]
    for node, token_id in enumerate(tree.token_ids):
        assert token_id == text[position + node]


def test_a_longer_match_is_trusted_more() -> None:
    short = PromptLookup().guess(index_of([9, 1, 8, 1]), 1, 1)
    long = PromptLookup().guess(index_of([9, 1, 2, 3, 8, 9, 1, 2, 3]), 1, 1)
    assert 0 < short.acceptance[0] < long.acceptance[0] < 1


def test_the_index_is_left_as_it_was() -> None:
    index = index_of([1, 2, 1, 2])
    PromptLookup().guess(index, 9, 9)
    assert index.token_ids == [1, 2, 1, 2]


def test_memory_is_that_of_running_requests() -> None:
    drafter = PromptLookup()
    sequence = make_sequence((1, 2, 3, 1, 2), max_new_tokens=4)
    assert drafter.memory_bytes == 0
    drafter.propose([sequence], Budget(4, (4,)))
    assert drafter.memory_bytes > 0
    drafter.finish(sequence)
    assert drafter.memory_bytes == 0
