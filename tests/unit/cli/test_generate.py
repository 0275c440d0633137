from __future__ import annotations

import errno
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import outdraft.generate
from outdraft import Outdraft
from outdraft.cli.generate import read_prompt, reading_status
from outdraft.cli.writers import TextWriter
from outdraft.engine import Engine
from outdraft.settings import AUTO_DRAFTER
from outdraft.trace import read_trace
from outdraft.types import Commit
from support.command_line import TERMINAL, Run, ToyTokenizer

CHAT = [{"role": "user", "content": "hello"}]
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def as_line(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


# --- text -----------------------------------------------------------------------------------------


def test_the_text_and_nothing_else_goes_to_stdout(run: Run, llm: Outdraft) -> None:
    result = run("generate", "hello", "-n", "40")

    wanted = llm.generate(CHAT, max_new_tokens=40).text
    assert result.exit_code == 0
    assert len(wanted) > 40
    assert result.stdout == as_line(wanted)
    assert result.stderr == ""


def test_the_prompt_is_a_chat_message_unless_raw(run: Run, llm: Outdraft) -> None:
    tokenizer = llm.tokenizer
    assert isinstance(tokenizer, ToyTokenizer)

    run("generate", "hello", "-n", "1")
    run("generate", "hello", "-n", "1", "--raw")

    assert tokenizer.read == ["<user>hello", "hello"]


@pytest.mark.parametrize("typed", ["hello", "hello\n"])
def test_a_dash_reads_stdin_without_its_last_newline(run: Run, llm: Outdraft, typed: str) -> None:
    result = run("generate", "-", "-n", "5", "--raw", input=typed)

    assert result.stdout == as_line(llm.generate("hello", max_new_tokens=5).text)


def test_a_person_at_the_keyboard_is_told_how_to_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keyboard = io.StringIO("hello\n")
    monkeypatch.setattr(keyboard, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", keyboard)

    assert read_prompt("-") == "hello"
    assert "Ctrl-D" in capsys.readouterr().err


def test_further_newlines_of_stdin_belong_to_the_prompt(run: Run, llm: Outdraft) -> None:
    run("generate", "-", "-n", "5", "--raw", input="hello\n\n")

    assert llm.tokenizer.read == ["hello\n"]  # type: ignore[attr-defined]


def test_options_reach_the_model(run: Run, loads: list[object]) -> None:
    result = run(
        *("generate", "a", "--model", "some/model", "--dtype", "bfloat16"),
        *("--device", "cuda:1", "--drafter", "prompt-lookup", "-n", "2"),
        *("--quantize", "int8", "--threads", "3"),
    )

    assert result.exit_code == 0
    options = {
        "dtype": "bfloat16",
        "device": "cuda:1",
        "drafter": "prompt-lookup",
        "settings": None,
        "quantize": "int8",
        "threads": 3,
    }
    assert loads == [("some/model", options)]


def test_options_reach_the_request(run: Run, llm: Outdraft) -> None:
    result = run(
        *("generate", "hello", "--max-new-tokens", "30", "--temperature", "0.9", "--top-k", "9"),
        *("--top-p", "0.95", "--min-p", "0.01", "--seed", "7", "--stop", "!", "--stop", " dog"),
        "--json",
    )

    wanted = llm.generate(
        CHAT,
        max_new_tokens=30,
        temperature=0.9,
        top_k=9,
        top_p=0.95,
        min_p=0.01,
        seed=7,
        stop=["!", " dog"],
    )
    assert json.loads(result.stdout)["token_ids"] == list(wanted.token_ids)


def test_penalties_and_lengths_reach_the_request_too(run: Run, llm: Outdraft) -> None:
    penalties = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2}
    wanted = {**penalties, "no_repeat_ngram_size": 2, "min_new_tokens": 25, "max_new_tokens": 30}
    args = [
        part
        for name, value in wanted.items()
        for part in ("--" + name.replace("_", "-"), str(value))
    ]
    result = run("generate", "hello", *args, "--json")
    expected = llm.generate(CHAT, **wanted)
    assert json.loads(result.stdout)["token_ids"] == list(expected.token_ids)
    assert expected.token_ids != llm.generate(CHAT, max_new_tokens=30).token_ids


# --- trace ----------------------------------------------------------------------------------------


def test_a_trace_has_a_line_for_every_step(run: Run, llm: Outdraft, tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    result = run("generate", "hello", "-n", "40", "--drafter", "suffix", "--trace", str(path))

    traces = list(read_trace(path))
    wanted = llm.generate(CHAT, max_new_tokens=40, drafter="suffix")
    assert result.stdout == as_line(wanted.text)
    assert [token for trace in traces for token in trace.token_ids] == list(wanted.token_ids)
    assert [trace.step for trace in traces] == list(range(wanted.stats.steps + 1))


def test_a_trace_that_cannot_be_written_is_refused_before_a_model_is_loaded(
    run: Run, loads: list[object], tmp_path: Path
) -> None:
    result = run("generate", "hello", "--trace", str(tmp_path))

    assert (result.exit_code, result.stdout, loads) == (2, "", [])
    assert "cannot be written" in result.stderr


# --- summary --------------------------------------------------------------------------------------


def test_the_summary_is_for_terminals(run: Run) -> None:
    result = run("generate", "hello", "-n", "40", env=TERMINAL)

    summary = ESCAPES.sub("", result.stderr)
    assert re.fullmatch(
        r"40 tokens in \d+ target passes, \d\.\d tokens per step, \d+\.\d s, \d+ tokens/s, "
        rf"drafter {AUTO_DRAFTER}, cut at the length limit\n",
        summary,
    )


def test_the_summary_of_a_sampled_text_names_its_seed(run: Run) -> None:
    result = run("generate", "hello", "-n", "9", "--temperature", "1", "--seed", "7", env=TERMINAL)

    assert f"drafter {AUTO_DRAFTER}, seed 7" in ESCAPES.sub("", result.stderr)


def test_filters_that_cannot_matter_are_noted(run: Run) -> None:
    greedy = run("generate", "a", "-n", "2", "--top-k", "5", "--min-p", "0.1")
    sampled = run("generate", "a", "-n", "2", "--top-k", "5", "--temperature", "1")

    assert "--min-p and --top-k changes nothing at temperature 0" in greedy.stderr
    assert greedy.exit_code == 0
    assert sampled.stderr == ""


# --- json -----------------------------------------------------------------------------------------


def test_json_prints_one_object_and_nothing_else(run: Run, llm: Outdraft) -> None:
    result = run("generate", "hello", "-n", "40", "--drafter", "suffix", "--json", env=TERMINAL)

    wanted = llm.generate(CHAT, max_new_tokens=40, drafter="suffix")
    assert result.stderr == ""
    assert result.stdout.count("\n") == 1
    record = json.loads(result.stdout)
    stats = record.pop("stats")
    assert record.pop("seed") >= 0
    assert record == {
        "text": wanted.text,
        "token_ids": list(wanted.token_ids),
        "prompt_tokens": wanted.prompt_tokens,
        "finish_reason": "length",
        "drafter": "suffix",
    }
    assert stats.pop("seconds") > 0
    assert stats.pop("tokens_per_second") > 0
    assert stats == {
        "steps": wanted.stats.steps,
        "drafted": wanted.stats.drafted,
        "accepted": wanted.stats.accepted,
        "tokens": 40,
        "tokens_per_step": pytest.approx(wanted.stats.tokens_per_step, abs=1e-4),
    }


def test_json_shows_the_seed_that_repeats_the_text(run: Run) -> None:
    args = ("generate", "hello", "-n", "20", "--temperature", "1", "--json")
    first = json.loads(run(*args).stdout)
    again = json.loads(run(*args, "--seed", str(first["seed"]), "--drafter", "none").stdout)

    assert again["token_ids"] == first["token_ids"]
    assert again["drafter"] == "none"
    assert again["stats"]["drafted"] == 0


def test_json_has_all_answers_and_their_logprobs(run: Run, llm: Outdraft) -> None:
    options = ("--temperature", "1", "--seed", "3", "--n", "2", "--logprobs", "1", "--json")
    record = json.loads(run("generate", "hello", "-n", "5", *options).stdout)
    wanted = llm.generate(CHAT, max_new_tokens=5, temperature=1.0, seed=3, n=2, logprobs=1)
    answers = [record, *record["others"]]
    assert [each["token_ids"] for each in answers] == [list(s.token_ids) for s in wanted.samples]
    for answer, sample in zip(answers, wanted.samples, strict=True):
        found = [each["logprob"] for each in answer["logprobs"]]
        assert found == pytest.approx([each.logprob for each in sample.logprobs])
        assert len(answer["logprobs"][0]["top"]) == 1


# --- show drafts ----------------------------------------------------------------------------------


def test_show_drafts_colours_tokens_on_a_terminal(run: Run, llm: Outdraft) -> None:
    result = run("generate", "hello", "-n", "60", "--show-drafts", env=TERMINAL)

    wanted = llm.generate(CHAT, max_new_tokens=60)
    legend, _, text = result.stdout.partition("\n\n")
    assert ESCAPES.sub("", legend) == "accepted guess  correction  bonus  no draft"
    assert ESCAPES.sub("", text) == as_line(wanted.text)
    for code in ("32", "1;31", "4;36"):  # drafted, corrected, bonus
        assert text.count(f"\x1b[{code}m") >= 2


@pytest.mark.parametrize("env", [{}, {**TERMINAL, "NO_COLOR": "1"}])
def test_show_drafts_marks_tokens_without_colours(
    run: Run, llm: Outdraft, env: dict[str, str | None]
) -> None:
    result = run("generate", "hello", "-n", "60", "--show-drafts", env=env)

    wanted = llm.generate(CHAT, max_new_tokens=60).text
    legend, _, text = result.stdout.partition("\n\n")
    assert legend == "· accepted guess  ≠ correction  + bonus  (no mark) no draft"
    assert "\x1b" not in result.stdout
    assert re.sub("[·≠+]", "", text) == as_line(wanted)
    assert {"·", "≠", "+"} <= set(text)


def test_show_drafts_ends_where_a_stop_string_begins(run: Run, llm: Outdraft) -> None:
    whole = llm.generate(CHAT, max_new_tokens=60).text
    stop = whole[20:24]

    result = run("generate", "hello", "-n", "60", "--show-drafts", "--stop", stop)

    text = result.stdout.partition("\n\n")[2]
    assert re.sub("[·≠+]", "", text) == as_line(whole[: whole.index(stop)])


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--max-new-tokens", "0"), ["--max-new-tokens 0"]),
        (("--temperature", "-1"), ["--temperature -1.0"]),
        (("--temperature", "inf"), ["--temperature inf"]),
        (("--top-k", "0"), ["--top-k 0"]),
        (("--top-p", "0"), ["--top-p 0.0"]),
        (("--min-p", "1.5"), ["--min-p 1.5"]),
        (("--seed", "-3"), ["--seed -3"]),
        (("--stop", "x", "--stop", ""), ["--stop ''"]),
        (("--top-k", "0", "--top-p", "3"), ["--top-k 0", "--top-p 3.0"]),
        (("--json", "--show-drafts"), ["--json", "--show-drafts"]),
        (("--min-new-tokens", "9", "-n", "8"), ["--min-new-tokens 9", "--max-new-tokens 8"]),
        (("--n", "2", "--json"), ["--temperature 0.0", "2 answers"]),
        (("--n", "2", "--temperature", "1"), ["--n", "pass --json"]),
        (("--logprobs", "2"), ["--logprobs", "pass --json"]),
    ],
)
def test_what_cannot_be_honoured_is_refused_before_anything_is_loaded(
    run: Run, loads: list[object], args: tuple[str, ...], words: list[str]
) -> None:
    result = run("generate", "hello", *args)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr
    assert loads == []


