"""One HTML page about a run, with its style, script and pictures inside."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence as Seq
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from outdraft.bench.figures import Figures, Tables
from outdraft.bench.methods import HF, PLAIN
from outdraft.report.answers import Answer, choose_answers
from outdraft.report.charts import (
    ALL_GROUPS,
    FEW_JUDGED,
    colours,
    depth_chart,
    drafter_rows,
    is_baseline,
    reliability_chart,
    speedup_chart,
    time_shares,
)
from outdraft.report.run import Run

if TYPE_CHECKING:
    from jinja2 import Environment

UNKNOWN = "–"


def render(run: Run) -> str:
    """The page; whatever answers or errors contain is text on it and never markup."""
    environment = _environment()
    parts = files("outdraft.report") / "templates"
    script = (parts / "report.js").read_text(encoding="utf-8")
    answers, num_traced = choose_answers(
        run.traces, {record.question_id: record.group for record in run.records}, run.questions
    )
    return environment.get_template("report.html").render(
        style=(parts / "report.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=_hash(script),
        colours=colours(run.methods),
        title=f"{run.description['model']['name']} on {run.description['machine']['device_name']}",
        facts=facts(run),
        command=shlex.join(run.description["command"]),
        headline=headline(run.tables),
        is_whole=is_whole(run),
        parts=table_parts(run.tables),
        has_plain=PLAIN in run.methods,
        has_hf=HF in run.methods,
        speedups=speedup_chart(run.tables),
        depths=depth_chart(run.tables),
        few_judged=FEW_JUDGED,
        shares=time_shares(run.tables),
        reliability=reliability_chart(run.tables),
        drafters=drafter_rows(run.tables),
        failures=[record for record in run.records if not record.is_ok],
        differing=[figures for figures in run.tables.overall if figures.differences],
        answers=answers,
        num_traced=num_traced,
        liveliest=liveliest(answers),
    )


def headline(tables: Tables) -> list[Figures]:
    """The methods that the run is about: those that are no baselines, if there are any."""
    drafting = [figures for figures in tables.overall if not is_baseline(figures.method)]
    return drafting or list(tables.overall)


def liveliest(answers: Seq[Answer]) -> int:
    """The answer to show first: the one that took the fewest passes per token."""
    rates = [answer.num_tokens / len(answer.steps) for answer in answers]
    return rates.index(max(rates)) if rates else 0


def facts(run: Run) -> dict[str, str]:
    """What the figures were measured on and with: without it, they mean nothing."""
    about = run.description
    machine, settings, versions = about["machine"], about["settings"], about["versions"]
    groups = about["questions"]["groups"]
    sampling = f"temperature {settings['temperature']:g}, seed {settings['seed']}"
    given = {
        "Model": about["model"]["name"],
        "Precision": about["model"]["dtype"],
        "Device": f"{machine['device_name']} ({machine['device']})",
        "Threads": f"{machine['threads']}, on {count(machine['cores'], 'core')}",
        "System": machine["system"],
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "Questions": f"{sum(groups.values())} in {count(len(groups), 'group')}, "
        f"{about['questions']['source']}",
        "Tokens": f"{settings['max_new_tokens']} a turn at most",
        "Sampling": "greedy" if settings["temperature"] == 0 else sampling,
        "Guesses": _guesses(settings["engine"]),
        "Batches": f"of {settings['batch']}",
        "Repeats": str(settings["repeat"]),
        "Started": about["started"],
    }
    if about["model"].get("packing"):  # runs of earlier versions do not say
        given["Packing"] = about["model"]["packing"]
    if run.tables.peak_rss_bytes is not None:
        given["Peak memory"] = f"{run.tables.peak_rss_bytes / 1e9:.2f} GB, of the process"
    return given


def _guesses(engine: Mapping[str, Any]) -> str:
    most = f"{engine['max_draft_nodes']} a step at most"
    return f"{most}, as many as pay" if engine.get("adaptive") else most


def is_whole(run: Run) -> bool:
    """Whether each method has answered, or failed on, each question in each repeat."""
    about = run.description
    num_questions: int = sum(about["questions"]["groups"].values())
    repeats: int = about["settings"]["repeat"]
    return len(run.records) >= num_questions * repeats * len(run.methods)


def table_parts(tables: Tables) -> list[tuple[str, Seq[Figures]]]:
    """The rows of the table: all groups together, then each of them."""
    by_group: dict[str, list[Figures]] = {}
    for figures in tables.groups:
        by_group.setdefault(figures.group or "", []).append(figures)
    if len(by_group) == 1:
        return list(by_group.items())
    return [(ALL_GROUPS, tables.overall), *by_group.items()]


def count(number: int, one: str, many: str | None = None) -> str:
    """`1 group`, `2 groups`; `many` is the plural where it has not just an s more."""
    return f"{number} {one}" if number == 1 else f"{number} {many or one + 's'}"


def number(value: float | None, digits: int = 2) -> str:
    """A figure, or a dash where it is unknown."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def same_text(figures: Figures) -> str:
    """Answers with the very tokens of plain decoding, of those that both gave."""
    if figures.identical is None:
        return UNKNOWN
    return f"{figures.identical} of {figures.identical + len(figures.differences)}"


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("outdraft.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    tools: dict[str, Any] = {"number": number, "same_text": same_text, "count": count}
    environment.filters.update(tools)
    return environment


def _hash(script: str) -> str:
    """By which the page's policy tells its own script from any other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
