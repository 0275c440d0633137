"""Showing how far a long piece of work has come."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class StageProgress:
    """Stages one after another: a bar on a terminal, one plain line each anywhere else.

    Args:
        console: where it is shown; stderr unless given.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> StageProgress:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def begin(self, stage: str, total: int | None = None) -> None:
        """Begins a stage; without a total it shows only that something happens."""
        if self._bar.disable:
            self._console.print(f"outdraft: {stage}", highlight=False, markup=False, soft_wrap=True)
        for done in self._bar.task_ids:
            self._bar.remove_task(done)
        self._bar.add_task(stage, total=total)

    def advance_to(self, completed: int) -> None:
        """Moves the bar of the current stage."""
        self._bar.update(self._bar.task_ids[-1], completed=completed)
