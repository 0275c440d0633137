"""What a run leaves behind: one JSON line per question, method and repeat, and the prompts read.

A folder of results holds

    run.json          what was run, where and with what; see `run.py`
    questions.jsonl   the questions, with their groups
    results.jsonl     one `Record` a line, appended as they come
    prompts.jsonl     the token ids of each distinct prompt, once, under the key that turns name
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence as Seq
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from outdraft.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterCounts:
    """What one drafter did in one answer; a guess that several made counts for each.

    Args:
        asked: steps in which it was asked for guesses.
        drafted, judged, accepted: its guesses that were read; of these, those whose parent was
            accepted; and those that were accepted themselves.
        seconds: that its guesses took; `None` for answers given together, which share them.
    """

    asked: int
    drafted: int
    judged: int
    accepted: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a method says of one answer; what it cannot know is `None`.

    Args:
        token_ids: all new tokens, the one that ended the text included.
        passes: target passes that gave these tokens, the prompt's own included.
        rows: tokens that the passes after the prompt's read: roots and guesses.
        drafted, accepted: guesses read, and those that became part of the text.
        judged_by_depth, accepted_by_depth: at depth 1, 2, ...: guesses whose parent was accepted,
            and how many of these were accepted.
        first_token_seconds: until the first token was there.
        draft_seconds, target_seconds: spent guessing, and in target passes. Answers given together
            share their passes, so they have neither.
        expected_tokens: what the plans of all steps expected of them; it is of all tokens but the
            first, which the prompt's pass gave.
        drafters: each drafter's own counts.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    passes: int
    rows: int
    first_token_seconds: float
    drafted: int | None = None
    accepted: int | None = None
    judged_by_depth: tuple[int, ...] | None = None
    accepted_by_depth: tuple[int, ...] | None = None
    draft_seconds: float | None = None
    target_seconds: float | None = None
    expected_tokens: float | None = None
    drafters: Mapping[str, DrafterCounts] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn(Answer):
    """One answered turn of a conversation.

    Args:
        prompt: key of the prompt's token ids.
        seconds: wall time from prompt ids to text. Answers given together share it equally, so
            that seconds add up to wall time.
    """

    prompt: str
    prompt_tokens: int
    seconds: float

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        fields = {name: _as_tuple(item) for name, item in value.items()}
        if fields.get("drafters") is not None:
            counts = fields["drafters"].items()
            fields["drafters"] = {name: DrafterCounts(**count) for name, count in counts}
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Key:
    """What no two records share."""

    question_id: str
    method: str
    repeat: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One question answered by one method, or the error that stopped it.

    Args:
        session: 0 for the run's first start, one more each time it was resumed.
        batch: questions that were answered together.
        turns: those that were answered; all of them unless there is an error.
        peak_rss_bytes: most memory the process had ever held by then; `None` if unknown here.
    """

    question_id: str
    group: str
    method: str
    repeat: int
    session: int
    batch: int
    turns: tuple[Turn, ...]
    error: str | None
    peak_rss_bytes: int | None

    @property
    def key(self) -> Key:
        return Key(self.question_id, self.method, self.repeat)

    @property
    def is_ok(self) -> bool:
        return self.error is None

    @property
    def seconds(self) -> float:
        return sum(turn.seconds for turn in self.turns)

    @property
    def tokens(self) -> int:
        return sum(len(turn.token_ids) for turn in self.turns)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        turns = tuple(Turn.from_json(turn) for turn in value["turns"])
        return cls(**{**value, "turns": turns})


class Results:
    """The records of a folder, in memory and on disk alike.

    What was appended is on disk when `append` returns; whatever stops the process, every line but
    perhaps the last is whole, and reading drops a last line that is not.
    """

    def __init__(self, folder: Path) -> None:
        self._results = folder / "results.jsonl"
        self._prompts = folder / "prompts.jsonl"
        self.records = [_record(*line) for line in _read_lines(self._results)]
        self._known_prompts = {_prompt_key(*line) for line in _read_lines(self._prompts)}
        self._keys = {record.key for record in self.records}

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    @property
    def next_session(self) -> int:
        return max((record.session for record in self.records), default=-1) + 1

    def append(self, records: Seq[Record], prompts: Mapping[str, Seq[int]]) -> None:
        """Adds records and the prompts that their turns name, prompts first."""
        new = {key: ids for key, ids in prompts.items() if key not in self._known_prompts}
        _append(self._prompts, [{"prompt": key, "token_ids": list(new[key])} for key in new])
        _append(self._results, [asdict(record) for record in records])
        self._known_prompts.update(new)
        self.records.extend(records)
        self._keys.update(record.key for record in records)

    def keep_only(self, keys: set[Key]) -> None:
        """Forgets all other records."""
        if self._keys <= keys:
            return
        self.records = [record for record in self.records if record.key in keys]
        self._keys = {record.key for record in self.records}
        replace_file(self._results, to_lines(asdict(record) for record in self.records))


def prompt_key(token_ids: Seq[int]) -> str:
    """A short name for a prompt, the same for the same ids."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()[:16]


def to_lines(values: Iterable[Any]) -> str:
    """JSON lines."""
    return "".join(f"{json.dumps(value, ensure_ascii=False)}\n" for value in values)


def replace_file(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def _append(path: Path, values: Seq[Any]) -> None:
    if values:
        with path.open("ab", buffering=0) as file:
            file.write(to_lines(values).encode())


def _read_lines(path: Path) -> list[tuple[str, str]]:
    """The whole lines of a file, each with its place; a torn last one is cut off on disk too."""
    if not path.exists():
        return []
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        os.truncate(path, end)
    lines = content[:end].decode(errors="replace").split("\n")[:-1]
    return [(f"{path}, line {number}", line) for number, line in enumerate(lines, start=1)]


def _record(where: str, line: str) -> Record:
    try:
        return Record.from_json(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(_damaged(where, fields(Record), error)) from error


def _prompt_key(where: str, line: str) -> str:
    try:
        return str(json.loads(line)["prompt"])
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(_damaged(where, ("prompt", "token_ids"), error)) from error


def _damaged(where: str, names: Iterable[Any], error: Exception) -> str:
    expected = ", ".join(getattr(name, "name", name) for name in names)
    return (
        f"{where} is no line that outdraft bench wrote ({expected} expected: {error}); "
        "restore the folder, or give -o another one"
    )


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
