from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from outdraft.sequence import Sequence
from support.toys import decode_pairs, make_sequence

A, B, C = 0, 1, 2  # decode_letters writes token 0 as "a" and so on


def append_all(sequence: Sequence, token_ids: Seq[int]) -> list[str]:
    """Appends until the request ends; the pieces shown."""
    pieces = []
    for token_id in token_ids:
        pieces.append(sequence.append(token_id))
        if sequence.finish_reason is not None:
            break
    return pieces


def test_a_new_request_has_its_prompt_and_nothing_else() -> None:
    sequence = make_sequence([4, 5, 6], max_new_tokens=7)
    assert (sequence.ids, sequence.new_ids, sequence.text) == ([4, 5, 6], [], "")
    assert (sequence.root_id, sequence.root_position, sequence.remaining) == (6, 2, 7)
    assert sequence.finish_reason is None


def test_the_callers_prompt_is_not_changed() -> None:
    prompt = [4, 5]
    make_sequence(prompt).append(A)
    assert prompt == [4, 5]


def test_append_moves_root_text_and_remaining() -> None:
    sequence = make_sequence([4, 5, 6], max_new_tokens=7)
    assert sequence.append(B) == "b"
    assert (sequence.root_id, sequence.root_position, sequence.remaining) == (B, 3, 6)
    assert (sequence.new_ids, sequence.text) == ([B], "b")


# --- end-of-text tokens ---------------------------------------------------------------------------


def test_an_end_token_ends_the_text_and_has_none() -> None:
    sequence = make_sequence(eos_ids=[15])
    assert append_all(sequence, [A, B, 15, C]) == ["a", "b", ""]
    assert (sequence.text, sequence.finish_reason) == ("ab", "stop")
    assert sequence.new_ids == [A, B, 15]


@pytest.mark.parametrize("end", [7, 9, 15])
def test_any_of_several_end_tokens_ends_the_text(end: int) -> None:
    sequence = make_sequence(eos_ids=[7, 9, 15])
    append_all(sequence, [A, end, C])
    assert (sequence.new_ids, sequence.finish_reason) == ([A, end], "stop")


def test_without_end_tokens_only_the_length_ends_the_text() -> None:
    sequence = make_sequence(eos_ids=[], max_new_tokens=16)
    append_all(sequence, range(16))
    assert sequence.finish_reason == "length"
    assert len(sequence.new_ids) == 16


def test_an_end_token_that_has_text_does_not_show_it() -> None:
    sequence = make_sequence(eos_ids=[C], stop="bc")
    assert append_all(sequence, [A, B, C]) == ["a", "", "b"]
    assert (sequence.text, sequence.finish_reason) == ("ab", "stop")


def test_an_end_token_in_the_prompt_means_nothing() -> None:
    sequence = make_sequence([15, 15])
    sequence.append(A)
    assert sequence.finish_reason is None


def test_ignore_eos_goes_on_past_end_tokens() -> None:
    sequence = make_sequence(ignore_eos=True, max_new_tokens=3)
    append_all(sequence, [15, A, 15])
    assert (sequence.new_ids, sequence.finish_reason) == ([15, A, 15], "length")


def test_an_end_token_releases_what_might_have_been_a_stop_string() -> None:
    sequence = make_sequence(stop="abc")
    assert append_all(sequence, [A, B, 15]) == ["", "", "ab"]
    assert (sequence.text, sequence.finish_reason) == ("ab", "stop")


# --- stop strings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "pieces", "text"),
    [
        ("abc", ["", "", ""], ""),
        ("bc", ["a", "", ""], "a"),
        ("bcd", ["a", "", "", ""], "a"),
        ("c", ["a", "b", ""], "ab"),
        (("de", "cd"), ["a", "b", "", ""], "ab"),
    ],
)
def test_a_stop_string_is_found_across_tokens(
    stop: str | tuple[str, ...], pieces: list[str], text: str
) -> None:
    sequence = make_sequence(stop=stop)
    assert append_all(sequence, [0, 1, 2, 3, 4, 5]) == pieces
    assert (sequence.text, sequence.finish_reason) == (text, "stop")
    assert len(sequence.new_ids) == len(pieces)


def test_a_stop_string_may_begin_and_end_inside_tokens() -> None:
    sequence = make_sequence(stop="ac", decode=decode_pairs)  # ba | cb
    append_all(sequence, [1, 5, 0])
    assert (sequence.new_ids, sequence.text, sequence.finish_reason) == ([1, 5], "b", "stop")


def test_a_stop_string_in_the_prompt_means_nothing() -> None:
    sequence = make_sequence([0, 1], stop="ab", max_new_tokens=2)
    append_all(sequence, [1, 1])
    assert (sequence.text, sequence.finish_reason) == ("bb", "length")


def test_a_stop_string_is_not_made_of_prompt_and_text_together() -> None:
    sequence = make_sequence([0], stop="ab", max_new_tokens=1)
    sequence.append(B)
    assert (sequence.text, sequence.finish_reason) == ("b", "length")


# --- lengths --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5])
def test_max_new_tokens_is_exact(count: int) -> None:
    sequence = make_sequence(max_new_tokens=count)
    append_all(sequence, [A] * 9)
    assert (len(sequence.new_ids), sequence.remaining) == (count, 0)
    assert (sequence.text, sequence.finish_reason) == ("a" * count, "length")


def test_the_end_of_the_context_is_a_length_too() -> None:
    sequence = make_sequence([1, 2, 3], max_new_tokens=100, max_context=5)
    append_all(sequence, [A] * 9)
    assert (len(sequence.ids), sequence.finish_reason) == (5, "length")


