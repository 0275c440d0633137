"""The command line: `outdraft`, one file per command.

Heavy imports (torch, transformers) stay inside the commands, so that help is there at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from outdraft import __version__
from outdraft.cli import bench, chat, check, datastore, demo, generate, models, replay, report, tune
from outdraft.cli.common import CommandLine, examples, help_of

HELP = """The same text from a language model, sooner.

A cheap drafter guesses several tokens ahead; the model reads all guesses in one pass and keeps \
those it would have written itself.

Exit codes: 0 all went well, 1 something failed, 2 the command line asks for something that \
cannot be honoured, 130 interrupted with Ctrl-C."""

app = typer.Typer(
    name="outdraft",
    cls=CommandLine,
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command(help=help_of(generate.generate), epilog=generate.EXAMPLES)(generate.generate)
app.command(help=help_of(chat.chat), epilog=chat.EXAMPLES)(chat.chat)
app.command(help=help_of(demo.demo), epilog=demo.EXAMPLES)(demo.demo)
app.command(help=help_of(tune.tune), epilog=tune.EXAMPLES)(tune.tune)
app.command(help=help_of(models.models), epilog=models.EXAMPLES)(models.models)
app.command(help=help_of(check.check), epilog=check.EXAMPLES)(check.check)
app.command(help=help_of(report.report), epilog=report.EXAMPLES)(report.report)
app.command(help=help_of(replay.replay), epilog=replay.EXAMPLES)(replay.replay)
app.add_typer(bench.bench_app, name="bench")
app.add_typer(datastore.datastore_app, name="datastore")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"outdraft {__version__}")
        raise typer.Exit


@app.callback(
    help=HELP,
    invoke_without_command=True,
    epilog=examples(
        "outdraft demo",
        'outdraft generate "Why is the sky blue?"',
        "outdraft generate --help",
    ),
)
def main(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar="",
            callback=_print_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """What holds for all commands; alone, it shows the help."""
    del version  # its callback has done the work
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
