from __future__ import annotations

import io
import subprocess
import sys

import pytest

from outdraft import __version__
from outdraft.cli import common
from outdraft.errors import ModelError, SettingsError
from outdraft.settings import DEFAULT_MODEL, GenerationSettings
from support.command_line import TERMINAL, Run


def test_version(run: Run) -> None:
    assert run("--version").stdout == f"outdraft {__version__}\n"


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",)])
def test_help_lists_the_commands_and_examples(run: Run, args: tuple[str, ...]) -> None:
    result = run(*args)

    assert result.exit_code == 0
    for word in ("generate", "demo", "models", "check", "Examples:", "outdraft demo"):
        assert word in result.stdout


@pytest.mark.parametrize("command", ["generate", "demo", "models", "check"])
def test_each_command_shows_examples(run: Run, command: str) -> None:
    result = run(command, "--help")

    assert result.exit_code == 0
    examples = result.stdout.partition("Examples:")[2]
    assert examples.count(f"outdraft {command}") >= 1


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, outdraft.cli; print({'torch', 'transformers'} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"


def test_defaults_are_those_of_the_settings() -> None:
    settings = GenerationSettings()

    assert common.DEFAULT_MODEL == DEFAULT_MODEL
    assert settings.max_new_tokens == common.DEFAULT_MAX_NEW_TOKENS
    assert settings.temperature == common.DEFAULT_TEMPERATURE


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nonsense",), ["nonsense"]),
        (("--nonsense",), ["--nonsense"]),
        (("generate",), ["PROMPT"]),
        (("generate", "a", "--nonsense"), ["--nonsense"]),
        (("generate", "a", "--top-k", "many"), ["--top-k", "integer"]),
        (("models", "surplus"), ["surplus"]),
    ],
)
def test_what_cannot_be_parsed_is_a_usage_error_on_one_line(
    run: Run, args: tuple[str, ...], words: list[str]
) -> None:
    result = run(*args)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "try --help" in result.stderr
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize(
    ("error", "code"), [(ModelError("no\nmodel [red]x"), 1), (SettingsError("dtype='x' is"), 2)]
)
def test_errors_of_the_library_are_one_line_and_an_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(common, "load_llm", fail)

    result = run("generate", "a")

    assert (result.exit_code, result.stdout) == (code, "")
    wanted = {1: "error: no model [red]x\n", 2: "error: --dtype 'x' is\n"}
    assert result.stderr == wanted[code]


def test_errors_are_red_on_a_terminal_unless_no_color_is_set(run: Run) -> None:
    assert "\x1b[1;31merror: " in run("generate", "", env=TERMINAL).stderr
    assert "31m" not in run("generate", "", env={**TERMINAL, "NO_COLOR": "1"}).stderr


def test_other_errors_pass_through(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(common, "load_llm", fail)

    assert isinstance(run("generate", "a").exception, ZeroDivisionError)


def test_without_standalone_mode_errors_pass_through(run: Run) -> None:
    assert isinstance(run("generate", "", standalone_mode=False).exception, SettingsError)


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("top_k=0: too small; min_p=2.0: too big", "--top-k 0: too small; --min-p 2.0: too big"),
        ("stop.1='': too short", "--stop '': too short"),
        ("dtype=torch.int8 is none", "--dtype torch.int8 is none"),
        ("a_top_k=0, seed = 3 and x=1", "a_top_k=0, seed = 3 and x=1"),
    ],
)
def test_settings_are_named_as_options(message: str, wanted: str) -> None:
    assert common.in_option_names(message) == wanted


@pytest.mark.parametrize("command", ["generate", "demo"])
@pytest.mark.parametrize("drafter", ["crystal-ball", "suffix,crystal-ball", "crystal-ball:7"])
def test_an_unknown_drafter_is_found_out_before_anything_is_loaded(
    run: Run, loads: list[object], command: str, drafter: str
) -> None:
    prompt = ["a"] * (command == "generate")

    result = run(command, *prompt, "--drafter", drafter)

    assert result.exit_code == 2
    assert "--drafter 'crystal-ball'" in result.stderr
    assert "only auto, none, prompt-lookup, suffix" in result.stderr
    assert result.stderr.count("\n") == 1
    assert loads == []


def test_characters_the_terminal_lacks_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))

    common.never_fail_on_characters()
    print("é", flush=True)

    assert raw.getvalue() == b"?\n"


def test_listed() -> None:
    assert common.listed(["a"]) == "a"
    assert common.listed(["a", "b", "c"]) == "a, b and c"
