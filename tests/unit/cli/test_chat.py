from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from outdraft import Outdraft
from outdraft.cli import chat
from outdraft.engine import Engine
from outdraft.types import Commit
from support.command_line import TERMINAL, Run, ToyTokenizer

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def as_line(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def answers(llm: Outdraft, *questions: str, system: str | None = None) -> list[str]:
    """What the same conversation says through Python."""
    conversation = llm.chat(system=system, max_new_tokens=12)
    return [as_line(conversation.send(question).text) for question in questions]


def test_each_line_of_a_pipe_is_a_question(run: Run, llm: Outdraft) -> None:
    result = run("chat", "-n", "12", input="hello\nwhy?\n\nbye")
    assert result.exit_code == 0
    assert result.stdout == "".join(answers(llm, "hello", "why?", "bye"))
    assert result.stderr == ""


def test_the_turns_are_one_conversation(run: Run, llm: Outdraft) -> None:
    tokenizer = llm.tokenizer
    assert isinstance(tokenizer, ToyTokenizer)
    run("chat", "-n", "12", "--system", "be brief", input="hello\nwhy?\n")
    first, second = tokenizer.read
    assert first == "<system>be brief<user>hello"
    assert second.startswith(first + "<assistant>")
    assert second.endswith("<user>why?")


def test_help_lists_every_command(run: Run) -> None:
    result = run("chat", input="/help\n")
    assert result.stdout == chat.HELP + "\n"
    for name in chat.Talk(None, "toy")._commands:  # type: ignore[arg-type]
        assert f"/{name}" in result.stdout


def test_the_page_of_help_has_examples(run: Run) -> None:
    result = run("chat", "--help")
    assert "Examples:" in result.stdout
    assert "outdraft chat --system" in result.stdout


def test_a_system_prompt_is_shown_and_changed(run: Run, llm: Outdraft) -> None:
    result = run("chat", "-n", "12", input="/system\n/system be kind\n/system\nhello\n")
    (answer,) = answers(llm, "hello", system="be kind")
    assert result.stdout == "(nothing)\nbe kind\n" + answer


def test_undo_takes_a_turn_back(run: Run, llm: Outdraft) -> None:
    result = run("chat", "-n", "12", input="hello\nwhy?\n/undo\nwhy?\n")
    first, second = answers(llm, "hello", "why?")
    assert result.stdout == first + second + second
    assert "1 turns are left" in result.stderr


def test_reset_starts_anew(run: Run, llm: Outdraft) -> None:
    result = run("chat", "-n", "12", input="hello\n/reset\nhello\n")
    (answer,) = answers(llm, "hello")
    assert result.stdout == answer * 2


def test_stats_count_all_answers(run: Run, llm: Outdraft) -> None:
    result = run("chat", "-n", "12", input="/stats\nhello\nhello\n/stats\n")
    conversation = llm.chat(max_new_tokens=12)
    results = [conversation.send("hello") for _ in range(2)]
    assert chat.totals([]) in result.stdout
    tokens = sum(len(each.token_ids) for each in results)
    assert f"answers: 2\nwritten: {tokens} tokens in" in result.stdout
    reused = results[1].stats.reused_prompt_tokens
    assert f"{reused} of them not read again" in result.stdout


def test_save_writes_the_conversation(run: Run, llm: Outdraft, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    result = run("chat", "-n", "12", input=f"hello\n/save {path}\n")
    saved = json.loads(path.read_text("utf-8"))
    conversation = llm.chat(max_new_tokens=12)
    conversation.send("hello")
    assert saved == {"model": "toy", "messages": conversation.messages}
    assert f"saved to {path}" in result.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/magic", "there is no command /magic; /help lists them"),
        ("/undo", "nothing to undo"),
        ("/save", "/save needs the name of a file"),
        ("/save /no/such/folder/x", "/no/such/folder/x cannot be written"),
    ],
)
def test_what_cannot_be_done_is_said_and_the_talk_goes_on(
    run: Run, llm: Outdraft, line: str, message: str
) -> None:
    result = run("chat", "-n", "12", input=f"{line}\nhello\n")
    assert message in result.stderr
    assert result.stdout == answers(llm, "hello")[0]
    assert result.exit_code == 0


def test_quit_leaves_at_once(run: Run) -> None:
    result = run("chat", input="/quit\nhello\n")
    assert (result.exit_code, result.stdout) == (0, "")


def test_two_slashes_say_one(run: Run, llm: Outdraft) -> None:
    tokenizer = llm.tokenizer
    assert isinstance(tokenizer, ToyTokenizer)
    run("chat", "-n", "2", input="//help\n")
    assert tokenizer.read == ["<user>/help"]


def test_ctrl_c_stops_the_answer_and_keeps_the_talk(
    run: Run, llm: Outdraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = answers(llm, "hello", "hello")
    calls: list[Engine] = []
    step = Engine.step

    def step_and_interrupt(engine: Engine) -> list[Commit]:
        calls.append(engine)
        commits = step(engine)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return commits

    monkeypatch.setattr(Engine, "step", step_and_interrupt)
    result = run("chat", "-n", "12", input="hello\n/undo\nhello\nhello\n")
    assert result.exit_code == 0
    assert "stopped; the answer ends here" in result.stderr
    part, *rest = result.stdout.splitlines(keepends=True)
    assert first.startswith(part.rstrip("\n"))
    assert "".join(rest) == first + second


@pytest.mark.parametrize("no_color", [None, "1"])
def test_a_terminal_shows_how_fast_an_answer_comes(
    run: Run, llm: Outdraft, no_color: str | None
) -> None:
    result = run("chat", "-n", "12", input="hello\n", env={**TERMINAL, "NO_COLOR": no_color})
    shown = ESCAPES.sub("", result.stdout)
    assert "1 tokens, 1.0 tokens per step" in shown
    assert "12 tokens, " in shown
    assert answers(llm, "hello")[0].splitlines()[-1] in shown
    colours = re.findall(r"\x1b\[[0-9;]*3[0-7]m", result.stdout)
    assert not colours


def test_bad_settings_are_refused_before_a_model_is_loaded(
    run: Run, loads: list[tuple[str, dict[str, Any]]]
) -> None:
    result = run("chat", "--temperature", "-1", input="hello\n")
    assert result.exit_code == 2
    assert "--temperature" in result.stderr
    assert loads == []


def test_a_model_without_chat_template_cannot_chat(run: Run, llm: Outdraft) -> None:
    llm.tokenizer.chat_template = None
    result = run("chat", input="hello\n")
    assert result.exit_code == 2
    assert "toy has no chat template" in result.stderr


def test_questions_that_are_no_text_are_refused(run: Run) -> None:
    result = run("chat", input=b"\xff\xfe\n")
    assert result.exit_code == 2
    assert "not UTF-8" in result.stderr


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_ctrl_d_ends_the_questions_and_ctrl_c_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["hello", KeyboardInterrupt(), "bye", EOFError()])

    def ask(prompt: str) -> str:
        assert prompt == "> "
        answer = next(typed)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr("builtins.input", ask)
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert list(chat.questions()) == ["hello", "bye"]
