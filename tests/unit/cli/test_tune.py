"""`outdraft tune` on a tiny model from a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import outdraft
from outdraft import tune as tune_module
from outdraft.cli import app
from outdraft.plan import Priced
from outdraft.plan.profile import ProfileWarning
from support.tiny_files import save_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTDRAFT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OUTDRAFT_NATIVE", "0")
    return tmp_path / "home"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("hello world hello world hello\n\nworld hello\n")
    return path


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["tune", *args], env={"COLUMNS": "140", "TERM": "xterm"})


def profiles(home: Path) -> list[Path]:
    return sorted(home.rglob("*.profile.json"))


def tuned(folder: Path, prompts: Path, *args: str) -> Result:
    options = ("--model", str(folder), "--prompts", str(prompts), "--max-new-tokens", "6")
    return run(*options, *args)


def test_a_row_for_each_way_and_a_profile_that_is_shown_again_and_removed(
    folder: Path, home: Path, prompts: Path
) -> None:
    result = tuned(folder, prompts, "--drafter", "prompt-lookup")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    names = [row[0] for row in rows if "pay" in row or "pays" in row]
    assert names == ["suffix", "recycling", "auto", "prompt-lookup"]
    assert "2 prompts" in result.stdout
    (path,) = profiles(home)
    assert str(path) in result.stderr.replace("\n", "")
    shown = run("--model", str(folder), "--show")
    assert (shown.exit_code, shown.stdout) == (0, result.stdout)
    for what in ("was removed", "nothing was removed"):
        reset = run("--model", str(folder), "--reset")
        assert reset.exit_code == 0
        assert what in reset.stderr
        assert profiles(home) == []
    assert run("--model", str(folder), "--show").exit_code == 2


def test_later_runs_start_from_it(folder: Path, home: Path, prompts: Path) -> None:
    assert tuned(folder, prompts, "--max-new-tokens", "40").exit_code == 0
    llm = outdraft.load(str(folder))
    pricing = llm._pricing
    assert isinstance(pricing, Priced)
    counts = json.loads(profiles(home)[0].read_text())["counts"]
    assert counts
    assert pricing.calibrator.to_json() == counts
    assert list(home.glob("costs/*.json")) == profiles(home)  # nothing was measured again


def test_a_damaged_one_costs_a_warning_and_no_run(folder: Path, home: Path, prompts: Path) -> None:
    assert tuned(folder, prompts).exit_code == 0
    profiles(home)[0].write_text("{")
    with pytest.warns(ProfileWarning, match="damaged"):
        assert outdraft.load(str(folder)).generate("hello", max_new_tokens=3).token_ids


def test_interrupted_it_leaves_the_earlier_profile(
    folder: Path, home: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tuned(folder, prompts).exit_code == 0
    before = profiles(home)[0].read_bytes()
    generate = outdraft.Outdraft.generate
    left = 9

    def interrupt(self: outdraft.Outdraft, *args: object, **options: object) -> object:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return generate(self, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(outdraft.Outdraft, "generate", interrupt)
    result = tuned(folder, prompts)
    assert result.exit_code == 130
    assert left == 0
    assert [path.read_bytes() for path in profiles(home)] == [before]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--show", "--reset"), "exclude each other"),
        (("--temperature", "-1"), "--temperature"),
        (("--max-new-tokens", "0"), "--max-new-tokens"),
        (("--drafter", "nobody"), "no such drafter"),
        (("--prompts", "not-there.txt"), "not-there.txt"),
    ],
)
def test_what_cannot_be_is_refused_before_a_model_is_loaded(
    args: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outdraft.generate, "load", None)
    result = run(*args)
    assert result.exit_code == 2
    assert message in result.stderr


def test_without_a_file_it_tries_prompts_of_every_kind(
    folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StopError(Exception):
        pass

    def look(llm: object, prompts: list[object], *args: object, **options: object) -> None:
        raise StopError(len(prompts))

    monkeypatch.setattr(tune_module, "tune", look)
    result = run("--model", str(folder))
    assert isinstance(result.exception, StopError)
    assert 10 <= result.exception.args[0] <= 30
