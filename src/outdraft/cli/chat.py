"""`outdraft chat`: a conversation in the terminal, or over a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from outdraft.cli import common
from outdraft.cli.writers import TextWriter, Writer
from outdraft.errors import OutdraftError, SettingsError

if TYPE_CHECKING:
    from outdraft.chat import Chat, Turn
    from outdraft.results import Piece, Result
    from outdraft.stats import Stats

EXAMPLES = common.examples(
    "outdraft chat",
    'outdraft chat --system "You answer in one sentence."',
    "outdraft chat --temperature 0.8 --seed 7 --max-new-tokens 500",
    "printf 'Name a river.\\nAnd a longer one?\\n' | outdraft chat",
)
HELP = """\
/help          this list
/system TEXT   what the model is told before the first turn; without TEXT, shows it
/undo          takes the last question and its answer back
/reset         takes all questions and answers back
/stats         tokens, target passes, and what was not read again
/save FILE     writes the conversation as JSON
/quit          leaves, as Ctrl-D does
Ctrl-C stops an answer and keeps what was written. //TEXT says /TEXT to the model."""


def chat(
    *,
    model: common.ModelOption = common.DEFAULT_MODEL,
    drafter: common.DrafterOption = "auto",
    system: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What the model is told before the first turn."),
    ] = None,
    max_new_tokens: Annotated[
        int,
        typer.Option("--max-new-tokens", "-n", metavar="N", help="Tokens of an answer at most."),
    ] = common.DEFAULT_MAX_NEW_TOKENS,
    temperature: common.TemperatureOption = common.DEFAULT_TEMPERATURE,
    top_p: common.TopPOption = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="S", help="The same seed draws the same answers. Fresh if unset."),
    ] = None,
    dtype: common.DtypeOption = "auto",
    quantize: common.QuantizeOption = None,
    threads: common.ThreadsOption = None,
    device: common.DeviceOption = "auto",
) -> None:
    """Talk with a model.

    Each line is a question; a line that begins with a slash is a command, /help lists them. Earlier
    turns are not read again: each answer goes on from what the model already knows. Answers go to
    stdout; questions may come from a pipe.
    """
    from outdraft.settings import GenerationSettings

    given: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
    }
    given = {name: value for name, value in given.items() if value is not None}
    GenerationSettings(**given)  # refused before a model is loaded
    llm = common.load_llm(
        model, dtype=dtype, device=device, drafter=drafter, quantize=quantize, threads=threads
    )
    with llm.chat(system=system, **given) as conversation:
        if sys.stdin.isatty():
            common.note(f"talking with {llm.name}; /help lists commands, Ctrl-D leaves")
        Talk(conversation, llm.name).run(questions())


def questions() -> Iterator[str]:
    """Lines of the terminal, with editing and history where Python has it, or of a pipe.

    Raises:
        SettingsError: a pipe brings something that is no text.
    """
    if not sys.stdin.isatty():
        try:
            yield from (line.rstrip("\r\n") for line in sys.stdin)
        except UnicodeError:
            raise SettingsError("the questions are not UTF-8 text; convert them first") from None
        return
    import contextlib
    import importlib

    with contextlib.suppress(ImportError):  # not on every platform
        importlib.import_module("readline")
    while True:
        try:
            yield input("> ")
        except EOFError:
            typer.echo()
            return
        except KeyboardInterrupt:
            typer.echo()
            common.note("Ctrl-D or /quit leaves")


