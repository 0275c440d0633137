"""The command line over a target without a model, in-process."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner, Result

import outdraft.generate
from outdraft import Outdraft
from outdraft.cli import app
from outdraft.models.table import TableTarget
from support.command_line import TABLE, Run, ToyTokenizer
from support.toys import EOS


@pytest.fixture
def llm() -> Outdraft:
    return Outdraft(TableTarget(**TABLE), ToyTokenizer(), name="toy", eos_ids=[EOS])


@pytest.fixture
def loads(llm: Outdraft, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Lets every command load the toy; returns what they asked for."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def load(ref: str, *, drafter: str, **options: Any) -> Outdraft:
        asked.append((ref, {"drafter": drafter, **options}))
        llm.default_drafter = drafter
        return llm

    monkeypatch.setattr(outdraft.generate, "load", load)
    return asked


@pytest.fixture
def run(loads: list[tuple[str, dict[str, Any]]]) -> Run:
    """Runs a command line, as `run("generate", "hello", "--raw")`."""

    def run(*args: str, env: dict[str, str | None] | None = None, **options: Any) -> Result:
        plain = {"FORCE_COLOR": None, "NO_COLOR": None, "TERM": "xterm", "COLUMNS": "100"}
        return CliRunner().invoke(app, args, env={**plain, **(env or {})}, **options)

    return run
