from __future__ import annotations

from collections.abc import Iterator
from typing import SupportsIndex

import pytest
from hypothesis import given, strategies as st

from outdraft.draft.suffix import _MAX_COUNTED_LINKS, Suffix, SuffixAutomaton
from outdraft.types import DraftTree

ROOT = 0
TEXTS = st.lists(st.integers(0, 2), max_size=_MAX_COUNTED_LINKS)  # all counts are exact


def automaton_of(token_ids: list[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    automaton.extend(token_ids)
    return automaton


def state_of(automaton: SuffixAutomaton, run: tuple[int, ...]) -> int | None:
    """The state reached by reading a run of tokens; `None` where it falls off."""
    state = ROOT
    for token_id in run:
        if token_id not in automaton.children[state]:
            return None
        state = automaton.children[state][token_id]
    return state


def runs_of(token_ids: list[int]) -> dict[tuple[int, ...], int]:
    """Every run of the text with the number of places where it occurs."""
    counts: dict[tuple[int, ...], int] = {}
    for start in range(len(token_ids)):
        for end in range(start + 1, len(token_ids) + 1):
            run = tuple(token_ids[start:end])
            counts[run] = counts.get(run, 0) + 1
    return counts


def longest_repeated_ending(token_ids: list[int]) -> tuple[int, ...]:
    counts = runs_of(token_ids)
    for start in range(len(token_ids)):
        ending = tuple(token_ids[start:])
        if counts[ending] > 1:
            return ending
    return ()


def guess(token_ids: list[int], max_nodes: int = 20, max_depth: int = 20) -> DraftTree:
    return Suffix().guess(automaton_of(token_ids), max_nodes, max_depth)


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token_id))
    return paths


# --- the automaton --------------------------------------------------------------------------------


@given(TEXTS)
def test_the_runs_of_the_text_are_recognised_and_counted(token_ids: list[int]) -> None:
    automaton = automaton_of(token_ids)
    for run, count in runs_of(token_ids).items():
        state = state_of(automaton, run)
        assert state is not None
        assert automaton.counts[state] == count


@given(TEXTS, st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_nothing_but_runs_of_the_text_is_recognised(token_ids: list[int], run: list[int]) -> None:
    is_known = state_of(automaton_of(token_ids), tuple(run)) is not None
    assert is_known == (tuple(run) in runs_of(token_ids))


@given(TEXTS)
def test_the_longest_repeated_ending_is_found_at_every_length(token_ids: list[int]) -> None:
    automaton = SuffixAutomaton()
    for end, token_id in enumerate(token_ids, start=1):
        automaton.extend([token_id])
        ending = longest_repeated_ending(token_ids[:end])
        assert automaton.lengths[automaton.longest_repeated] == len(ending)
        assert automaton.longest_repeated == state_of(automaton, ending)


@given(TEXTS)
def test_the_automaton_is_small_and_its_links_lead_to_shorter_endings(
    token_ids: list[int],
) -> None:
    automaton = automaton_of(token_ids)
    assert len(automaton.links) <= max(2, 2 * len(token_ids))
    for run in runs_of(token_ids):
        state = state_of(automaton, run)
        assert state is not None
        link = automaton.links[state]
        assert automaton.lengths[link] < len(run) <= automaton.lengths[state]
        assert state_of(automaton, run[len(run) - automaton.lengths[link] :]) == link


def test_an_empty_automaton_has_no_repeated_ending() -> None:
    assert SuffixAutomaton().longest_repeated == ROOT


class Counted(list[int]):
    """A list that counts how often it is read."""

    reads = 0

    def __getitem__(self, index: SupportsIndex) -> int:  # type: ignore[override]
        Counted.reads += 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("nobody should look at all of them")


@pytest.mark.parametrize(
    "text",
    [
        lambda size: [7] * size,
        lambda size: [1, 2] * (size // 2),
        lambda size: [token for i in range(size) for token in (i % 50, i % 7)][:size],
        lambda size: list(range(size)),
    ],
    ids=["one token", "two tokens", "mixed", "all different"],
)
def test_the_work_per_token_stays_the_same_however_long_and_dull_the_text(text: object) -> None:
    reads = []
    for size in (1000, 4000):
        automaton = SuffixAutomaton()
        automaton.links = Counted(automaton.links)
        Counted.reads = 0
        automaton.extend(text(size))  # type: ignore[operator]
        reads.append(Counted.reads / size)
    assert reads[1] < 1.2 * reads[0] + 1
    assert max(reads) < 2 * _MAX_COUNTED_LINKS


# --- the guesses ----------------------------------------------------------------------------------


@given(TEXTS)
def test_every_guess_really_followed_the_end_of_the_text_somewhere(token_ids: list[int]) -> None:
    known = runs_of(token_ids)
    for path in paths_of(guess(token_ids)):
        assert (*token_ids, *path)[-2:] in known


@given(TEXTS, st.integers(1, 10), st.integers(1, 5))
def test_budget_and_depth_are_respected(
    token_ids: list[int], max_nodes: int, max_depth: int
) -> None:
    tree = guess(token_ids, max_nodes, max_depth)
    assert len(tree) <= max_nodes
    assert max(tree.depths(), default=0) <= max_depth


@given(TEXTS, st.integers(1, 10))
def test_a_larger_budget_adds_nodes_and_changes_none(token_ids: list[int], max_nodes: int) -> None:
    small, large = guess(token_ids, max_nodes), guess(token_ids, max_nodes + 5)
    assert large.token_ids[: len(small)] == small.token_ids
    assert large.parents[: len(small)] == small.parents


@given(TEXTS)
def test_nodes_come_by_falling_path_probability(token_ids: list[int]) -> None:
    probs = guess(token_ids).path_probs()
    assert probs == sorted(probs, reverse=True)


@given(TEXTS)
def test_siblings_share_no_more_than_certainty(token_ids: list[int]) -> None:
    tree = guess(token_ids)
    for parent in {-1, *range(len(tree))}:
        children = [
            acceptance
            for acceptance, other in zip(tree.acceptance, tree.parents, strict=True)
            if other == parent
        ]
        assert sum(children) < 1.0


@pytest.mark.parametrize("token_ids", [[], [1], [1, 2, 3]])
def test_a_text_in_which_nothing_repeats_gives_no_guess(token_ids: list[int]) -> None:
    assert len(guess(token_ids)) == 0


def test_a_repeated_passage_is_followed_to_its_end() -> None:
    passage = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    tree = guess([*passage, 0, *passage[:5]])
    assert paths_of(tree)[:4] == [(6,), (6, 7), (6, 7, 8), (6, 7, 8, 9)]


def test_what_followed_more_often_is_likelier() -> None:
    tree = guess([1, 2, 1, 2, 1, 2, 1, 3, 1], max_depth=1)
    by_token = dict(zip(tree.token_ids, tree.acceptance, strict=True))
    assert by_token[2] > by_token[3] > 0


def test_a_longer_context_speaks_louder_than_a_shorter_one() -> None:
    # after "5 1" came 9, after a mere "1" mostly 2
    tree = guess([5, 1, 9, 4, 1, 2, 3, 1, 2, 6, 1, 2, 5, 1], max_depth=1)
    assert tree.token_ids[0] == 9
    assert 2 in tree.token_ids
