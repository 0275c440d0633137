"""`outdraft bench`: drafters and baselines on the same questions, in turn, with all figures."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence as Seq
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outdraft.cli import common
from outdraft.cli.bench_step import EXAMPLES as STEP_EXAMPLES, bench_step
from outdraft.cli.bench_table import MIN_WIDTH, acceptance_table, figures_tables, notes
from outdraft.cli.progress import answer_bar

if TYPE_CHECKING:
    from outdraft.bench.figures import Tables
    from outdraft.bench.questions import Question
    from outdraft.bench.records import Record
    from outdraft.bench.run import Progress
    from outdraft.interfaces import TargetModel

EXAMPLES = common.examples(
    "outdraft bench --limit 2 --max-new-tokens 64",
    "outdraft bench --drafter suffix --drafter prompt-lookup --baseline plain,hf,hf-lookup -o a",
    "outdraft bench --questions question.jsonl --group rag --group summarization --repeat 3",
    "outdraft bench --limit 1 -o runs/a --trace runs/a/trace.jsonl",
    "outdraft bench --questions my-prompts.txt --temperature 0.8 --seed 7 --json > figures.json",
)


def bench(
    context: typer.Context,
    *,
    model: common.ModelOption = common.DEFAULT_MODEL,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="D",
            help="A drafter to measure; may be given several times. Without it: auto.",
        ),
    ] = None,
    baseline: Annotated[
        str,
        typer.Option(
            metavar="B,...",
            help="What to compare with: plain (this engine without drafts), and generate of "
            "transformers: hf, hf-lookup, hf-assistant.",
        ),
    ] = "plain",
    assistant: Annotated[
        str | None,
        typer.Option(metavar="REF", help="The smaller model that hf-assistant guesses with."),
    ] = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Questions of your own: Spec-Bench's question.jsonl, chats (a JSON object with "
            "messages a line), or plain text with one prompt a line.",
        ),
    ] = None,
    suite: Annotated[
        str,
        typer.Option(metavar="NAME", help="Questions that come with outdraft, where FILE is none."),
    ] = "default",
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="G",
            help="Only this group or category of questions; may be given several times.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="At most N questions of each group.")
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", metavar="N", help="Tokens per turn at most.")
    ] = 128,
    temperature: Annotated[
        float, typer.Option(metavar="T", help="0 takes the likeliest token each time.")
    ] = common.DEFAULT_TEMPERATURE,
    batch: Annotated[int, typer.Option(metavar="N", help="Questions answered together.")] = 1,
    repeat: Annotated[
        int, typer.Option(metavar="N", help="Runs over all questions; gives the spread.")
    ] = 1,
    dtype: common.DtypeOption = "auto",
    quantize: common.QuantizeOption = None,
    threads: common.ThreadsOption = None,
    device: common.DeviceOption = "auto",
    seed: Annotated[int, typer.Option(metavar="S", help="Of every request.")] = 0,
    max_draft_nodes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Read up to N guesses per sequence in each step, whether they pay or not. Without "
            "it, as many are read as pay on this machine.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Folder for the results; one that was interrupted is gone on with. Without it: a "
            "new folder in outdraft-bench/.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", metavar="", help="Print one JSON object instead of the table."),
    ] = False,
    trace: common.TraceOption = None,
) -> None:
    """Measure drafters beside plain decoding, on the same questions.

    Methods answer in turn, question by question, after a warm-up. Each answer is kept as it comes,
    so that the same command with the same -o DIR goes on after an interruption. Exits with 1 if a
    method failed on a question.
    """
    if context.invoked_subcommand is not None:
        return
    from outdraft.bench.figures import make_tables
    from outdraft.bench.methods import make_methods
    from outdraft.bench.run import BenchSettings, describe_run, open_results, run_bench
    from outdraft.bench.trace import BenchTrace
    from outdraft.settings import GenerationSettings

    # Whatever can be refused is refused before a model is loaded.
    generation = GenerationSettings(
        max_new_tokens=max_new_tokens, temperature=temperature, seed=seed
    )
    settings = BenchSettings(generation, batch, repeat)
    engine = _engine_settings(batch, max_draft_nodes)
    chosen, source = _questions(questions, suite, group or [], limit)
    folder = output or _new_folder()
    has_results = (folder / "results.jsonl").exists()
    with common.open_trace(trace, goes_on=has_results) as lines:
        common.note(f"loading {model}")
        llm = common.load_llm(
            model,
            dtype=dtype,
            device=device,
            drafter="none",
            settings=engine,
            quantize=quantize,
            threads=threads,
        )
        tracer = None if lines is None else BenchTrace(llm, lines)
        baselines = [name.strip() for name in baseline.split(",") if name.strip()]
        methods = make_methods(
            llm,
            drafters=drafter or ["auto"],
            baselines=baselines,
            assistant=assistant,
            stock=_stock(model, baselines, dtype, device),
            on_step=tracer,
        )
        run = describe_run(llm, methods, chosen, settings, source=source, command=sys.argv)
        results = open_results(folder, run, chosen)
        try:
            with _bar() as bar:
                run_bench(llm, methods, chosen, settings, results, on_progress=bar, trace=tracer)
        except KeyboardInterrupt:
            again = f"the same command with -o {folder} goes on"
            common.note(f"what was answered is in {folder}; {again}")
            raise
    names = [method.name for method in methods]
    tables = make_tables(results.records, names, is_greedy=generation.is_greedy)
    _write_out(run, tables, folder, as_json=as_json)
    _report_failures(results.records)


def to_json(run: Mapping[str, Any], tables: Tables) -> str:
    """What `--json` prints and `figures.json` holds: the run, and every figure of the tables."""
    return json.dumps({"run": dict(run), "figures": asdict(tables)})


def _stock(model: str, baselines: Seq[str], dtype: str, device: str) -> TargetModel | None:
    """The model as transformers runs it, if a baseline wants it: not laid out for this machine."""
    from outdraft.integrations.baselines import BASELINES
    from outdraft.models.load import load_model
    from outdraft.models.target import CausalLM

    if not set(baselines) & set(BASELINES):
        return None
    return CausalLM(load_model(model, dtype=dtype, device=device, pack=False).model)


def _engine_settings(batch: int, max_draft_nodes: int | None) -> Any:
    """The defaults, with room for a whole batch; a number of guesses switches pricing off."""
    from outdraft.settings import EngineSettings

    settings = EngineSettings()
    settings = settings.replace(max_batch=max(batch, settings.max_batch))
    if max_draft_nodes is None:
        return settings
    return settings.replace(max_draft_nodes=max_draft_nodes, adaptive=False)


def _questions(
    path: Path | None, suite: str, groups: Seq[str], limit: int | None
) -> tuple[list[Question], str]:
    """The questions to be put, and where they come from."""
    from outdraft.bench.questions import read_questions, read_suite, select

    questions = read_suite(suite) if path is None else read_questions(path)
    return select(questions, groups, limit), f"suite {suite}" if path is None else str(path)


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    """What is answered, and how far that is."""
    with answer_bar() as draw:

        def show(progress: Progress) -> None:
            description = f"{progress.group}, {progress.method}" if progress.method else ""
            draw(progress.done, progress.total, description)

        yield show


def _new_folder() -> Path:
    """A folder named by the time, which no run has taken yet."""
    name = time.strftime("%Y%m%d-%H%M%S")
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    folders = (Path("outdraft-bench") / each for each in names)
    return next(folder for folder in folders if not folder.exists())


def _write_out(run: Mapping[str, Any], tables: Tables, folder: Path, *, as_json: bool) -> None:
    from outdraft.bench.records import replace_file

    text = to_json(run, tables)
    replace_file(folder / "figures.json", f"{text}\n")
    if as_json:
        typer.echo(text)
        common.note(f"results: {folder}")
        return
    console = common.out_console()
    if not console.is_terminal:
        console.width = max(console.width, MIN_WIDTH)
    shown, dropped = figures_tables(tables, console.width)
    if (acceptance := acceptance_table(tables)) is not None:
        shown.append(acceptance)
    for table in shown:
        console.print(table)
        console.print()
    for line in [*notes(tables, run, dropped), f"results: {folder}"]:
        console.print(line, style="dim", markup=False, soft_wrap=True)


def _report_failures(records: Seq[Record]) -> None:
    """One line per method that failed, with its first error."""
    failed = [record for record in records if not record.is_ok]
    for method in dict.fromkeys(record.method for record in failed):
        own = [record for record in failed if record.method == method]
        common.report(
            f"{method} failed on {len(own)} of the answers; question {own[0].question_id}: "
            f"{own[0].error}"
        )
    if failed:
        raise typer.Exit(common.FAILED)


bench_app = typer.Typer(rich_markup_mode="rich")
bench_app.callback(invoke_without_command=True, help=common.help_of(bench), epilog=EXAMPLES)(bench)
bench_app.command("step", help=common.help_of(bench_step), epilog=STEP_EXAMPLES)(bench_step)