def test_the_cap_releases_what_might_have_been_a_stop_string() -> None:
    sequence = make_sequence(stop="abc", max_new_tokens=2)
    assert append_all(sequence, [A, B]) == ["", "ab"]
    assert sequence.finish_reason == "length"


def test_an_end_token_at_the_cap_beats_the_cap() -> None:
    sequence = make_sequence(max_new_tokens=2)
    append_all(sequence, [A, 15])
    assert sequence.finish_reason == "stop"


def test_a_stop_string_at_the_cap_beats_the_cap() -> None:
    sequence = make_sequence(stop="ab", max_new_tokens=2)
    append_all(sequence, [A, B])
    assert (sequence.text, sequence.finish_reason) == ("", "stop")


def test_the_cap_shows_half_a_character_as_a_mark() -> None:
    sequence = make_sequence(
        max_new_tokens=2, eos_ids=[], decode=lambda ids: bytes(ids).decode(errors="replace")
    )
    assert append_all(sequence, [ord("x"), 0xE2]) == ["x", "\ufffd"]


# --- cancelling -----------------------------------------------------------------------------------


def test_cancel_ends_the_request_where_it_stands() -> None:
    sequence = make_sequence()
    append_all(sequence, [A, B])
    sequence.cancel()
    assert (sequence.text, sequence.finish_reason) == ("ab", "cancelled")
    assert sequence.new_ids == [A, B]


def test_cancel_releases_what_might_have_been_a_stop_string() -> None:
    sequence = make_sequence(stop="abc")
    append_all(sequence, [A, B])
    assert sequence.cancel() == "ab"
    assert (sequence.text, sequence.finish_reason) == ("ab", "cancelled")


def test_cancel_works_before_the_first_token() -> None:
    sequence = make_sequence()
    assert sequence.cancel() == ""
    assert (sequence.new_ids, sequence.finish_reason) == ([], "cancelled")


# --- further rules --------------------------------------------------------------------------------


def test_stop_ids_end_the_text_like_the_models_own_end_tokens() -> None:
    sequence = make_sequence(stop_ids=[C])
    append_all(sequence, [A, B, C, A])
    assert (sequence.text, sequence.new_ids, sequence.finish_reason) == ("ab", [A, B, C], "stop")


def test_stop_ids_count_where_the_models_own_are_ignored() -> None:
    sequence = make_sequence(stop_ids=[C], ignore_eos=True)
    append_all(sequence, [A, 15, C, A])
    assert (sequence.new_ids, sequence.finish_reason) == ([A, 15, C], "stop")


@pytest.mark.parametrize("token_ids", [[A, B, C, A], [B, C], [A, A, B, C]])
def test_a_stop_string_may_stay_in_the_text(token_ids: list[int]) -> None:
    sequence = make_sequence(stop=["bc"], include_stop=True)
    append_all(sequence, token_ids)
    text = "".join("abc"[token_id] for token_id in token_ids)
    assert sequence.text == text[: text.index("bc") + 2]
    assert sequence.finish_reason == "stop"


def test_stop_strings_begin_behind_the_least_text() -> None:
    sequence = make_sequence(stop=["ab"], min_new_tokens=3)
    append_all(sequence, [A, B, A, B, C])
    assert (sequence.text, len(sequence.new_ids)) == ("ab", 4)
    sequence = make_sequence(stop=["ab"], min_new_tokens=4, max_new_tokens=6)
    append_all(sequence, [A, B, A, B, A, C])  # the second "ab" begins too early
    assert (sequence.text, sequence.finish_reason) == ("ababac", "length")


class Asked:
    """A stop rule that notes what it is asked, and says yes at one length."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.calls: list[tuple[list[int], str]] = []

    def __call__(self, token_ids: list[int], text: str) -> bool:
        self.calls.append((token_ids, text))
        return len(token_ids) == self.at


def test_a_rule_of_the_users_is_asked_once_per_token_and_ends_the_text() -> None:
    rules = [Asked(2), Asked(9)]
    sequence = make_sequence(stop_when=rules)
    append_all(sequence, [A, B, C])
    assert (sequence.new_ids, sequence.text, sequence.finish_reason) == ([A, B], "ab", "stop")
    assert [rule.calls for rule in rules] == [[([A], "a"), ([A, B], "ab")]] * 2


def test_it_sees_the_text_that_is_shown_and_what_was_held_back_follows() -> None:
    rule = Asked(2)
    sequence = make_sequence(stop_when=rule, stop="bcc")
    assert append_all(sequence, [A, B, C]) == ["a", "b"]
    assert rule.calls == [([A], "a"), ([A, B], "a")]
    assert (sequence.text, sequence.finish_reason) == ("ab", "stop")


@pytest.mark.parametrize(("at", "length"), [(1, 4), (3, 3), (4, 4)])
def test_it_ends_no_text_that_is_too_short_and_beats_the_length(at: int, length: int) -> None:
    rule = Asked(at)
    sequence = make_sequence(stop_when=rule, min_new_tokens=3, max_new_tokens=4)
    append_all(sequence, [A] * 5)
    assert len(sequence.new_ids) == len(rule.calls) == length
    assert sequence.finish_reason == ("stop" if at > 1 else "length")


def test_it_is_asked_about_the_last_token_too() -> None:
    rule = Asked(9)
    sequence = make_sequence(stop_when=rule)
    append_all(sequence, [A, 15])
    assert rule.calls[-1] == ([A, 15], "a")
