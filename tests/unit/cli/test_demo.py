from __future__ import annotations

import re
from typing import Any

import pytest

from outdraft import Outdraft
from outdraft.cli import demo
from outdraft.cli.recorder import Recorder
from outdraft.engine import Engine
from outdraft.types import Commit
from support.command_line import TERMINAL, Run, ToyTokenizer

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(autouse=True)
def short_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PROMPT", "hello")


def numbers(output: str, name: str) -> list[float]:
    """The table's line of that name."""
    (line,) = re.findall(rf"^{name} +([\d.]+(?: +[\d.]+)*) *$", output, re.MULTILINE)
    return [float(word) for word in line.split()]


def test_both_answers_a_picture_and_a_table(run: Run, llm: Outdraft) -> None:
    result = run("demo", "-n", "60", "--drafter", "suffix")

    chat = [{"role": "user", "content": "hello"}]
    stats = llm.generate(chat, max_new_tokens=60, drafter="suffix").stats
    out = result.stdout
    assert result.exit_code == 0
    assert "\x1b" not in out
    assert out.index("plain decoding") < out.index("drafted decoding (suffix)")
    assert "✓" in out
    assert "✗" in out
    assert f"One of the {stats.steps} drafted steps" in out
    _, plain_per_step, plain_passes, _, plain_speedup = numbers(out, "plain")
    _, per_step, passes, _, _ = numbers(out, "drafted")
    assert (plain_per_step, plain_passes, plain_speedup) == (1.0, 60, 1.0)
    assert per_step == pytest.approx(stats.tokens_per_step, abs=0.01)
    assert passes == stats.steps + 1
    assert "same text: yes, all 60 token ids are equal" in out
    baseline = " ".join(out.partition("speed-up against plain decoding")[2].split())
    assert "same engine, same session" in baseline
    assert "1 thread, float64" in baseline


def test_panels_stand_side_by_side_on_wide_terminals_only(run: Run) -> None:
    def is_side_by_side(columns: str) -> bool:
        out = run("demo", "-n", "20", env={"COLUMNS": columns}).stdout
        return any("plain decoding" in line and "(auto)" in line for line in out.splitlines())

    assert is_side_by_side("100")
    assert not is_side_by_side("60")


@pytest.mark.parametrize("columns", ["60", "120"])
def test_a_terminal_sees_the_answers_grow(
    run: Run, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setattr(demo, "_SECONDS_PER_FRAME", 0.0)

    result = run("demo", "-n", "30", env={**TERMINAL, "COLUMNS": columns})

    assert result.exit_code == 0
    out = ESCAPES.sub("", result.stdout)
    assert out.count("─ plain decoding") > 20  # frames
    assert "accepted guess  correction  bonus  no draft" in out
    assert "same text: yes" in out


def test_the_text_on_show_is_the_text(llm: Outdraft) -> None:
    chat = [{"role": "user", "content": "hello"}]
    one = demo.Run("drafted", llm.drafter("suffix"), Recorder())
    changes = []

    demo.read(llm, one, 60, lambda: changes.append(one.seconds))

    wanted = llm.generate(chat, max_new_tokens=60, drafter="suffix")
    assert one.text.plain == wanted.text
    assert one.done.token_ids == wanted.token_ids
    assert changes == sorted(changes)
    assert one.num_passes == len(changes) == wanted.stats.steps + 1


def test_showing_the_text_costs_no_time_of_the_run(llm: Outdraft) -> None:
    clock = iter(range(10_000))
    one = demo.Run("plain", llm.drafter("none"), Recorder())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "time", Clock(clock))
        # Each look at the clock takes a second, and showing takes a hundred.
        demo.read(llm, one, 5, lambda: [next(clock) for _ in range(100)])

    assert one.seconds == 5


class Clock:
    def __init__(self, ticks: Any) -> None:
        self._ticks = ticks

    def perf_counter(self) -> float:
        return float(next(self._ticks))


def test_a_model_without_chat_template_goes_on_from_the_prompt(run: Run, llm: Outdraft) -> None:
    assert isinstance(llm.tokenizer, ToyTokenizer)
    llm.tokenizer.chat_template = None

    assert run("demo", "-n", "20").exit_code == 0
    assert set(llm.tokenizer.read) == {"hello\n\n"}


def test_the_default_is_exact(run: Run, loads: list[tuple[str, dict[str, Any]]]) -> None:
    run("demo", "-n", "2")
    run("demo", "-n", "2", "--model", "x", "--dtype", "bfloat16", "--drafter", "prompt-lookup")

    options = [(ref, given["dtype"], given["drafter"]) for ref, given in loads]
    assert options == [
        ("smollm2-135m", "float32", "auto"),
        ("x", "bfloat16", "prompt-lookup"),
    ]


@pytest.mark.parametrize(
    ("dtype", "code", "words"),
    [
        ("float32", 1, "error: the texts differ in float32, where they should not"),
        ("bfloat16", 0, "in bfloat16 two tokens may score the same within rounding"),
    ],
)
def test_texts_that_differ(
    run: Run, monkeypatch: pytest.MonkeyPatch, dtype: str, code: int, words: str
) -> None:
    monkeypatch.setattr(demo, "first_difference", lambda one, other: 6)
    monkeypatch.setattr(demo, "dtype_name", lambda llm: dtype)

    result = run("demo", "-n", "20")

    assert result.exit_code == code
    assert "same text: no, the token ids differ from token 7 on" in result.stdout
    assert words in result.stderr
    assert "`outdraft check`" in result.stderr


def test_a_run_in_which_nothing_was_drafted(run: Run) -> None:
    result = run("demo", "-n", "1")

    assert result.exit_code == 0
    assert "Nothing was drafted in this run" in result.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--drafter", "none"), "--drafter 'none': plain decoding is what"),
        (("-n", "0"), "--max-new-tokens 0"),
    ],
)
def test_refusals(run: Run, loads: list[object], args: tuple[str, ...], words: str) -> None:
    result = run("demo", *args)

    assert result.exit_code == 2
    assert words in result.stderr
    assert loads == []


def test_ctrl_c(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[Engine] = []
    step = Engine.step

    def step_and_interrupt(engine: Engine) -> list[Commit]:
        engines.append(engine)
        if len(engines) == 30:
            raise KeyboardInterrupt
        return step(engine)

    monkeypatch.setattr(Engine, "step", step_and_interrupt)

    result = run("demo", "-n", "60", env=TERMINAL)

    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert "\x1b[?25h" in result.stdout  # the cursor is back
    assert engines[-1].is_idle


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        ((), (), None),
        ((1, 2), (1, 2), None),
        ((1, 2), (1, 3), 1),
        ((1, 2), (1, 2, 3), 2),
        ((4,), (), 0),
    ],
)
def test_first_difference(one: tuple[int, ...], other: tuple[int, ...], wanted: int | None) -> None:
    assert demo.first_difference(one, other) == wanted


# --- the recorder ---------------------------------------------------------------------------------


def test_a_recorder_keeps_every_step(llm: Outdraft) -> None:
    recorder = Recorder()
    wanted = llm.generate("hello", drafter="suffix", on_step=recorder, max_new_tokens=60)

    steps = recorder.steps
    assert len(steps) == wanted.stats.steps
    assert sum(len(step.tree) for step in steps) == wanted.stats.drafted
    assert sum(step.num_accepted for step in steps) == wanted.stats.accepted
    committed = [token_id for step in steps for token_id in step.commit.token_ids]
    assert committed == list(wanted.token_ids[1:])
    assert [step.root_id for step in steps[1:]] == [s.commit.token_ids[-1] for s in steps[:-1]]
