from __future__ import annotations

import io
from collections.abc import Iterator, Sequence as Seq

import pytest
from hypothesis import given, strategies as st

from outdraft.cli.writers import DraftWriter, NoWriter, OriginSplitter, TextWriter
from outdraft.results import Piece, Result
from outdraft.sequence import Sequence
from outdraft.stats import Stats
from outdraft.types import Origin
from support.command_line import PIECES
from support.toys import EOS, make_sequence

CAT, SAT, DOT, NEWLINE, E1, E2 = 1, 2, 3, 6, 7, 8
ORIGINS: tuple[Origin, ...] = ("drafted", "corrected", "bonus", "plain")


def decode(token_ids: Seq[int]) -> str:
    return b"".join(PIECES[i] for i in token_ids if i != EOS).decode(errors="replace")


def make_result(text: str) -> Result:
    return Result(text, (), 1, "stop", 0, "none", Stats())


def pieces(sequence: Sequence, groups: Seq[Seq[tuple[int, Origin]]]) -> Iterator[Piece]:
    """What a stream would yield for these tokens, step by step."""
    for group in groups:
        taken, text = [], ""
        for token_id, origin in group:
            if sequence.finish_reason is None:
                text += sequence.append(token_id)
                taken.append((token_id, origin))
        if taken:
            token_ids, origins = zip(*taken, strict=True)
            yield Piece(text, token_ids, origins)


tokens = st.tuples(st.integers(0, EOS), st.sampled_from(ORIGINS))
steps = st.lists(st.lists(tokens, min_size=1, max_size=5), max_size=12)


@given(steps, st.lists(st.sampled_from([" cat", "t.", "\n", "é", "at on"]), max_size=2))
def test_parts_join_to_the_text_whatever_stops_it(
    groups: list[list[tuple[int, Origin]]], stop: list[str]
) -> None:
    sequence = make_sequence(decode=decode, max_new_tokens=30, stop=stop)
    splitter = OriginSplitter(decode)
    shown = ""
    for piece in pieces(sequence, groups):
        parts = list(splitter.split(piece.text, piece.token_ids, piece.origins))
        assert "".join(text for text, _ in parts) == piece.text
        assert all(text for text, _ in parts)
        shown += piece.text
    if sequence.finish_reason is None:
        sequence.cancel()
    rest = sequence.text[len(shown) :]

    assert "".join(text for text, _ in splitter.split(rest, (), ())) == rest


def test_each_token_of_a_step_keeps_its_own_origin() -> None:
    splitter = OriginSplitter(decode)

    parts = splitter.split(" cat sat.", (CAT, SAT, DOT), ("drafted", "drafted", "bonus"))

    assert list(parts) == [(" cat", "drafted"), (" sat", "drafted"), (".", "bonus")]


def test_a_character_of_two_tokens_belongs_to_the_one_that_completes_it() -> None:
    splitter = OriginSplitter(decode)

    assert list(splitter.split("", (E1,), ("drafted",))) == []
    assert list(splitter.split("é.", (E2, DOT), ("corrected", "drafted"))) == [
        ("é", "corrected"),
        (".", "drafted"),
    ]


def test_half_a_character_at_the_end_belongs_to_its_token() -> None:
    splitter = OriginSplitter(decode)

    assert list(splitter.split("", (E1,), ("drafted",))) == []
    assert list(splitter.split("\ufffd", (), ())) == [("\ufffd", "drafted")]


def test_text_held_back_for_a_stop_string_keeps_its_origin() -> None:
    splitter = OriginSplitter(decode)

    first = list(splitter.split(" c", (CAT,), ("drafted",)))
    second = list(splitter.split("at sat", (SAT,), ("bonus",)))

    assert first == [(" c", "drafted")]
    assert second == [("at", "drafted"), (" sat", "bonus")]


def test_text_nobody_has_seen_the_tokens_of_is_still_shown() -> None:
    assert list(OriginSplitter(decode).split(" cat", (), ())) == [(" cat", "plain")]


@pytest.mark.parametrize(
    ("has_colours", "wanted"),
    [
        (True, "a \x1b[32mcat\x1b[0m \x1b[1;31msat\x1b[0m\x1b[4;36m.\x1b[0m\n"),
        (False, "a ·cat ≠sat+.·\n"),
    ],
)
def test_tokens_are_dressed_one_by_one(has_colours: bool, wanted: str) -> None:
    file = io.StringIO()
    writer = DraftWriter(file, decode, has_colours=has_colours)
    legend = file.getvalue()

    writer.show(Piece("a", (0,), ("plain",)))
    writer.show(Piece(" cat sat", (CAT, SAT), ("drafted", "corrected")))
    writer.show(Piece(".\n", (DOT, NEWLINE), ("bonus", "drafted")))
    writer.end(make_result("a cat sat.\n"))

    assert legend.endswith("\n\n")
    assert file.getvalue().removeprefix(legend) == wanted


def test_what_was_not_streamed_comes_at_the_end() -> None:
    for writer, file in [
        (TextWriter(plain := io.StringIO()), plain),
        (DraftWriter(drafts := io.StringIO(), decode, has_colours=True), drafts),
    ]:
        writer.show(Piece("a", (0,), ("plain",)))
        writer.end(make_result("a cat"))
        assert file.getvalue().endswith("a cat\n")


def test_no_writer_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    writer = NoWriter()
    writer.show(Piece("a", (0,), ("plain",)))
    writer.end(make_result("a cat"))

    assert capsys.readouterr() == ("", "")
