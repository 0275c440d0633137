"""`outdraft check --distribution`: drawn tokens held against the model's probabilities."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence as Seq
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from outdraft.cli import common
from outdraft.errors import SettingsError

if TYPE_CHECKING:
    from outdraft.check import Distribution
    from outdraft.generate import Outdraft


def check_distribution(
    load: Callable[[], Outdraft],
    drafter: str,
    prompts: Path | None,
    *,
    temperatures: Seq[float],
    draws: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Tests, shows, and exits with 1 if a test fails."""
    from outdraft import check as checks
    from outdraft.check import distribution

    # all is refused before a model is loaded
    num_draws = distribution.NUM_DRAWS if draws is None else draws
    all_settings = checks.distribution_settings(temperatures, num_draws)
    for settings in all_settings:
        settings.replace(seed=seed)
    drafters = [distribution.FREQUENT_DRAFTER]
    if drafter != checks.ALL:
        drafters = checks.chosen_drafters(drafter)
    prefix = distribution.PREFIX if prompts is None else checks.read_prompts(prompts)[0]
    llm = load()
    with progress(num_draws * len(all_settings) * (1 + len(drafters))) as on_run:
        found = checks.check_distribution(
            llm,
            prefix,
            drafters=drafters,
            temperatures=temperatures,
            num_draws=num_draws,
            seed=seed,
            on_run=on_run,
        )
    if as_json:
        typer.echo(to_json(llm.name, found))
    else:
        show(common.out_console(), found)
    _warn_of_what_was_not_tested(found, drafters)
    if found.faults:
        raise typer.Exit(common.FAILED)


def refuse_beside_distribution(
    max_new_tokens: int | None, batch: bool, inject_fault: str | None
) -> None:
    """Options of the other check mean nothing here.

    Raises:
        SettingsError: one is given.
    """
    given = {
        "--max-new-tokens": max_new_tokens is not None,
        "--batch": batch,
        "--inject-fault": inject_fault is not None,
    }
    for option, is_given in given.items():
        if is_given:
            raise SettingsError(f"{option} has no meaning with --distribution; leave one out")


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while it is a terminal."""
    console = common.err_console()
    columns = (TextColumn("checking"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    is_hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=is_hidden) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


def show(console: Console, found: Distribution) -> None:
    """A table and the verdict; tokens are counted from 1."""
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        caption="tested: in places with enough draws; df: degrees of freedom",
        caption_justify="left",
    )
    table.add_column("drafter", overflow="fold")
    for name in ("temperature", "token", "draws", "accepted", "tested", "chi²", "df", "p-value"):
        table.add_column(name, justify="right")
    for fit in found.fits:
        p_value = "–" if fit.p_value is None else f"{fit.p_value:.3g}"
        table.add_row(
            "plain" if fit.drafter == "none" else fit.drafter,
            f"{fit.temperature:g}",
            str(fit.position + 1),
            str(fit.draws),
            str(fit.accepted),
            str(fit.tested),
            f"{fit.statistic:.1f}",
            str(fit.freedom),
            Text(p_value, "bold red" if found.is_fault(fit) else ""),
        )
    console.print(table)
    style = "bold red" if found.faults else "bold green"
    verdict = (
        f"{found.num_tests} tests, {found.faults or 'none'} with a p-value below "
        f"{found.threshold:.2g} (0.001 shared among them)"
    )
    console.print(Text(verdict, style))


def to_json(model: str, found: Distribution) -> str:
    """One object: every test, and the p-value below which it fails."""
    report = {
        "model": model,
        "is_clean": found.faults == 0,
        "faults": found.faults,
        "threshold": found.threshold,
        "tests": [{**asdict(fit), "is_fault": found.is_fault(fit)} for fit in found.fits],
    }
    return json.dumps(report, ensure_ascii=False)


def _warn_of_what_was_not_tested(found: Distribution, drafters: Seq[str]) -> None:
    if found.num_tests == 0:
        common.note("nothing was tested: too few draws share a place; give more --draws")
    for name in drafters:
        if not any(fit.accepted for fit in found.fits if fit.drafter == name):
            common.note(f"no guess of {name} was accepted, so only plain draws of it were tested")
