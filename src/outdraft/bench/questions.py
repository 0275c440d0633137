"""What methods are measured on: questions from a file, or from the suite that comes with outdraft.

Three kinds of file are read. `.jsonl` and `.json` hold one JSON object a line, either a question as
Spec-Bench writes it (`question_id`, `category`, `turns`) or a chat (`messages`); any other file is
plain text with one prompt a line.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence as Seq
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from outdraft.errors import SettingsError

DEFAULT_SUITE = "default"
MULTI_TURN = "multi-turn conversation"

# The six groups of Spec-Bench; the first eight categories are those of MT-bench.
_GROUP_OF = {
    **dict.fromkeys(
        ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"],
        MULTI_TURN,
    ),
    "translation": "translation",
    "summarization": "summarization",
    "qa": "question answering",
    "math_reasoning": "mathematical reasoning",
    "rag": "retrieval-augmented generation",
}
_ROLES = {"system", "user", "assistant"}


@dataclass(frozen=True, slots=True)
class Question:
    """One conversation to be answered.

    Args:
        turns: what the user says, turn by turn; each is answered before the next is put.
        history: messages that stand before the first turn, answers included.
    """

    question_id: str
    category: str
    turns: tuple[str, ...]
    history: tuple[Mapping[str, str], ...] = ()

    @property
    def group(self) -> str:
        """Categories of Spec-Bench fold into its six groups; any other is a group of its own."""
        return _GROUP_OF.get(self.category, self.category)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "group": self.group}


def suite_names() -> list[str]:
    """The suites that come with outdraft."""
    entries = (files("outdraft.bench") / "prompts").iterdir()
    return sorted(entry.name.removesuffix(".jsonl") for entry in entries)


def read_suite(name: str = DEFAULT_SUITE) -> list[Question]:
    """The questions of a suite that comes with outdraft.

    Raises:
        SettingsError: there is no such suite.
    """
    if name not in suite_names():
        raise SettingsError(
            f"suite={name!r}: there is no such suite, only {', '.join(suite_names())}; "
            "pass --questions FILE for questions of your own"
        )
    entry = files("outdraft.bench") / "prompts" / f"{name}.jsonl"
    return _parse(entry.read_text(encoding="utf-8"), f"suite {name}", is_json=True)


def read_questions(path: Path) -> list[Question]:
    """The questions of a file, in its order.

    Raises:
        SettingsError: it cannot be read, is empty, or a line is no question; the line is named.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text; convert it first") from error
    return _parse(text, str(path), is_json=path.suffix.lower() in {".jsonl", ".json"})


def select(
    questions: Seq[Question], groups: Seq[str] = (), limit: int | None = None
) -> list[Question]:
    """The questions of some groups or categories, at most `limit` of each group.

    Where a group has several categories, the limit takes from each of them in turn.

    Raises:
        SettingsError: no question is of such a group or category, or the limit is below 1.
    """
    if limit is not None and limit < 1:
        raise SettingsError(f"limit={limit}: takes at least 1 question of each group")
    known = {_plain(name): name for q in questions for name in (q.category, q.group)}
    for group in groups:
        if _plain(group) not in known:
            names = ", ".join(dict.fromkeys(question.group for question in questions))
            raise SettingsError(f"group={group!r}: the questions have no such group, only {names}")
    wanted = {_plain(group) for group in groups}
    chosen = [q for q in questions if not wanted or {_plain(q.category), _plain(q.group)} & wanted]
    if limit is None:
        return chosen
    kept = {q.question_id for group in by_group(chosen).values() for q in _spread(group)[:limit]}
    return [question for question in chosen if question.question_id in kept]


def by_group(questions: Seq[Question]) -> dict[str, list[Question]]:
    """The questions of each group, groups in the order in which they first appear."""
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(question.group, []).append(question)
    return groups


def fingerprint(questions: Seq[Question]) -> str:
    """A sha256 of all that a method sees of the questions."""
    text = json.dumps([question.to_json() for question in questions], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(name: str) -> str:
    """`--group code-editing` means the group "code editing"."""
    return re.sub(r"[-_ ]+", " ", name).casefold()


def _spread(questions: Seq[Question]) -> list[Question]:
    """One question of each category in turn."""
    rank: dict[str, int] = {}
    ranked = []
    for place, question in enumerate(questions):
        rank[question.category] = rank.get(question.category, 0) + 1
        ranked.append((rank[question.category], place, question))
    return [question for _, _, question in sorted(ranked, key=lambda entry: entry[:2])]


# --- parsing --------------------------------------------------------------------------------------


def _parse(text: str, source: str, *, is_json: bool) -> list[Question]:
    questions: list[Question] = []
    line_of: dict[str, int] = {}
    for number, line in _lines(text):
        where = f"{source}, line {number}"
        question = (
            _from_object(_object(line, where), where, number)
            if is_json
            else Question(str(number), "text", (line,))
        )
        first = line_of.setdefault(question.question_id, number)
        if first != number:
            raise SettingsError(
                f"{where}: question_id {question.question_id!r} stands in line {first} already; "
                "give each question its own"
            )
        questions.append(question)
    if not questions:
        raise SettingsError(f"{source} holds no questions; write one a line")
    return questions


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, counted from 1; other line separators belong to the text."""
    for number, line in enumerate(text.split("\n"), start=1):
        if stripped := line.strip():
            yield number, stripped


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise SettingsError(
            f"{where}, column {error.colno}: no JSON ({error.msg}); write one object a line"
        ) from error
    if not isinstance(value, dict):
        raise SettingsError(
            f"{where}: a JSON {type(value).__name__} and not an object; write one object a line"
        )
    return value


def _from_object(fields: dict[str, Any], where: str, number: int) -> Question:
    question_id = fields.get("question_id", fields.get("id", number))
    if isinstance(question_id, bool) or not isinstance(question_id, int | str):
        raise SettingsError(f"{where}: question_id={question_id!r} is neither a number nor a text")
    if "turns" in fields:
        category, turns = fields.get("category"), fields["turns"]
        if not isinstance(category, str) or not category:
            raise SettingsError(f"{where}: category={category!r}; name one, such as 'writing'")
        if not isinstance(turns, list) or not turns or not all(_is_text(turn) for turn in turns):
            raise SettingsError(f"{where}: turns is no list of texts; write what the user says")
        return Question(str(question_id), category, tuple(turns))
    if "messages" in fields:
        category = fields.get("category", "chat")
        if not isinstance(category, str) or not category:
            raise SettingsError(f"{where}: category={category!r} is no text; leave it out")
        return _from_chat(str(question_id), category, fields["messages"], where)
    raise SettingsError(
        f"{where}: neither 'turns' (a Spec-Bench question) nor 'messages' (a chat) is among "
        f"{', '.join(sorted(fields)) or 'its fields'}"
    )


def _from_chat(question_id: str, category: str, messages: Any, where: str) -> Question:
    """A chat is answered where its user spoke last; an answer it may have after that is dropped."""
    if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
        raise SettingsError(
            f"{where}: messages is no list of objects with a role ({', '.join(sorted(_ROLES))}) "
            "and a content"
        )
    last = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=None)
    if last is None:
        raise SettingsError(f"{where}: no message is the user's; there is nothing to answer")
    history = [{"role": m["role"], "content": m["content"]} for m in messages[:last]]
    return Question(question_id, category, (messages[last]["content"],), tuple(history))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict) and value.get("role") in _ROLES and _is_text(value.get("content"))
    )
