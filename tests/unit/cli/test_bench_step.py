"""`outdraft bench step` on a tiny model from a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from outdraft.cli import app
from support.compilers import needs_compiler
from support.tiny_files import save_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("model"))


def run(*args: str) -> Result:
    return CliRunner().invoke(app, list(args), env={"COLUMNS": "140"})


@needs_compiler
def test_a_row_for_each_cell(folder: Path) -> None:
    result = run("bench", "step", "--model", str(folder), "--rows", "1,2", "--context", "6")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[:2] for line in lines if line[:1] == ["6"]] == [["6", "1"], ["6", "2"]]
    assert "compiled kernels" in result.stdout


def test_json_holds_the_run_and_all_cells(folder: Path) -> None:
    options = ("--rows", "2", "--context", "6,7", "--repeat", "2", "--json")
    result = run("bench", "step", "--model", str(folder), *options)
    told = json.loads(result.stdout)
    assert [cell["context"] for cell in told["costs"]] == [6, 7]
    assert told["run"]["repeat"] == 2
    assert told["run"]["machine"]["threads"] >= 1


@pytest.mark.parametrize("rows", ["", "0", "two", "1,-2"])
def test_rows_that_are_no_numbers_are_refused(rows: str) -> None:
    result = run("bench", "step", "--rows", rows)
    assert result.exit_code == 2
    assert "whole numbers above 0" in result.stderr
