"""`outdraft bench step`: what a target pass costs here, beside transformers' own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence as Seq
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from outdraft.cli import common
from outdraft.errors import SettingsError

if TYPE_CHECKING:
    from outdraft.bench.steps import StepCost

EXAMPLES = common.examples(
    "outdraft bench step",
    "outdraft bench step --rows 1,4,16 --context 200 --dtype bfloat16",
    "outdraft bench step --quantize int8 --json > steps.json",
)


def bench_step(
    *,
    model: common.ModelOption = common.DEFAULT_MODEL,
    rows: Annotated[
        str, typer.Option(metavar="N,...", help="Rows per pass: one root, and guesses.")
    ] = "1,2,4,8,16,32,64",
    context: Annotated[
        str, typer.Option(metavar="N,...", help="Tokens that were read before.")
    ] = "200,1000",
    repeat: Annotated[
        int, typer.Option(metavar="N", help="Passes that each median is taken over.")
    ] = 15,
    dtype: common.DtypeOption = "auto",
    device: common.DeviceOption = "auto",
    quantize: common.QuantizeOption = None,
    threads: common.ThreadsOption = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", metavar="", help="Print one JSON object instead of the table."),
    ] = False,
) -> None:
    """Measure one target pass by rows and context, beside transformers' forward call.

    Both read the same tokens in turn; times are medians. The model is held in memory twice: as
    transformers runs it, and laid out for this machine. "outside" is what drafting, planning,
    choosing, verifying and committing add to a step.
    """
    from outdraft.bench.machine import describe_machine, describe_versions
    from outdraft.bench.steps import measure_steps
    from outdraft.models.load import load_model
    from outdraft.models.target import CausalLM

    all_rows, contexts = _numbers("rows", rows), _numbers("context", context)
    common.note(f"loading {model}, twice")
    llm = common.load_llm(
        model, dtype=dtype, device=device, drafter="none", quantize=quantize, threads=threads
    )
    assert isinstance(llm.target, CausalLM)  # loaded by reference
    stock = CausalLM(load_model(model, dtype=dtype, device=device, pack=False).model)
    costs = measure_steps(stock, llm.target, rows=all_rows, contexts=contexts, repeat=repeat)
    run = {
        "model": llm.name,
        "dtype": str(llm.target.model.dtype).removeprefix("torch."),
        "packing": str(llm.target.packing),
        "repeat": repeat,
        "machine": describe_machine(llm.target.device),
        "versions": describe_versions(),
    }
    if as_json:
        cells = [{**asdict(cost), "ratio": cost.ratio} for cost in costs]
        typer.echo(json.dumps({"run": run, "costs": cells}))
        return
    _show(run, costs)


def _numbers(name: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise SettingsError(f"{name}={text!r}: give whole numbers above 0, as in 1,4,16")
    return [int(part) for part in parts]


def _show(run: dict[str, Any], costs: Iterator[StepCost]) -> None:
    console = common.out_console()
    console.print(f"{run['model']}, {run['dtype']}; {run['packing']}", markup=False)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    measured: list[StepCost] = []
    with common.err_console().status("measuring") as status:
        for cost in costs:
            measured.append(cost)
            status.update(f"measured {cost.rows} rows at context {cost.context}")
    for cost in measured:
        table.add_row(*_cells(cost, measured))
    console.print(table)
    machine = run["machine"]
    console.print(
        f"{machine['cpu']}, {machine['threads']} threads; medians of {run['repeat']}, in turn",
        style="dim",
        markup=False,
    )


_COLUMNS = (
    "context",
    "rows",
    "transformers ms",
    "outdraft ms",
    "ratio",
    "against 1 row",
    "GB/s",
    "outside ms",
    "outside",
)


def _cells(cost: StepCost, measured: Seq[StepCost]) -> list[str]:
    one_row = [other for other in measured if (other.context, other.rows) == (cost.context, 1)]
    return [
        str(cost.context),
        str(cost.rows),
        f"{cost.stock * 1e3:.1f}",
        f"{cost.ours * 1e3:.1f}",
        f"{cost.ratio:.2f}",
        f"{cost.ours / one_row[0].ours:.2f}" if one_row else "–",
        f"{cost.read_bytes_per_second / 1e9:.1f}",
        f"{cost.outside * 1e3:.2f}",
        f"{cost.outside_share:.1%}",
    ]
