"""`outdraft check`: drafted runs held against plain ones; each difference is a tie or a fault."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence as Seq
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outdraft.cli import common
from outdraft.cli.check_distribution import (
    check_distribution,
    progress,
    refuse_beside_distribution,
)
from outdraft.errors import SettingsError

if TYPE_CHECKING:
    from outdraft.check import Candidate, Comparison, Difference
    from outdraft.interfaces import Drafter

EXAMPLES = common.examples(
    "outdraft check",
    "outdraft check --dtype float32 --temperature 0 --temperature 1",
    "outdraft check --model ./my-model --drafter suffix --prompts questions.txt",
    "outdraft check --distribution --temperature 0.8",
)


def check(
    *,
    model: common.ModelOption = common.DEFAULT_MODEL,
    drafter: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="Drafters to check, separated by commas; all takes every one there is, and makes "
            "a datastore and small draft models for those that need one; with --distribution it is "
            "recycling, which guesses in nearly every step.",
        ),
    ] = "all",
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="One prompt per line; or a .jsonl file with a prompt (or the messages of a chat) "
            "per line. Twenty varied prompts of our own if unset. --distribution continues the "
            "first one, as it stands; it should be short.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            "-n",
            metavar="N",
            help="Tokens to write per prompt.",
            show_default="64",
        ),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            metavar="T",
            help="May be given several times.",
            show_default="0; with --distribution 1",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="S", help="Of every run, plain and drafted.")] = 0,
    dtype: common.DtypeOption = "auto",
    quantize: common.QuantizeOption = None,
    threads: common.ThreadsOption = None,
    batch: Annotated[
        bool, typer.Option("--batch", help="Draft all prompts as one ragged batch.")
    ] = False,
    distribution: Annotated[
        bool,
        typer.Option(
            "--distribution",
            help="Test instead whether drawn tokens follow the model's probabilities.",
        ),
    ] = False,
    draws: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Seeds that --distribution draws with, for each run.",
            show_default="1000",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    inject_fault: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Hold drafted runs against plain ones, token by token.

    Where they differ, the model reads the text once more in an ordinary pass. If both tokens are
    as good as rounding can tell, the difference is a tie, and else a fault. Exits with 1 if there
    is a fault.

    With --distribution, a short text is continued with many seeds, plainly and drafted, and the
    tokens at each position are held against the model's exact probabilities by a chi-square test.
    Exits with 1 if a p-value is below its share of 0.001.
    """
    from outdraft import check as checks
    from outdraft.settings import GenerationSettings

    if distribution:
        refuse_beside_distribution(max_new_tokens, batch, inject_fault)
        check_distribution(
            lambda: common.load_llm(model, dtype=dtype, quantize=quantize, threads=threads),
            drafter,
            prompts,
            temperatures=temperature or [1.0],
            draws=draws,
            seed=seed,
            as_json=as_json,
        )
        return
    if draws is not None:
        raise SettingsError("--draws is for --distribution alone; add it, or leave --draws out")
    max_new_tokens = 64 if max_new_tokens is None else max_new_tokens
    temperatures = list(dict.fromkeys(temperature or [0.0]))
    for value in temperatures:  # all is refused before a model is loaded
        GenerationSettings(max_new_tokens=max_new_tokens, temperature=value, seed=seed)
    names = checks.chosen_drafters(drafter)
    texts = checks.shipped_prompts() if prompts is None else checks.read_prompts(prompts)
    llm = common.load_llm(model, dtype=dtype, quantize=quantize, threads=threads)
    drafters: Seq[str | Drafter] = names
    with ExitStack() as kept:
        if drafter == checks.ALL:
            folder = kept.enter_context(TemporaryDirectory(prefix="outdraft-check-"))
            drafters, reasons = checks.usable_drafters(llm, names, texts, Path(folder))
            for name, reason in reasons.items():
                common.note(f"{name} is left out: {reason}")
        num_runs = len(texts) * len(temperatures) * (1 + len(drafters))
        on_run = kept.enter_context(progress(num_runs))
        comparisons = checks.check(
            llm,
            texts,
            drafters=drafters,
            temperatures=temperatures,
            max_new_tokens=max_new_tokens,
            seed=seed,
            is_batched=batch,
            drafted_llm=None if inject_fault is None else checks.damaged(llm, inject_fault),
            on_run=on_run,
        )
    if as_json:
        typer.echo(to_json(llm.name, comparisons))
    else:
        show(common.out_console(), comparisons)
    _warn_of_idle_drafters(comparisons)
    if any(comparison.faults for comparison in comparisons):
        raise typer.Exit(common.FAILED)


