"""`outdraft replay`: what drafters would have brought on answers that a log already has."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence as Seq
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from outdraft.cli import common
from outdraft.errors import DrafterError, ModelError

if TYPE_CHECKING:
    from outdraft.plan.cost_file import KeptCosts
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
            help="Read up to N guesses in each step, whether they pay or not. Without it: as in "
            "the log's run; else as many as pay on this machine, if its costs are known.",
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="D",
            help="Take the costs that the model's passes have here in this dtype. Without it: the "
            "log's, else those that were measured last.",
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
    """Predict tokens per step and speed-up on known answers, without running the model.

    Every drafter is simulated token by token, under the engine that generates. On the results of
    outdraft bench the prediction stands beside what was measured. The speed-up follows from what
    the model's passes cost on this machine, as an earlier run or outdraft tune measured it.
    """
    from outdraft.plan.cost_file import find_costs
    from outdraft.replay import id_only_specs, replay as replay_log
    from outdraft.settings import EngineSettings

    read, tokenizer = _read(log, model, is_raw=raw)
    nodes = max_draft_nodes if max_draft_nodes is not None else read.max_draft_nodes
    settings = EngineSettings() if nodes is None else EngineSettings(max_draft_nodes=nodes)
    name = model or read.model or common.DEFAULT_MODEL
    is_priced = max_draft_nodes is None and read.is_priced is not False
    kept = find_costs(name, dtype or read.dtype) if is_priced else None
    specs = drafter or id_only_specs(read, tokenizer)
    if not specs:
        raise DrafterError("no drafter that guesses from token ids alone is known; name one")
    predictions = [
        prediction
        for spec in specs
        for prediction in replay_log(
            read,
            spec,
            settings.max_draft_nodes,
            tokenizer,
            costs=None if kept is None else kept.costs,
        )
    ]
    if as_json:
        typer.echo(to_json(log, settings.max_draft_nodes, kept, predictions))
        return
    _show(predictions)
    _explain(name, settings.max_draft_nodes, kept, is_priced=is_priced)


def to_json(
    log: Path, max_draft_nodes: int, kept: KeptCosts | None, predictions: Seq[Prediction]
) -> str:
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
            "seconds": prediction.seconds,
            "plain_seconds": prediction.plain_seconds,
            "speedup": prediction.speedup,
        }
        for prediction in predictions
    ]
    record: dict[str, Any] = {
        "log": str(log),
        "max_draft_nodes": max_draft_nodes,
        "costs": None if kept is None else asdict(kept.key),
        "predictions": listed,
    }
    return json.dumps(record)


def _read(path: Path, model: str | None, *, is_raw: bool) -> tuple[Log, Tokenizer | None]:
    from outdraft.models.load import load_tokenizer
    from outdraft.replay import is_bench_log, read_bench_log, read_log

    if is_bench_log(path):
        run = read_bench_log(path)
        return run, _tokenizer_of_run(model or run.model, is_needed=model is not None)
    tokenizer = load_tokenizer(model or common.DEFAULT_MODEL)
    log = read_log(
        path,
        tokenizer,
        vocab_size=len(tokenizer),
        eos_id=tokenizer.eos_token_id,
        is_raw=is_raw,
    )
    return log, tokenizer


def _tokenizer_of_run(model: str | None, *, is_needed: bool) -> Tokenizer | None:
    """Of the model that a run was made with, if it is still there; few drafters ask for it."""
    from outdraft.models.load import load_tokenizer

    try:
        return None if model is None else load_tokenizer(model)
    except ModelError:
        if is_needed:
            raise
        return None


def _show(predictions: Seq[Prediction]) -> None:
    console = common.out_console()
    groups = dict.fromkeys(prediction.group for prediction in predictions)
    if len(groups) == 2:
        groups = {None: None}  # the only group is all there is
    columns = dict(_COLUMNS)
    if all(prediction.speedup is None for prediction in predictions):
        del columns["speed-up"]
    if all(prediction.measured_passes is None for prediction in predictions):
        del columns["measured"]
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
        for heading in columns:
            table.add_column(heading, justify="right", min_width=8)
        for prediction in predictions:
            if prediction.group == group:
                cells = (cell(prediction) for cell in columns.values())
                table.add_row(prediction.drafter, *cells)
        console.print(table)
        console.print()


def _explain(name: str, max_draft_nodes: int, kept: KeptCosts | None, *, is_priced: bool) -> None:
    """What was predicted, and from what."""
    if kept is not None:
        read = (
            f"up to {max_draft_nodes} guesses per step, as many as pay by what passes of "
            f"{kept.key.model} in {kept.key.dtype} cost on {kept.key.device} with "
            f"{kept.key.threads} threads; speed-up: over plain decoding, prompts left out"
        )
    elif is_priced:
        read = (
            f"{max_draft_nodes} guesses per step at most, whether they pay or not: what passes of "
            f"{name} cost here is not known. outdraft tune measures it, and a speed-up is "
            "predicted too"
        )
    else:
        read = f"{max_draft_nodes} guesses per step at most, whether they pay or not"
    note = f"predicted on known answers; plain decoding has 1.00 token per step; {read}"
    common.out_console().print(note, style="dim", markup=False, soft_wrap=True)


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


_COLUMNS: dict[str, Callable[[Prediction], str]] = {
    "answers": lambda prediction: str(prediction.answers),
    "tokens": lambda prediction: str(prediction.tokens),
    "target passes": lambda prediction: str(prediction.passes),
    "tokens per step": lambda prediction: _ratio(prediction.tokens_per_step),
    "measured": lambda prediction: _ratio(prediction.measured_tokens_per_step),
    "speed-up": lambda prediction: _ratio(prediction.speedup),
}
