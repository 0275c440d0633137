from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Any

import pytest

from outdraft.report import read_run, render
from support.command_line import Run
from support.reports import run_traced


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_traced(tmp_path_factory.mktemp("a"), drafters=["suffix"], max_new_tokens=6)


def test_the_page_is_written_into_the_folder_and_named(run: Run, folder: Path) -> None:
    result = run("report", str(folder))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{folder / 'report.html'}\n"
    assert (folder / "report.html").read_text() == render(read_run(folder))


def test_page_and_chart_may_go_elsewhere(run: Run, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page, chart = tmp_path / "new" / "b.html", tmp_path / "b.png"
    result = run("report", str(folder), "-o", str(page), "--png", str(chart))
    assert result.stdout.split() == [str(page), str(chart)]
    assert page.read_text().startswith("<!doctype html>")
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_a_trace_from_elsewhere_is_shown(run: Run, folder: Path, tmp_path: Path) -> None:
    bare = run_traced(tmp_path / "bare", drafters=["suffix"], max_new_tokens=6, is_traced=False)
    assert run("report", str(bare)).exit_code == 0
    assert "step by step" not in (bare / "report.html").read_text()
    assert run("report", str(bare), "--trace", str(folder / "trace.jsonl")).exit_code == 0
    assert "step by step" in (bare / "report.html").read_text()


@pytest.mark.parametrize("has_browser", [True, False])
def test_the_page_is_opened_if_there_is_a_browser(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, has_browser: bool
) -> None:
    opened: list[str] = []

    def open_page(uri: str) -> bool:
        opened.append(uri)
        return has_browser

    monkeypatch.setattr(webbrowser, "open", open_page)
    result = run("report", str(folder), "--open")
    assert opened == [(folder / "report.html").absolute().as_uri()]
    assert ("no browser was found here; open" in result.stderr) is not has_browser


def test_what_is_no_run_is_refused(run: Run, tmp_path: Path) -> None:
    result = run("report", str(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    message = " ".join(result.stderr.split())
    assert f"{tmp_path} has no run.json" in message
    assert "name one that outdraft bench wrote" in message


def test_a_page_that_cannot_be_written_is_refused(run: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("report", str(folder), "-o", str(tmp_path / "file" / "a.html"))
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
    assert "name another file with -o" in " ".join(result.stderr.split())


def test_help_has_examples(run: Run, loads: list[Any]) -> None:
    shown = run("report", "--help").stdout
    assert "outdraft report runs/a --png speedups.png" in shown
    assert loads == []
