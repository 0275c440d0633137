from __future__ import annotations

from pathlib import Path

import pytest

from outdraft.cli.models import human_size
from outdraft.models import bundled
from outdraft.models.bundled import ModelEntry
from support.command_line import Run

ENTRIES = [
    ModelEntry("tiny-1m", "alias", "a tiny model (Apache-2.0)", 0, None),
    ModelEntry("small-9m", "alias", "a small model (MIT)", 36_400_000, Path("/cache/small-9m")),
    ModelEntry("org/big", "hub", "in the Hugging Face cache", 2_470_000_000, Path("/hub/big")),
]


@pytest.mark.parametrize("columns", ["60", "120"])
def test_models_are_listed_with_what_they_take_on_disk(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, columns: str
) -> None:
    monkeypatch.setattr(bundled, "list_models", lambda: ENTRIES)

    result = run("models", env={"OUTDRAFT_HOME": str(tmp_path), "COLUMNS": columns})

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["tiny-1m", "small-9m", "org/big"]
    assert "not yet" in lines[1]
    assert "36 MB" in lines[2]
    assert "2.47 GB" in lines[3]
    assert lines[-1] == f"aliases are kept in {tmp_path}"


def test_an_empty_cache_still_has_the_aliases(run: Run, tmp_path: Path) -> None:
    env = {"OUTDRAFT_HOME": str(tmp_path / "none")}

    result = run("models", env=env)

    assert result.exit_code == 0
    assert re_line(result.stdout, "smollm2-135m").split()[1:3] == ["not", "yet"]


def re_line(output: str, start: str) -> str:
    return next(line for line in output.splitlines() if line.startswith(start))


@pytest.mark.parametrize(
    ("num_bytes", "wanted"),
    [(0, "0 MB"), (92_871_040, "93 MB"), (999_400_000, "999 MB"), (999_600_000, "1 GB")],
)
def test_human_size(num_bytes: int, wanted: str) -> None:
    assert human_size(num_bytes) == wanted
