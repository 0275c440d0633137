"""Toy questions, methods that need no model, and records made by hand."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from outdraft.bench.methods import AnswerPrompts, Method
from outdraft.bench.questions import Question
from outdraft.bench.records import Answer, Record, Turn
from outdraft.generate import Outdraft
from outdraft.models.table import TableTarget
from outdraft.settings import GenerationSettings
from support.toys import EOS, LETTERS, LetterTokenizer

# Letters are all that the toy tokenizer knows.
QUESTIONS = [
    Question("w1", "writing", ("bcdb", "cde")),
    Question("w2", "coding", ("bcdbcd",)),
    Question("r1", "rag", ("efgefg",)),
    Question("r2", "rag", ("hijhi",)),
    Question("r3", "rag", ("kl",)),
]


def toy_llm(table: TableTarget, **options: Any) -> Outdraft:
    return Outdraft(table, LetterTokenizer(), **{"eos_ids": [EOS], "name": "table", **options})


def echo_method(
    name: str = "echo", *, fails_on: str = "", starts: list[str] | None = None
) -> Method:
    """Answers with the last letters of the prompt, at once.

    Args:
        fails_on: letters; a prompt that contains them is an error.
        starts: where each start is noted.
    """

    def start() -> AnswerPrompts:
        if starts is not None:
            starts.append(name)

        def answer(prompts: Seq[Seq[int]], settings: GenerationSettings) -> list[Answer]:
            return [_echo(ids, settings.max_new_tokens, fails_on) for ids in prompts]

        return answer

    return Method(name, name, start)


def _echo(ids: Seq[int], length: int, fails_on: str) -> Answer:
    text = "".join(LETTERS[token_id] for token_id in ids)
    if fails_on and fails_on in text:
        raise ValueError(f"cannot answer {text}")
    return make_answer(ids[-length:], text=text[-length:])


def make_answer(token_ids: Seq[int] = (1, 2, 3), **changes: Any) -> Answer:
    """An answer of plain decoding, unless changed."""
    fields: dict[str, Any] = {
        "token_ids": tuple(token_ids),
        "text": "text",
        "finish_reason": "length",
        "passes": len(token_ids),
        "rows": len(token_ids) - 1,
        "first_token_seconds": 0.1,
        "drafted": 0,
        "accepted": 0,
        "judged_by_depth": (),
        "accepted_by_depth": (),
        "draft_seconds": 0.0,
        "target_seconds": 0.9,
    }
    return Answer(**{**fields, **changes})


def make_turn(token_ids: Seq[int] = (1, 2, 3), seconds: float = 1.0, **changes: Any) -> Turn:
    answer = make_answer(token_ids, **changes)
    values = {name: getattr(answer, name) for name in answer.__slots__}
    return Turn(**values, prompt="key", prompt_tokens=4, seconds=seconds)


def make_record(
    question_id: str = "w1", method: str = "plain", *turns: Turn, **changes: Any
) -> Record:
    fields: dict[str, Any] = {
        "question_id": question_id,
        "group": "writing",
        "method": method,
        "repeat": 0,
        "session": 0,
        "batch": 1,
        "turns": turns or (make_turn(),),
        "error": None,
        "peak_rss_bytes": 1000,
    }
    return Record(**{**fields, **changes})
