"""Stop rules at every place of an accepted run: nothing after the first stop is ever seen."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from contract.drafters import ALL
from outdraft.models.table import TableTarget
from outdraft.settings import GenerationSettings
from plain import Plain, decode_plainly, reader_of_target
from support.runs import run
from support.toys import TABLE, decode_pairs, make_sequence

TARGET = TableTarget(**TABLE)
PROMPT = (5, 6, 7, 8, 9)
LENGTH = 20
MAX_DRAFT_NODES = 8
# Long runs, runs that end in a correction, runs through trees, runs with an end in the middle.
DRAFTERS = ["AlwaysRight", "RightThenWrong", "WrongSibling", "EndInTheMiddle", "TooLong", "suffix"]


@cache
def plain_of(eos_ids: tuple[int, ...] = (), max_context: int = 4096, **settings: Any) -> Plain:
    return decode_plainly(
        reader_of_target(TARGET),
        PROMPT,
        GenerationSettings(**{"max_new_tokens": LENGTH, **settings}),
        seed=3,
        eos_ids=eos_ids,
        max_context=max_context,
        decode=decode_pairs,
    )


FREE = plain_of()


def assert_plain(
    name: str, eos_ids: tuple[int, ...] = (), max_context: int = 4096, **settings: Any
) -> Plain:
    """The drafter knows the text without any stop, so it guesses right across the stop."""
    plain = plain_of(eos_ids, max_context, **settings)
    sequence = make_sequence(
        PROMPT,
        seed=3,
        eos_ids=eos_ids,
        max_context=max_context,
        decode=decode_pairs,
        **{"max_new_tokens": LENGTH, **settings},
    )
    drafter = ALL[name](TARGET, {PROMPT: FREE.token_ids})
    commits = run(TARGET, drafter, [sequence], max_draft_nodes=MAX_DRAFT_NODES)
    assert tuple(sequence.new_ids) == plain.token_ids
    assert sequence.text == plain.text == "".join(commit.text for commit in commits)
    assert sequence.finish_reason == plain.finish_reason
    return plain


def test_the_free_text_is_long_and_the_drafters_guess_runs_of_it() -> None:
    assert (len(FREE.token_ids), FREE.finish_reason) == (LENGTH, "length")
    sequence = make_sequence(PROMPT, eos_ids=[], max_new_tokens=LENGTH)
    run(TARGET, ALL["AlwaysRight"](TARGET, {PROMPT: FREE.token_ids}), [sequence])
    assert sequence.stats.tokens_per_step > 5


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_token_of_the_text_may_be_the_end_token(name: str) -> None:
    for token_id in set(FREE.token_ids):
        plain = assert_plain(name, eos_ids=(token_id,))
        assert plain.token_ids.index(token_id) == len(plain.token_ids) - 1


@pytest.mark.parametrize("name", DRAFTERS)
def test_of_several_end_tokens_the_first_in_the_text_ends_it(name: str) -> None:
    distinct = list(dict.fromkeys(FREE.token_ids))
    for place in range(1, len(distinct)):
        plain = assert_plain(name, eos_ids=tuple(distinct[place:]))
        assert plain.token_ids[-1] == distinct[place]


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_piece_of_the_text_may_be_a_stop_string(name: str, size: int) -> None:
    for start in range(len(FREE.text) - size):
        stop = FREE.text[start : start + size]
        plain = assert_plain(name, stop=(stop,))
        assert plain.text == FREE.text[: FREE.text.index(stop)]


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_stop_string_that_never_comes_holds_nothing_back_at_the_end(name: str) -> None:
    for start in range(1, 6):
        assert_plain(name, stop=(FREE.text[-start:] + "z",))


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("max_new_tokens", range(1, 13))
def test_max_new_tokens_is_never_exceeded(name: str, max_new_tokens: int) -> None:
    plain = assert_plain(name, max_new_tokens=max_new_tokens)
    assert len(plain.token_ids) == max_new_tokens


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("room", range(1, 13))
def test_the_context_is_never_exceeded(name: str, room: int) -> None:
    plain = assert_plain(name, max_context=len(PROMPT) + room)
    assert len(plain.token_ids) == room


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_stop_on_the_last_token_allowed_beats_the_cap(name: str) -> None:
    for place in range(1, LENGTH):
        token_id = FREE.token_ids[place]
        if FREE.token_ids.index(token_id) == place:
            plain = assert_plain(name, eos_ids=(token_id,), max_new_tokens=place + 1)
            assert plain.finish_reason == "stop"


@pytest.mark.parametrize("name", DRAFTERS)
def test_of_all_rules_the_earliest_place_wins(name: str) -> None:
    for cap in range(2, 9):
        for place in range(1, 9):
            assert_plain(
                name,
                eos_ids=(FREE.token_ids[place],),
                stop=(FREE.text[9:12],),
                max_new_tokens=cap,
            )
