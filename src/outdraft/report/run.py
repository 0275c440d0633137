"""What a report is about: a folder of `outdraft bench`, read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdraft.bench.figures import Tables, make_tables
from outdraft.bench.records import Record, Results
from outdraft.errors import SettingsError
from outdraft.trace import StepTrace, read_trace

TRACE = "trace.jsonl"
"""Name under which a trace is found in the folder."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of `outdraft bench`.

    Args:
        description: what `run.json` says of it.
        questions: the texts put, turn by turn, per question id.
        traces: empty if nobody traced the run.
    """

    description: Mapping[str, Any]
    questions: Mapping[str, Seq[str]]
    records: Seq[Record]
    tables: Tables
    traces: Seq[StepTrace]

    @property
    def methods(self) -> list[str]:
        return [method["name"] for method in self.description["methods"]]


def read_run(folder: Path, trace: Path | None = None) -> Run:
    """The run of a folder, as far as it has come.

    Args:
        trace: where it lies, if not in the folder itself.

    Raises:
        SettingsError: the folder holds no results, or no trace lies where one was named.
    """
    path = folder / "run.json"
    if not path.is_file():
        raise SettingsError(
            f"{folder} has no run.json, so it is no folder of results; name one that outdraft "
            "bench wrote (its -o DIR)"
        )
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        methods = [method["name"] for method in description["methods"]]
        is_greedy = description["settings"]["temperature"] == 0
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{path} is none that outdraft bench wrote ({error}); restore it, or measure again"
        ) from error
    records = Results(folder).records
    if not records:
        raise SettingsError(
            f"{folder} has no answers yet; let outdraft bench -o {folder} answer some"
        )
    return Run(
        description=description,
        questions=_questions(folder / "questions.jsonl"),
        records=records,
        tables=make_tables(records, methods, is_greedy=is_greedy),
        traces=_traces(folder, trace),
    )


def _questions(path: Path) -> dict[str, Seq[str]]:
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    return {line["question_id"]: line["turns"] for line in map(json.loads, lines)}


def _traces(folder: Path, trace: Path | None) -> list[StepTrace]:
    if trace is None and not (folder / TRACE).is_file():
        return []
    return list(read_trace(trace or folder / TRACE))
