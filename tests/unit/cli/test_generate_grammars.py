"""`outdraft generate` with a schema, a regular expression, a grammar or choices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outdraft import Outdraft
from outdraft.models.byte_tokenizer import byte_tokenizer
from outdraft.models.table import TableTarget
from support.command_line import Run
from support.grammars import SCHEMA, is_right


@pytest.fixture
def llm() -> Outdraft:
    return Outdraft(TableTarget(vocab_size=260, fade=0.9, seed=1), byte_tokenizer(), eos_ids=[256])


def answer(run: Run, *options: str) -> str:
    result = run("generate", "hello", "--raw", "-n", "300", "--json", *options)
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["finish_reason"] == "stop"
    return str(record["text"])


def test_a_schema_comes_from_a_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "sizes": {"const": [1]}}}
    path.write_text(json.dumps(schema))
    text = answer(run, "--json-schema", str(path))
    assert is_right("json_schema", text)


def test_a_grammar_comes_from_a_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "grammar.lark"
    path.write_text('start: "<" /[a-c]{2}/ ">"')
    assert answer(run, "--grammar", str(path))[0] == "<"


def test_a_regular_expression_and_choices_come_as_they_are(run: Run) -> None:
    assert answer(run, "--regex", "ab{3}c") == "abbbc"
    assert answer(run, "--choice", "yes", "--choice", "no") in ("yes", "no")


def test_what_cannot_be_read_is_refused_before_a_model_is_loaded(
    run: Run, loads: list[object], tmp_path: Path
) -> None:
    result = run("generate", "hello", "--json-schema", str(tmp_path / "none.json"))
    assert result.exit_code != 0
    assert "--json-schema" in result.stderr
    result = run("generate", "hello", "--regex", "(")
    assert result.exit_code != 0
    assert "unclosed group" in result.stderr
    result = run("generate", "hello", "--regex", "a", "--choice", "a")
    assert "exclude each other" in result.stderr
    assert loads == []
