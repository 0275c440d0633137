from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from outdraft.bench.figures import make_tables
from outdraft.errors import SettingsError
from outdraft.report import Run, read_run


def test_all_of_a_folder_is_read(whole: Run) -> None:
    assert whole.methods == ["plain", "suffix", "prompt-lookup"]
    assert len(whole.records) == 3 * 3 * 2
    assert whole.questions["q1"] == ["the cat sat", "on the mat"]
    assert {trace.method for trace in whole.traces} == set(whole.methods)


def test_figures_are_those_of_the_bench(whole: Run) -> None:
    assert whole.tables == make_tables(whole.records, whole.methods)


def test_a_trace_may_lie_elsewhere_or_nowhere(folder: Path, whole: Run, tmp_path: Path) -> None:
    copied = tmp_path / "copy"
    shutil.copytree(folder, copied)
    (copied / "trace.jsonl").rename(tmp_path / "other.jsonl")
    assert read_run(copied).traces == []
    assert read_run(copied, tmp_path / "other.jsonl").traces == whole.traces
    with pytest.raises(SettingsError, match=r"gone\.jsonl cannot be read"):
        read_run(copied, tmp_path / "gone.jsonl")


def test_a_folder_without_results_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"has no run\.json.*-o DIR"):
        read_run(tmp_path)
    shutil.copy(folder / "run.json", tmp_path)
    with pytest.raises(SettingsError, match="has no answers yet; let outdraft bench -o"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"run\.json is none that outdraft bench wrote"):
        read_run(tmp_path)