@pytest.mark.parametrize(
    ("prompt", "stdin", "word"),
    [
        ("", None, "empty"),
        ("-", "\n", "empty"),
        ("-", b"\xff\xfe", "UTF-8"),
        ("\udcff", "", "UTF-8"),
    ],
)
def test_a_prompt_that_is_no_text_is_refused(
    run: Run, loads: list[object], prompt: str, stdin: Any, word: str
) -> None:
    result = run("generate", prompt, input=stdin)

    assert result.exit_code == 2
    assert word in result.stderr
    assert loads == []


def test_a_model_without_chat_template_needs_raw(run: Run, llm: Outdraft) -> None:
    assert isinstance(llm.tokenizer, ToyTokenizer)
    llm.tokenizer.chat_template = None

    refused = run("generate", "hello")
    taken = run("generate", "hello", "--raw", "-n", "3")

    assert refused.exit_code == 2
    assert "toy has no chat template; pass --raw" in refused.stderr
    assert taken.exit_code == 0


# --- interruptions --------------------------------------------------------------------------------


@pytest.fixture
def interrupt_after(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ctrl-C comes when this many steps are done, and before anybody has seen the last one."""
    engines: list[Engine] = []
    step = Engine.step

    def set_up(num_steps: int) -> list[Engine]:
        def step_and_interrupt(engine: Engine) -> list[Commit]:
            engines.append(engine)
            commits = step(engine)
            if len(engines) == num_steps:
                raise KeyboardInterrupt
            return commits

        monkeypatch.setattr(Engine, "step", step_and_interrupt)
        return engines

    return set_up


@pytest.mark.parametrize("extra", [(), ("--show-drafts",)])
def test_ctrl_c_leaves_the_text_whole_and_frees_the_request(
    run: Run, llm: Outdraft, interrupt_after: Any, extra: tuple[str, ...]
) -> None:
    stream = llm.stream(CHAT, max_new_tokens=60, drafter="suffix")
    for _ in range(9):
        next(stream)
    stream.cancel()
    engines = interrupt_after(9)

    result = run("generate", "hello", "-n", "60", "--drafter", "suffix", *extra)

    text = result.stdout.partition("\n\n")[2] if extra else result.stdout
    assert result.exit_code == 130
    assert re.sub("[·≠+]", "", text) == as_line(stream.result.text)
    assert result.stderr == "interrupted\n"
    assert engines[0].is_idle


def test_ctrl_c_while_the_text_is_shown(
    run: Run, llm: Outdraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    show = TextWriter.show

    def show_and_interrupt(writer: TextWriter, piece: outdraft.generate.Piece) -> None:
        show(writer, piece)
        shown.append(piece.text)
        if len(shown) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(TextWriter, "show", show_and_interrupt)

    result = run("generate", "hello", "-n", "60")

    assert result.exit_code == 130
    assert result.stdout.startswith("".join(shown))
    assert as_line(llm.generate(CHAT, max_new_tokens=60).text).startswith(result.stdout[:-1])


def test_ctrl_c_with_json_still_prints_the_object(run: Run, interrupt_after: Any) -> None:
    interrupt_after(5)

    result = run("generate", "hello", "-n", "60", "--json")

    assert result.exit_code == 130
    assert json.loads(result.stdout)["finish_reason"] == "cancelled"


def test_a_reader_that_has_gone_is_no_crash(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def show(writer: TextWriter, piece: outdraft.generate.Piece) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(TextWriter, "show", show)

    result = run("generate", "hello", "-n", "60")

    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert result.stderr == ""


def test_a_long_prompt_says_how_much_of_it_was_read() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with reading_status(console) as on_prompt:
        on_prompt(1024, 1200)
        on_prompt(1200, 1200)
    assert "reading the prompt: 1,024 of 1,200 tokens" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_short_prompt_and_a_file_show_nothing() -> None:
    for is_terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=is_terminal, width=80)
        with reading_status(console) as on_prompt:
            on_prompt(*((9, 9) if is_terminal else (5, 9)))
        assert "reading" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_explain_goes_to_stderr(run: Run, llm: Outdraft) -> None:
    result = run("generate", "hello", "-n", "8", "--drafter", "suffix", "--explain")
    assert "tokens per step" in result.stderr
    assert "tokens per step" not in result.stdout
