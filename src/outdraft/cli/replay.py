"""`outdraft replay`: what drafters would have brought on answers that a log already has."""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from outdraft.cli import common
from outdraft.errors import DrafterError

if TYPE_CHECKING:
    from outdraft.replay import Log, Prediction
    from outdraft.text.prompts import Tokenizer

EXAMPLES = common.examples(
    "outdraft replay outdraft-bench/20260101-120000/results.jsonl",
    "outdraft replay log.jsonl --model Qwen/Qwen3-8B",
    "outdraft replay log.jsonl --drafter suffix --max-draft-nodes 31 --json",
)


def replay(
    log: Annotated[
        Path,
        typer.Argument(
            metavar="LOG.jsonl",
            help="One JSON object a line, with prompt and answer, or with messages that end with "
            "the assistant's; or the results.jsonl of outdraft bench.",
        ),
    ],
    *,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="D",
            help="A drafter to replay; may be given several times. Without it: all that guess "
            "from token ids alone.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="REF",
            help="Whose tokenizer to use; the model itself is not loaded. Without it: the default "
            f"model's ({common.DEFAULT_MODEL}). The results of outdraft bench need none.",
        ),
    ] = None,
    max_draft_nodes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Guesses per step at most. Without it: as in the log's run, else the default.",
        ),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", metavar="", help="Prompts stand for themselves, without chat template."
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", metavar="", help="Print one JSON object instead of the table."),
    ] = False,
) -> None:
    """Predict tokens per step on known answers, without running the model.

    Every drafter is simulated token by token, under the engine that generates. On the results of
    outdraft bench the prediction stands beside what was measured.
    """
    from outdraft.replay import id_only_specs, replay as replay_log
    from outdraft.settings import EngineSettings

    read, tokenizer = _read(log, model, is_raw=raw)
    nodes = max_draft_nodes if max_draft_nodes is not None else read.max_draft_nodes
    settings = EngineSettings() if nodes is None else EngineSettings(max_draft_nodes=nodes)
    specs = drafter or id_only_specs(read, tokenizer)
    if not specs:
        raise DrafterError("no drafter that guesses from token ids alone is known; name one")
    predictions = [
        prediction
        for spec in specs
        for prediction in replay_log(read, spec, settings.max_draft_nodes, tokenizer)
    ]
    if as_json:
        typer.echo(to_json(log, settings.max_draft_nodes, predictions))
        return
    _show(predictions, settings.max_draft_nodes)


def to_json(log: Path, max_draft_nodes: int, predictions: Seq[Prediction]) -> str:
    """The object that `--json` prints, on one line."""
    listed = [
        {
            "drafter": prediction.drafter,
            "group": prediction.group,
            "answers": prediction.answers,
            "tokens": prediction.tokens,
            "passes": prediction.passes,
            "drafted": prediction.drafted,
            "tokens_per_step": prediction.tokens_per_step,
            "measured_passes": prediction.measured_passes,
            "measured_tokens_per_step": prediction.measured_tokens_per_step,
        }
        for prediction in predictions
    ]
    record: dict[str, Any] = {
        "log": str(log),
        "max_draft_nodes": max_draft_nodes,
        "predictions": listed,
    }
    return json.dumps(record)


def _read(path: Path, model: str | None, *, is_raw: bool) -> tuple[Log, Tokenizer | None]:
    from outdraft.models.load import load_tokenizer
    from outdraft.replay import is_bench_log, read_bench_log, read_log

    if is_bench_log(path):
        return read_bench_log(path), None if model is None else load_tokenizer(model)
    tokenizer = load_tokenizer(model or common.DEFAULT_MODEL)
    log = read_log(
        path,
        tokenizer,
        vocab_size=len(tokenizer),
        eos_id=tokenizer.eos_token_id,
        is_raw=is_raw,
    )
    return log, tokenizer


def _show(predictions: Seq[Prediction], max_draft_nodes: int) -> None:
    console = common.out_console()
    groups = dict.fromkeys(prediction.group for prediction in predictions)
    if len(groups) == 2:
        groups = {None: None}  # the only group is all there is
    is_measured = any(prediction.measured_passes is not None for prediction in predictions)
    for group in groups:
        table = Table(
            title=group or "all answers",
            title_justify="left",
            title_style="bold",
            header_style="dim",
            box=None,
            pad_edge=False,
            padding=(0, 2, 0, 0),
        )
        table.add_column("drafter", min_width=16)
        measured = ["measured"] if is_measured else []
        for heading in ("answers", "tokens", "target passes", "tokens per step", *measured):
            table.add_column(heading, justify="right", min_width=8)
        for prediction in predictions:
            if prediction.group == group:
                table.add_row(*_cells(prediction)[: len(table.columns)])
        console.print(table)
        console.print()
    note = (
        f"predicted on known answers with {max_draft_nodes} guesses per step at most; plain "
        "decoding has 1.00 token per step. No time was measured: outdraft bench does that"
    )
    console.print(note, style="dim", markup=False, soft_wrap=True)


def _cells(prediction: Prediction) -> list[str]:
    measured = prediction.measured_tokens_per_step
    return [
        prediction.drafter,
        str(prediction.answers),
        str(prediction.tokens),
        str(prediction.passes),
        f"{prediction.tokens_per_step:.2f}",
        "–" if measured is None else f"{measured:.2f}",
    ]
