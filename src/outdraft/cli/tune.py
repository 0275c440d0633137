"""`outdraft tune`: which drafters pay here, measured once and kept for later runs."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from outdraft.cli import common
from outdraft.cli.progress import answer_bar
from outdraft.errors import SettingsError

if TYPE_CHECKING:
    from outdraft.bench.questions import Question
    from outdraft.generate import Outdraft
    from outdraft.plan.cost_file import CostKey
    from outdraft.plan.profile import Profile
    from outdraft.text.prompts import Prompt
    from outdraft.tune import TuneSettings

EXAMPLES = common.examples(
    "outdraft tune",
    "outdraft tune --prompts my-prompts.txt --max-new-tokens 128",
    "outdraft tune --drafter lookahead --temperature 0 --temperature 0.8",
    "outdraft tune --show",
    "outdraft tune --reset",
)
# Prompts of each group of the shipped suite: enough for a few minutes.
_LIMIT = 2


def tune(
    *,
    model: common.ModelOption = common.DEFAULT_MODEL,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What to try: one prompt a line, or .jsonl as [bold]outdraft bench[/] reads it. "
            "Without it, a few prompts of each kind that come with outdraft.",
        ),
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Try this one besides auto and its parts; may be given several times.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", metavar="N", help="Tokens of each answer.")
    ] = 96,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            metavar="T", help="Try this temperature; may be given several times. Without it, 0."
        ),
    ] = None,
    dtype: common.DtypeOption = "auto",
    quantize: common.QuantizeOption = None,
    threads: common.ThreadsOption = None,
    device: common.DeviceOption = "auto",
    show: Annotated[
        bool, typer.Option("--show", metavar="", help="Show the profile that is kept, and end.")
    ] = False,
    reset: Annotated[
        bool, typer.Option("--reset", metavar="", help="Remove the profile that is kept, and end.")
    ] = False,
) -> None:
    """Find out which drafters pay on this machine, and remember it.

    Measures the model's passes, answers prompts plainly and with each drafter, and keeps what was
    learnt as a profile: later runs of this model, as it is used here, start from it. It changes
    their speed and never their text. Stopped with Ctrl-C, it leaves the earlier profile as it was.
    """
    from outdraft.models.target import CausalLM
    from outdraft.plan.cost_file import key_of
    from outdraft.tune import TuneSettings

    if show and reset:
        raise SettingsError("--show and --reset exclude each other; leave one out")
    for spec in drafter or ():
        common.check_drafter(spec)
    settings = TuneSettings(tuple(drafter or ()), tuple(temperature or (0.0,)), max_new_tokens)
    questions = [] if show or reset else _questions(prompts)  # refused before a model is loaded
    llm = common.load_llm(
        model, dtype=dtype, device=device, drafter="none", quantize=quantize, threads=threads
    )
    assert isinstance(llm.target, CausalLM)  # loaded by reference
    key = key_of(llm.target, llm.name)
    if reset:
        _reset(key, llm.name)
    elif show:
        _show_kept(key, llm.name)
    else:
        _tune(llm, key, questions, settings)


def _tune(llm: Outdraft, key: CostKey, questions: Seq[Question], settings: TuneSettings) -> None:
    from outdraft.plan.profile import save_profile
    from outdraft.tune import tune as run

    with answer_bar() as draw:
        profile = run(
            llm,
            [_to_prompt(llm, question) for question in questions],
            settings,
            on_progress=lambda at: draw(at.done, at.total, at.drafter),
        )
    path = save_profile(key, profile)
    show_profile(llm.name, profile)
    common.note(f"kept in {path}; --show shows it again, --reset removes it")


def _show_kept(key: CostKey, name: str) -> None:
    from outdraft.plan.profile import load_profile

    profile = load_profile(key)
    if profile is None:
        raise SettingsError(
            f"there is no profile of {name} as it is used here; `outdraft tune` makes one"
        )
    show_profile(name, profile)


def _reset(key: CostKey, name: str) -> None:
    from outdraft.plan.profile import remove_profile

    was_there = remove_profile(key)
    what = "was removed" if was_there else "is not there; nothing was removed"
    common.note(f"the profile of {name} as it is used here {what}")


def show_profile(name: str, profile: Profile) -> None:
    """A row for each drafter and temperature, and which pay."""
    console = common.out_console()
    console.print(f"{name}: {profile.num_prompts} prompts, {profile.made}", markup=False)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("drafter", overflow="fold")
    for column in ("temperature", "tokens per step", "expected", "measured"):
        table.add_column(column, justify="right")
    table.add_column("")
    for finding in profile.findings:
        table.add_row(
            finding.drafter,
            f"{finding.temperature:g}",
            f"{finding.tokens_per_step:.2f}",
            f"{finding.expected_speedup:.2f}×",
            f"{finding.measured_speedup:.2f}×",
            "pays" if finding.pays else "does not pay",
        )
    console.print(table)
    console.print("expected and measured: speed over plain decoding of the same prompts")


def _questions(path: Path | None) -> list[Question]:
    from outdraft.bench.questions import read_questions, read_suite, select

    return select(read_suite(), limit=_LIMIT) if path is None else read_questions(path)


def _to_prompt(llm: Outdraft, question: Question) -> Prompt:
    """Its first turn, as a chat where the model has a template."""
    if llm.tokenizer.chat_template is None:
        return question.turns[0]
    return [*question.history, {"role": "user", "content": question.turns[0]}]
