from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from outdraft.stopping import StopStrings


def push_all(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    """What is shown of each piece, up to the stop."""
    guard, shown = StopStrings(stops), []
    for piece in pieces:
        text, is_stopped = guard.push(piece)
        shown.append(text)
        if is_stopped:
            return shown, True
    return shown, False


def test_without_stop_strings_everything_passes_at_once() -> None:
    assert push_all([], ["a", "", "bc"]) == (["a", "", "bc"], False)


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["xxEND"], ["xx"]),
        (["xxENDyy"], ["xx"]),
        (["xxE", "NDyy"], ["xx", ""]),
        (["xx", "E", "N", "D"], ["xx", "", "", ""]),
        (["END"], [""]),
        (["EEN", "D"], ["E", ""]),
        (["ENE", "ND"], ["EN", ""]),
    ],
)
def test_a_stop_string_ends_the_text_before_it_however_it_is_cut(
    pieces: list[str], shown: list[str]
) -> None:
    assert push_all(["END"], pieces) == (shown, True)


def test_what_may_become_a_stop_string_is_held_back_until_it_cannot() -> None:
    assert push_all(["END"], ["aE", "N", "x", "E"]) == (["a", "", "ENx", ""], False)


def test_the_stop_string_that_begins_first_wins() -> None:
    assert push_all(["d", "bc"], ["abcd"]) == (["a"], True)


def test_a_shorter_stop_string_completed_first_wins() -> None:
    assert push_all(["abcd", "c"], ["ab", "c", "d"]) == (["", "ab"], True)


def test_one_character_is_enough() -> None:
    assert push_all(["\n"], ["ab", "c\nd"]) == (["ab", "c"], True)


def test_flush_gives_out_what_was_held_once() -> None:
    guard = StopStrings(["END"])
    assert guard.push("aEN") == ("a", False)
    assert guard.flush() == "EN"
    assert guard.flush() == ""


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    pieces=st.lists(st.text("abc", max_size=5), max_size=12),
)
def test_any_text_is_cut_where_a_search_of_the_whole_finds_the_first_stop(
    stops: list[str], pieces: list[str]
) -> None:
    guard, shown, seen = StopStrings(stops), "", ""
    for piece in pieces:
        text, is_stopped = guard.push(piece)
        shown += text
        seen += piece
        starts = [seen.find(stop) for stop in stops if stop in seen]
        assert is_stopped == bool(starts)
        if is_stopped:
            assert shown == seen[: min(starts)]
            return
        assert seen.startswith(shown)
        held = seen[len(shown) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)
        assert not any(
            shown.endswith(stop[:size]) and not held
            for stop in stops
            for size in range(1, len(stop))
        )
    assert shown + guard.flush() == seen
