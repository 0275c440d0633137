from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from outdraft.bench.questions import (
    Question,
    by_group,
    fingerprint,
    read_questions,
    read_suite,
    select,
    suite_names,
)
from outdraft.errors import SettingsError

SIX = {
    "multi-turn conversation",
    "translation",
    "summarization",
    "question answering",
    "mathematical reasoning",
    "retrieval-augmented generation",
}


def write(path: Path, *lines: Any) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def question(question_id: Any = 1, category: str = "qa", *turns: str) -> dict[str, Any]:
    return {"question_id": question_id, "category": category, "turns": list(turns or ["why?"])}


# --- Spec-Bench's format --------------------------------------------------------------------------


def test_all_turns_of_a_conversation_are_read_and_references_are_not(tmp_path: Path) -> None:
    lines = [question(81, "writing", "first", "second"), {**question(82), "reference": ["because"]}]
    read = read_questions(write(tmp_path / "question.jsonl", *lines))
    assert read == [
        Question("81", "writing", ("first", "second")),
        Question("82", "qa", ("why?",)),
    ]


@pytest.mark.parametrize(
    ("category", "group"),
    [
        ("writing", "multi-turn conversation"),
        ("roleplay", "multi-turn conversation"),
        ("reasoning", "multi-turn conversation"),
        ("math", "multi-turn conversation"),
        ("coding", "multi-turn conversation"),
        ("extraction", "multi-turn conversation"),
        ("stem", "multi-turn conversation"),
        ("humanities", "multi-turn conversation"),
        ("translation", "translation"),
        ("summarization", "summarization"),
        ("qa", "question answering"),
        ("math_reasoning", "mathematical reasoning"),
        ("rag", "retrieval-augmented generation"),
        ("knitting", "knitting"),
    ],
)
def test_categories_fold_into_groups(category: str, group: str) -> None:
    assert Question("1", category, ("why?",)).group == group


# --- chats and plain text -------------------------------------------------------------------------


def test_a_chat_is_answered_where_its_user_spoke_last(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": "an answer that is not read"},
    ]
    (read,) = read_questions(write(tmp_path / "log.jsonl", {"messages": messages}))
    assert read.turns == ("three",)
    assert read.history == tuple(messages[:3])
    assert (read.question_id, read.group) == ("1", "chat")


def test_each_line_of_plain_text_is_a_prompt(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes('first\r\n\n{"not": "read as JSON"}\nth\u2028ird'.encode())
    read = read_questions(path)
    assert [q.turns for q in read] == [("first",), ('{"not": "read as JSON"}',), ("th\u2028ird",)]
    assert [q.question_id for q in read] == ["1", "3", "4"]
    assert {q.group for q in read} == {"text"}


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{nonsense", "line 2, column 2: no JSON"),
        ("[1]", "line 2: a JSON list and not an object"),
        ({"question": "why?"}, "line 2: neither 'turns' .* nor 'messages' .* among question"),
        ({}, "line 2: neither 'turns' .* nor 'messages' .* among its fields"),
        ({"turns": ["why?"]}, "line 2: category=None; name one"),
        ({**question(2), "turns": "why?"}, "line 2: turns is no list of texts"),
        ({**question(2), "turns": []}, "line 2: turns is no list of texts"),
        ({**question(2), "turns": ["why?", " "]}, "line 2: turns is no list of texts"),
        (question(True), "line 2: question_id=True is neither a number nor a text"),
        (question("1"), "line 2: question_id '1' stands in line 1 already"),
        ({"messages": [{"role": "user"}]}, "line 2: messages is no list of objects"),
        ({"messages": [{"role": "u", "content": "x"}]}, "line 2: messages is no list of objects"),
        ({"messages": "x"}, "line 2: messages is no list of objects"),
        (
            {"messages": [{"role": "system", "content": "x"}]},
            "line 2: no message is the user's; there is nothing to answer",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}], "category": 3},
            "line 2: category=3 is no text",
        ),
    ],
)
def test_a_line_that_is_no_question_is_named(tmp_path: Path, line: Any, message: str) -> None:
    path = write(tmp_path / "question.jsonl", question(1), line)
    with pytest.raises(SettingsError, match=f"^{re.escape(str(path))}, {message}"):
        read_questions(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing\.txt cannot be read: No such file"):
        read_questions(tmp_path / "missing.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(SettingsError, match=r"latin.txt is not UTF-8 text"):
        read_questions(tmp_path / "latin.txt")
    with pytest.raises(SettingsError, match=r"empty.txt holds no questions"):
        read_questions(write(tmp_path / "empty.txt", "", " "))


# --- choosing -------------------------------------------------------------------------------------

MIXED = [
    Question("1", "writing", ("a",)),
    Question("2", "writing", ("b",)),
    Question("3", "rag", ("c",)),
    Question("4", "coding", ("d",)),
    Question("5", "code editing", ("e",)),
    Question("6", "rag", ("f",)),
    Question("7", "coding", ("g",)),
]


def ids(questions: list[Question]) -> str:
    return "".join(q.question_id for q in questions)


@pytest.mark.parametrize(
    ("groups", "limit", "chosen"),
    [
        ([], None, "1234567"),
        (["rag"], None, "36"),
        (["Retrieval-augmented generation"], None, "36"),
        (["code-editing"], None, "5"),
        (["writing"], None, "12"),
        (["multi-turn conversation", "rag"], None, "123467"),
        ([], 1, "135"),
        ([], 2, "13456"),  # of each category one, not both of the first
        ([], 3, "123456"),
        (["coding", "rag"], 1, "34"),
    ],
)
def test_groups_and_limits_choose(groups: list[str], limit: int | None, chosen: str) -> None:
    assert ids(select(MIXED, groups, limit)) == chosen


def test_what_cannot_be_chosen_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"group='poetry': .* only multi-turn conv"):
        select(MIXED, ["poetry"])
    with pytest.raises(SettingsError, match="limit=0: takes at least 1"):
        select(MIXED, limit=0)


def test_a_fingerprint_is_of_all_that_a_method_sees() -> None:
    assert fingerprint(MIXED) == fingerprint(list(MIXED))
    history = ({"role": "system", "content": "x"},)
    others = [
        MIXED[::-1],
        MIXED[:-1],
        [*MIXED[:-1], Question("7", "coding", ("h",))],
        [*MIXED[:-1], Question("7", "coding", ("g",), history)],
    ]
    assert fingerprint(MIXED) not in {fingerprint(other) for other in others}


# --- the suite ------------------------------------------------------------------------------------


def test_the_suite_has_ten_prompts_in_each_of_eight_groups() -> None:
    assert suite_names() == ["default"]
    suite = read_suite()
    counts = {group: len(members) for group, members in by_group(suite).items()}
    assert counts == dict.fromkeys([*SIX, "code editing", "JSON extraction"], 10)
    assert [q.question_id for q in suite] == [str(number) for number in range(1, 81)]
    assert max(Counter(turn for q in suite for turn in q.turns).values()) == 1


def test_the_suite_has_conversations_and_real_texts() -> None:
    groups = by_group(read_suite())
    assert all(len(q.turns) == 2 for q in groups["multi-turn conversation"])
    for group in ("summarization", "retrieval-augmented generation"):
        lengths = [len(q.turns[0].split()) for q in groups[group]]
        assert 150 <= min(lengths) <= max(lengths) <= 400


def test_an_unknown_suite_is_refused() -> None:
    with pytest.raises(SettingsError, match="suite='x': there is no such suite, only default"):
        read_suite("x")
