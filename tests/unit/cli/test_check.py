from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import outdraft.generate
from outdraft.cli import app, common
from outdraft.draft import registry
from outdraft.errors import DrafterError
from outdraft.interfaces import TargetModel
from outdraft.models.table import TableTarget
from support.checks import PROMPTS, Reworked, make_llm, nan_in_wide_passes, tied
from support.tiny_files import save_folder


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs `outdraft check` on a table; returns exit code, stdout and stderr."""

    def invoke(*args: str, target: TargetModel | None = None) -> tuple[int, str, str]:
        if "--drafter" not in args:
            args = (*args, "--drafter", "prompt-lookup,suffix")
        llm = make_llm(target or TableTarget(16), name="table")
        monkeypatch.setattr(common, "load_llm", lambda *_, **__: llm)
        monkeypatch.setenv("COLUMNS", "120")
        with pytest.raises(SystemExit) as exit_info:
            app(["check", *args])
        code = exit_info.value.code
        out, err = capsys.readouterr()
        return int(code or 0), out, err

    return invoke


@pytest.fixture
def prompt_file(tmp_path: Path) -> str:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS), "utf-8")
    return str(path)


def test_the_command_shows_a_table_and_exits_with_0(command: Any, prompt_file: str) -> None:
    code, out, err = command("--prompts", prompt_file, "-n", "20", "--temperature", "0.7")
    assert (code, err) == (0, "")
    for text in ("prompt-lookup", "suffix", "0.7", "tokens/step", "no faults, no ties"):
        assert text in out


def test_the_command_exits_with_1_if_there_is_a_fault(command: Any, prompt_file: str) -> None:
    code, out, _ = command("--prompts", prompt_file, "--inject-fault", "cache")
    assert code == 1
    assert "FAULT" in out
    assert "behind the best one" in out


def test_the_command_shows_both_tokens_of_a_tie(command: Any, prompt_file: str) -> None:
    target = Reworked(tied(2**-4, torch.bfloat16))
    code, out, _ = command("--prompts", prompt_file, "--drafter", "suffix", target=target)
    assert code == 0
    assert "tie    suffix, temperature 0, prompt 1, token" in out
    assert "plain '<3>' (3) logit 8" in out or "plain '<7>' (7) logit 8" in out
    assert "gap 0.0625, tolerance 0.125" in out
    assert "no faults, 4 ties" in out


def test_json_alone_goes_to_stdout(command: Any, prompt_file: str) -> None:
    code, out, err = command("--prompts", prompt_file, "--json", "--inject-fault", "cache")
    report = json.loads(out)
    assert (code, err, report["model"], report["is_clean"]) == (1, "", "table", False)
    assert report["faults"] == sum(c["faults"] for c in report["comparisons"]) > 0
    difference = report["comparisons"][0]["differences"][0]
    assert {"prompt_idx", "position", "plain", "drafted", "gap", "tolerance"} <= difference.keys()
    assert difference["plain"].keys() == {"token_id", "text", "score"}


def test_numbers_that_are_none_are_valid_json(command: Any, prompt_file: str) -> None:
    code, out, _ = command("--prompts", prompt_file, "--json", target=Reworked(nan_in_wide_passes))
    assert code == 1
    assert "NaN" not in out
    assert json.loads(out)["faults"] > 0


def test_a_check_that_checked_nothing_says_so(command: Any, prompt_file: str) -> None:
    code, _, err = command("--prompts", prompt_file, "-n", "1")
    assert code == 0
    assert "suffix guessed nothing at temperature 0" in err


def test_all_takes_what_needs_files_and_models_too(tmp_path: Path) -> None:
    folder, prompts = save_folder(tmp_path / "model"), tmp_path / "prompts.txt"
    prompts.write_text("hello world hello world hello\n")
    options = ("--prompts", str(prompts), "-n", "6", "--dtype", "float32", "--json")
    result = CliRunner().invoke(app, ["check", "--model", str(folder), *options])
    assert result.exit_code == 0
    checked = {comparison["drafter"] for comparison in json.loads(result.stdout)["comparisons"]}
    assert {"recycling", "prediction", "datastore:prompts", "suffix:memory"} < checked
    assert "model:first-layers" in checked
    # This tokenizer loses spaces, so its text carries no guesses across to another one.
    assert "model:other-tokenizer is left out" in result.stderr


def test_all_leaves_out_what_needs_more_than_its_name_and_says_so(
    command: Any, prompt_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def needy(argument: str, context: Any) -> Any:
        raise DrafterError("drafter 'needy' needs a file")

    known = {name: registry._BUILT_IN[name] for name in ("none", "prompt-lookup", "suffix")}
    monkeypatch.setattr(outdraft.generate, "AUTO_DRAFTER", "suffix")
    monkeypatch.setattr(registry, "_BUILT_IN", {**known, "needy": needy})
    code, out, err = command("--prompts", prompt_file, "-n", "4", "--drafter", "all", "--json")
    checked = {comparison["drafter"] for comparison in json.loads(out)["comparisons"]}
    assert code == 0
    assert checked == {"prompt-lookup", "suffix", "suffix:memory"}
    assert "needy is left out: drafter 'needy' needs a file" in err
    code, out, err = command("--prompts", prompt_file, "--drafter", "suffix,needy")
    assert (code, out) == (1, "")
    assert "error: drafter 'needy' needs a file" in err


@pytest.mark.parametrize(
    "args",
    [
        ["--drafter", "oracle"],
        ["--drafter", "none"],
        ["--prompts", "/nowhere"],
        ["--temperature", "-1"],
        ["--temperature", "0", "--temperature", "nan"],
        ["--max-new-tokens", "0"],
        ["--seed", "-3"],
        ["--inject-fault", "mask"],
        ["--no-such-option"],
    ],
    ids=" ".join,
)
def test_bad_usage_exits_with_2(command: Any, args: list[str]) -> None:
    code, out, err = command(*args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
