from __future__ import annotations

from collections.abc import Callable, Sequence as Seq

import pytest
from hypothesis import given, strategies as st

from outdraft.text.detokenizer import Detokenizer

MARK = "\ufffd"
SPECIAL = 300
Decode = Callable[[Seq[int]], str]


# --- toy decoders: the ways in which real tokenizers turn ids into text ---------------------------


def decode_bytes(token_ids: Seq[int]) -> str:
    """Byte-level BPE: tokens are bytes, special tokens are left out, broken characters marked."""
    return bytes(token for token in token_ids if token < 256).decode(errors="replace")


WORDS = ["▁the", "▁cat", "s", "▁", "▁▁", "né", "😀", "▁日本"]


def decode_words(token_ids: Seq[int]) -> str:
    """Sentencepiece: a space before words, none at the start of the whole text.

    Characters without a token of their own are runs of byte tokens (from 0 on); a run that is not
    valid as a whole is marked byte by byte.
    """
    text, run = "", []
    for token in [*token_ids, SPECIAL]:
        if token < 256:
            run.append(token)
            continue
        try:
            text += bytes(run).decode()
        except UnicodeDecodeError:
            text += MARK * len(run)
        run = []
        if token > SPECIAL:
            text += WORDS[token - SPECIAL - 1].replace("▁", " ")
    return text.removeprefix(" ")


def decode_capitals(token_ids: Seq[int]) -> str:
    """Looks back one token: a letter is a capital after a full stop (token 0)."""
    text = ""
    for before, token in zip([0, *token_ids], token_ids, strict=False):
        letter = "." if token == 0 else chr(ord("a") + token % 26)
        text += letter.upper() if before == 0 else letter
    return text


def word_ids(text: str) -> list[int]:
    """Ids for `decode_words`: words where there are any, bytes elsewhere."""
    ids: list[int] = []
    for part in text.split("|"):
        if part in WORDS:
            ids.append(SPECIAL + 1 + WORDS.index(part))
        else:
            ids += part.encode()
    return ids


# --- helpers --------------------------------------------------------------------------------------


def pieces_of(decode: Decode, token_ids: Seq[int]) -> list[str]:
    """The piece of each token, and last what the flush brings."""
    detokenizer = Detokenizer(decode)
    return [*map(detokenizer.push, token_ids), detokenizer.flush()]


def check(decode: Decode, token_ids: Seq[int]) -> None:
    """Pieces join to the whole text, and at no time has anything untrue been shown."""
    pieces = pieces_of(decode, token_ids)
    whole = decode(token_ids)
    assert "".join(pieces) == whole
    for end in range(len(pieces)):
        assert whole.startswith("".join(pieces[:end]))


# --- tests ----------------------------------------------------------------------------------------

TEXTS = [
    "plain words",
    "naïve café",
    "日本語のテキスト",
    "😀😀😀😀😀😀",
    "a😀b👩‍👩‍👧‍👦c",
    "한국어 ไทย हिन्दी",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_cut_into_bytes_comes_out_whole(text: str) -> None:
    pieces = pieces_of(decode_bytes, list(text.encode()))
    assert "".join(pieces) == text
    assert not any(MARK in piece for piece in pieces)


@pytest.mark.parametrize("text", TEXTS)
def test_a_character_appears_with_its_last_byte_and_not_before(text: str) -> None:
    detokenizer = Detokenizer(decode_bytes)
    for character in text:
        *first, last = character.encode()
        assert [detokenizer.push(byte) for byte in first] == [""] * len(first)
        assert detokenizer.push(last) == character


@pytest.mark.parametrize("text", TEXTS)
def test_text_made_of_fallback_bytes_comes_out_whole(text: str) -> None:
    pieces = pieces_of(decode_words, list(text.encode()))
    assert "".join(pieces) == text
    assert not any(MARK in piece for piece in pieces)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("▁the|▁cat|s", ["the", " cat", "s", ""]),
        ("▁the|▁|s", ["the", " ", "s", ""]),
        ("▁|▁the", ["", " the", ""]),
        ("é|▁cat", ["", "é", " cat", ""]),
        ("▁cat|é|▁cat", ["cat", "", "é", " cat", ""]),
    ],
)
def test_leading_spaces_are_stripped_at_the_start_of_the_text_alone(
    text: str, pieces: list[str]
) -> None:
    assert pieces_of(decode_words, word_ids(text)) == pieces


def test_spaces_survive_however_long_the_text_grows() -> None:
    check(decode_words, word_ids("▁the|▁cat|s|▁日本" + "|▁the|▁|▁cat" * 20))


@pytest.mark.parametrize("count", [1, 5, 6, 7, 13, 40])
def test_spaces_survive_a_row_of_special_tokens(count: int) -> None:
    check(decode_words, [*word_ids("▁the"), *[SPECIAL] * count, *word_ids("▁cat")])


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_character_that_is_never_finished_is_marked_at_the_end(cut: int) -> None:
    ids = [*b"ab", *"😀".encode()[:cut]]
    pieces = pieces_of(decode_bytes, ids)
    assert pieces == ["a", "b", *[""] * cut, MARK]


def test_bytes_that_can_never_become_a_character_do_not_hold_up_what_follows() -> None:
    assert "".join(pieces_of(decode_bytes, b"a\xff\xffb")[:-1]) == f"a{MARK}{MARK}b"


def test_a_mark_the_model_means_is_shown_with_what_follows() -> None:
    pieces = pieces_of(decode_bytes, [*MARK.encode(), *b"x"])
    assert "".join(pieces) == f"{MARK}x"


def test_nothing_is_held_after_a_flush() -> None:
    detokenizer = Detokenizer(decode_bytes)
    detokenizer.push(0xF0)
    assert detokenizer.flush() == MARK
    assert detokenizer.flush() == ""


def test_the_work_per_token_does_not_grow_with_the_text() -> None:
    longest = 0

    def decode(token_ids: Seq[int]) -> str:
        nonlocal longest
        longest = max(longest, len(token_ids))
        return decode_bytes(token_ids)

    check(decode, list("some text, é and 😀, again and again. ".encode()) * 20)
    longest = 0
    pieces_of(decode, list("some text, é and 😀, again and again. ".encode()) * 20)
    assert longest < 40


@given(st.lists(st.integers(0, 255) | st.just(SPECIAL), max_size=60))
def test_any_bytes_join_to_the_whole_text(token_ids: list[int]) -> None:
    check(decode_bytes, token_ids)


@given(st.text(max_size=40))
def test_any_text_is_shown_without_a_mark_of_its_own(text: str) -> None:
    pieces = pieces_of(decode_bytes, list(text.encode(errors="ignore")))
    assert "".join(pieces).count(MARK) == text.count(MARK)


@given(
    st.lists(
        st.one_of(
            st.sampled_from([[SPECIAL + 1 + i] for i in range(len(WORDS))] + [[SPECIAL]]),
            st.text(min_size=1, max_size=6).map(lambda text: list(text.encode(errors="ignore"))),
        ),
        max_size=30,
    )
)
def test_any_words_and_fallback_characters_join_to_the_whole_text(parts: list[list[int]]) -> None:
    check(decode_words, [token for part in parts for token in part])


@given(st.lists(st.integers(0, 5), max_size=60))
def test_a_decoder_that_looks_back_joins_to_the_whole_text(token_ids: list[int]) -> None:
    check(decode_capitals, token_ids)
