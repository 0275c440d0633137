"""The bar that long commands show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from outdraft.cli import common


@contextmanager
def answer_bar() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr with the time left, drawn between answers only: none is slowed down.

    Yields a function of how many answers there are, of how many, and what comes next.
    """
    console = common.err_console()
    bar = Progress(
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
        TextColumn("{task.description}", style="dim", markup=False),
        console=console,
        auto_refresh=False,
        transient=True,
        speed_estimate_period=7 * 24 * 3600.0,
        disable=not console.is_terminal,
    )

    def show(done: int, total: int, description: str) -> None:
        if not bar.tasks:
            bar.add_task(description, total=total, completed=done)
        bar.update(bar.tasks[0].id, completed=done, description=description)
        bar.refresh()

    with bar:
        yield show
