"""`outdraft report`: a bench run as one page that needs nothing beside itself."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from outdraft.cli import common
from outdraft.errors import SettingsError

EXAMPLES = common.examples(
    "outdraft report runs/a",
    "outdraft report runs/a -o a.html --open",
    "outdraft report runs/a --png speedups.png",
    "outdraft bench --limit 1 -o runs/a --trace runs/a/trace.jsonl && outdraft report runs/a",
)


def report(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The folder that [bold]outdraft bench[/] wrote."),
    ],
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE.html", help="The page. Without it: DIR/report.html."
        ),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(
            "--png",
            metavar="FILE",
            help="Draw the speed-ups as a bitmap too; needs matplotlib, of the extra bench.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="What bench --trace wrote, to show some answers step by step. Without it: "
            "DIR/trace.jsonl, if it is there.",
        ),
    ] = None,
    opens: Annotated[
        bool, typer.Option("--open", metavar="", help="Open the page in the browser.")
    ] = False,
) -> None:
    """Write a report of a bench run: one HTML page with tables, pictures and answers.

    The page holds all it needs and loads nothing, so it can be mailed, kept or printed. It can be
    written while the run goes on, and shows the answers so far.
    """
    from outdraft.report import read_run, render

    page = output or folder / "report.html"
    run = read_run(folder, trace)
    _write(page, render(run))
    typer.echo(page)
    if png is not None:
        from outdraft.report.png import draw_png

        draw_png(run, png)
        typer.echo(png)
    if opens and not webbrowser.open(page.absolute().as_uri()):
        common.note(f"no browser was found here; open {page} yourself")


def _write(path: Path, text: str) -> None:
    from outdraft.bench.records import replace_file

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)
    except OSError as error:
        raise SettingsError(
            f"the report {path} cannot be written ({error.strerror}); name another file with -o"
        ) from error