class Talk:
    """Answers lines until one says /quit.

    Args:
        name: of the model, for the file that /save writes.
    """

    def __init__(self, conversation: Chat, name: str) -> None:
        self._chat = conversation
        self._name = name
        self._results: list[Result] = []
        self._is_over = False
        self._commands: dict[str, Callable[[str], None]] = {
            "help": lambda _: typer.echo(HELP),
            "system": self._system,
            "undo": self._undo,
            "reset": self._reset,
            "stats": lambda _: typer.echo(totals(self._results)),
            "save": self._save,
            "quit": self._quit,
        }

    def run(self, lines: Iterator[str]) -> None:
        """Takes lines one by one; what cannot be done is said and changes nothing."""
        for line in lines:
            try:
                self._take(line)
            except OutdraftError as error:
                common.report(common.in_option_names(str(error)))
            if self._is_over:
                return

    def _take(self, line: str) -> None:
        if line.startswith("/") and not line.startswith("//"):
            name, _, argument = line[1:].partition(" ")
            if name not in self._commands:
                raise SettingsError(f"there is no command /{name}; /help lists them")
            self._commands[name](argument.strip())
        elif line.strip():
            self._answer(line.removeprefix("/") if line.startswith("//") else line)

    def _answer(self, question: str) -> None:
        console = common.out_console()
        is_live = console.is_terminal and not console.is_dumb_terminal
        turn = self._chat.stream(question)
        writer = LiveWriter(console, turn) if is_live else TextWriter(sys.stdout)
        was_interrupted = write_out(turn, writer)
        self._results.append(turn.result)
        if common.err_console().is_terminal:
            common.note(summary(turn.result.stats))
        if was_interrupted:
            common.note("stopped; the answer ends here")

    def _system(self, text: str) -> None:
        if text:
            self._chat.system = text
        else:
            typer.echo(self._chat.system or "(nothing)")

    def _undo(self, _: str) -> None:
        self._chat.undo()
        common.note(f"{self._chat.num_turns} turns are left")

    def _reset(self, _: str) -> None:
        self._chat.reset()
        common.note("the conversation starts anew")

    def _save(self, path: str) -> None:
        if not path:
            raise SettingsError("/save needs the name of a file")
        record = {"model": self._name, "messages": self._chat.messages}
        try:
            Path(path).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
        except OSError as error:
            raise SettingsError(f"{path} cannot be written: {error.strerror}") from None
        common.note(f"saved to {path}")

    def _quit(self, _: str) -> None:
        self._is_over = True


class LiveWriter(Writer):
    """Shows an answer on a terminal, and below it a line that says how fast it comes.

    Lines that are complete scroll up; the last one and the status are drawn anew in each step.
    """

    def __init__(self, console: Console, turn: Turn) -> None:
        self._console = console
        self._turn = turn
        self._line = ""
        self._num_shown = 0
        self._live = Live(
            console=console, auto_refresh=False, transient=True, vertical_overflow="visible"
        )
        self._live.start()

    def show(self, piece: Piece) -> None:
        self._num_shown += len(piece.text)
        self._take(piece.text)
        status = Text(summary(self._turn.stats), style="dim")
        self._live.update(Group(Text(self._line), status), refresh=True)

    def end(self, result: Result) -> None:
        self._take(result.text[self._num_shown :])
        self._live.stop()
        if self._line:
            self._console.print(Text(self._line), soft_wrap=True)

    def _take(self, text: str) -> None:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._console.print(Text(line), soft_wrap=True)


def write_out(turn: Turn, writer: Writer) -> bool:
    """Shows an answer to its end, or to where Ctrl-C stops it; says whether it did."""
    was_interrupted = False
    try:
        with turn:
            for piece in turn:
                writer.show(piece)
    except KeyboardInterrupt:
        was_interrupted = True
    finally:
        turn.cancel()
        writer.end(turn.result)
    return was_interrupted


def summary(stats: Stats) -> str:
    """One line about an answer, so far or as a whole."""
    parts = [
        f"{stats.tokens} tokens",
        f"{stats.tokens_per_step:.1f} tokens per step",
        f"{stats.tokens_per_second:.0f} tokens/s",
    ]
    if stats.reused_prompt_tokens:
        parts.append(f"{stats.reused_prompt_tokens} tokens not read again")
    return ", ".join(parts)


def totals(results: list[Result]) -> str:
    """What all answers took together."""
    tokens = sum(result.stats.tokens for result in results)
    passes = sum(result.stats.steps + 1 for result in results)
    prompt_tokens = sum(result.prompt_tokens for result in results)
    reused = sum(result.stats.reused_prompt_tokens for result in results)
    per_step = f", {tokens / passes:.2f} tokens per step (plain: 1.00)" if passes else ""
    return (
        f"answers: {len(results)}\n"
        f"written: {tokens} tokens in {passes} target passes{per_step}\n"
        f"prompts: {prompt_tokens} tokens, {reused} of them not read again"
    )
