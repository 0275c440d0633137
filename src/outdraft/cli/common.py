"""What the commands share: options, consoles, the one way to load a model, and exit codes."""

from __future__ import annotations

import inspect
import io
import re
import sys
from collections.abc import Callable, Sequence as Seq
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from outdraft.errors import OutdraftError, SettingsError

if TYPE_CHECKING:
    from outdraft.generate import Outdraft
    from outdraft.settings import EngineSettings
    from outdraft.text.prompts import Prompt
    from outdraft.trace import TraceWriter

FAILED, USAGE, INTERRUPTED = 1, 2, 130

# As in `settings`, which takes too long to import for a page of help; a test holds them together.
DEFAULT_MODEL = "smollm2-135m"
DEFAULT_MAX_NEW_TOKENS = 256
DEFAULT_TEMPERATURE = 0.0

_OPTIONS = (
    "max_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "no_repeat_ngram_size",
    "min_new_tokens",
    "logprobs",
    "n",
    "seed",
    "stop",
    "dtype",
    "device",
    "drafter",
    "quantize",
    "threads",
)
# `top_k=0` and `stop.1=''` in a message of the library are `--top-k 0` and `--stop ''` here.
_SETTING = re.compile(rf"\b({'|'.join(_OPTIONS)})(?:\.\d+)?=(?=\S)")

ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="REF",
        help="A hub id, a local folder, a .gguf file, or an alias from [bold]outdraft models[/].",
    ),
]
TemperatureOption = Annotated[
    float,
    typer.Option(
        metavar="T",
        help="0 takes the likeliest token each time; above 0 it is drawn, more freely the higher.",
    ),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        metavar="X", help="Draw from the likeliest tokens that together have probability X."
    ),
]
DtypeOption = Annotated[
    str,
    typer.Option(
        metavar="D",
        help="float32, bfloat16, float16 or float64; auto takes the checkpoint's on GPUs and, on "
        "CPUs, bfloat16 where the hardware multiplies it natively, else float32.",
    ),
]
DeviceOption = Annotated[
    str, typer.Option(metavar="D", help="cpu, cuda, cuda:1, ...; auto takes a GPU if there is one.")
]
QuantizeOption = Annotated[
    str | None,
    typer.Option(
        metavar="Q",
        help="int8 rounds the weights to 8 bits, on CPUs: faster, and another model, whose text "
        "differs from the whole one's.",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        envvar="OUTDRAFT_THREADS",
        help="Threads that compute on the CPU; without it, one for each physical core.",
    ),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Write what each step guessed, read, accepted and took, one JSON line a step.",
    ),
]
DrafterOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="How to guess: none, prompt-lookup, suffix, or one that a package added; several "
        "with commas between them work together. It changes the speed and never the text.",
    ),
]


class CommandLine(TyperGroup):
    """Turns whatever ends a command into one line on stderr and an exit code."""

    def main(
        self,
        args: Seq[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """As the base class's, which calls it; without `standalone_mode` errors pass through."""
        run = super().main
        options: dict[str, Any] = {
            "complete_var": complete_var,
            "windows_expand_args": windows_expand_args,
            **extra,
        }
        if not standalone_mode:
            return run(args, prog_name, standalone_mode=False, **options)
        try:
            code = run(args, prog_name, standalone_mode=False, **options)
        except OutdraftError as error:
            code = USAGE if isinstance(error, SettingsError) else FAILED
            report(in_option_names(str(error)))
        except typer.TyperException as error:  # an option or argument that cannot be parsed
            code = error.exit_code
            report(f"{error.format_message().rstrip('.')}; try --help")
        if code == INTERRUPTED:
            report("interrupted", label="")
        sys.exit(code)


def report(message: str, *, label: str = "error: ") -> None:
    """One red line on stderr."""
    line = " ".join(message.split())
    err_console().print(f"[bold red]{label}[/][red]{escape(line)}[/]", soft_wrap=True)


def note(message: str) -> None:
    """One dim line on stderr."""
    err_console().print(message, style="dim", markup=False, soft_wrap=True)


def in_option_names(message: str) -> str:
    """A message about settings, such as `top_k=0: ...`, in the words of the command line."""
    return _SETTING.sub(lambda found: f"--{found[1].replace('_', '-')} ", message)


def help_of(command: Callable[..., None]) -> str:
    """A command's docstring, each paragraph on one line for rich to wrap."""
    paragraphs = inspect.getdoc(command) or ""
    return "\n\n".join(" ".join(part.split()) for part in paragraphs.split("\n\n"))


def examples(*lines: str) -> str:
    """The end of a help page; rich gives each paragraph a line of its own."""
    return "[bold]Examples:[/]\n\n" + "\n".join(f"  {escape(line)}" for line in lines)


def out_console() -> Console:
    """For results; plain text where stdout is no terminal or NO_COLOR is set."""
    never_fail_on_characters()
    return Console(highlight=False, emoji=False)


def err_console() -> Console:
    """For everything that is not the result."""
    return Console(stderr=True, highlight=False, emoji=False)


def has_colours(console: Console) -> bool:
    """Whether colours get through, so that none needs a mark in its place."""
    return console.color_system is not None and not console.no_color


def never_fail_on_characters() -> None:
    """Shows what stdout's encoding lacks as question marks; models write any character."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def load_llm(
    model: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    drafter: str = "auto",
    settings: EngineSettings | None = None,
    quantize: str | None = None,
    threads: int | None = None,
) -> Outdraft:
    """The one way in which commands load a model.

    Raises:
        SettingsError: there is no such drafter; that is found out before anything is loaded.
        ModelError: as `outdraft.load`.
    """
    from outdraft.generate import load

    check_drafter(drafter)
    return load(
        model,
        dtype=dtype,
        device=device,
        drafter=drafter,
        settings=settings,
        quantize=quantize,
        threads=threads,
    )


def check_drafter(drafter: str) -> None:
    """Refuses a drafter, or one of several with commas between them, that nobody knows."""
    from outdraft.draft import drafter_names

    known = ["auto", *drafter_names()]
    for spec in drafter.split(","):
        name = spec.partition(":")[0].strip()
        if name not in known:
            raise SettingsError(f"drafter={name!r}: there is no such drafter, only {listed(known)}")


def open_trace(
    path: Path | None, *, goes_on: bool = False
) -> AbstractContextManager[TraceWriter | None]:
    """The file that `--trace` names, if it names one."""
    from outdraft.trace import TraceWriter

    return nullcontext() if path is None else TraceWriter(path, goes_on=goes_on)


def listed(names: Seq[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def chat_prompt(text: str) -> Prompt:
    """What a user says, as the only message of a chat."""
    return [{"role": "user", "content": text}]