def show(console: Console, comparisons: Seq[Comparison]) -> None:
    """A table, the differences one by one, and the verdict."""
    console.print(_table(comparisons))
    for comparison in comparisons:
        for prompt_idx, difference in comparison.differences.items():
            console.print(_describe(comparison, prompt_idx, difference), soft_wrap=True)
    faults = sum(comparison.faults for comparison in comparisons)
    ties = sum(comparison.ties for comparison in comparisons)
    compared = sum(comparison.compared for comparison in comparisons)
    style = "bold red" if faults else "bold green"
    verdict = f"{compared} tokens compared: {_count(faults, 'fault')}, {_count(ties, 'tie')}"
    console.print(Text(verdict, style))


def _table(comparisons: Seq[Comparison]) -> Table:
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        caption="plain decoding has 1.00 tokens per step",
        caption_justify="left",
    )
    table.add_column("drafter", overflow="fold")
    for name in ("temperature", "tokens", "identical", "ties", "faults", "tokens/step"):
        table.add_column(name, justify="right")
    for comparison in comparisons:
        table.add_row(
            comparison.drafter,
            f"{comparison.temperature:g}",
            str(comparison.compared),
            f"{comparison.identical} of {comparison.prompts}",
            str(comparison.ties),
            Text(str(comparison.faults), "bold red" if comparison.faults else ""),
            f"{comparison.tokens_per_step:.2f}",
        )
    return table


def _describe(comparison: Comparison, prompt_idx: int, difference: Difference) -> Text:
    """One difference, all its numbers on one line; prompts and tokens are counted from 1."""
    is_tie = difference.fault is None
    line = Text("tie    " if is_tie else "FAULT  ", "yellow" if is_tie else "bold red")
    line.append(
        f"{comparison.drafter}, temperature {comparison.temperature:g}, prompt {prompt_idx + 1}, "
        f"token {difference.position + 1}",
        "default not bold",
    )
    if difference.plain is not None and difference.drafted is not None:
        score = "logit" if comparison.temperature == 0.0 else "score"
        line.append(
            f": plain {_candidate(difference.plain, score)}, "
            f"drafted {_candidate(difference.drafted, score)}, "
            f"gap {difference.gap:.3g}, tolerance {difference.tolerance:.3g}",
            "default not bold",
        )
    if difference.fault is not None:
        line.append(f": {difference.fault}")
    return line


def _candidate(candidate: Candidate, score: str) -> str:
    return f"{candidate.text!r} ({candidate.token_id}) {score} {candidate.score:.6g}"


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def _warn_of_idle_drafters(comparisons: Seq[Comparison]) -> None:
    """Where nothing was drafted, nothing was verified, and equal texts prove nothing."""
    for comparison in comparisons:
        if comparison.drafted == 0:
            common.note(
                f"{comparison.drafter} guessed nothing at temperature {comparison.temperature:g}, "
                "so nothing of it was checked; try other prompts or more tokens"
            )


def to_json(model: str, comparisons: Seq[Comparison]) -> str:
    """One object: every comparison with its differences; numbers that are none become null."""
    faults = sum(comparison.faults for comparison in comparisons)
    report = {
        "model": model,
        "is_clean": faults == 0,
        "faults": faults,
        "ties": sum(comparison.ties for comparison in comparisons),
        "comparisons": [_as_dict(comparison) for comparison in comparisons],
    }
    return json.dumps(_finite(report), ensure_ascii=False)


def _as_dict(comparison: Comparison) -> dict[str, Any]:
    differences = [
        {"prompt_idx": prompt_idx, "is_tie": difference.fault is None, **asdict(difference)}
        for prompt_idx, difference in comparison.differences.items()
    ]
    return {
        **asdict(comparison),
        "identical": comparison.identical,
        "ties": comparison.ties,
        "faults": comparison.faults,
        "tokens_per_step": comparison.tokens_per_step,
        "differences": differences,
    }


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {name: _finite(entry) for name, entry in value.items()}
        case list():
            return [_finite(entry) for entry in value]
        case float() if not math.isfinite(value):
            return None
    return value
