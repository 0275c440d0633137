"""The figures of a run as tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence as Seq
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from outdraft.bench.figures import Figures, Speedup, Spread, Tables

MIN_WIDTH = 120  # columns, where the output is no terminal that has a width of its own
_GAP = 2
_MAX_DEPTHS = 8
_UNKNOWN = "–"
# What a narrow terminal does without, in this order.
_DISPENSABLE = ("expected / measured", "median vs hf", "rows per step", "first token", "median")

Cell = Callable[["Figures"], str]


def figures_tables(tables: Tables, width: int) -> tuple[list[Table], list[str]]:
    """One table per group, then one for all of them; in each, a row per method.

    A column that needs a baseline is there only if the baseline was run.

    Args:
        width: of the terminal.

    Returns:
        The tables, all with the same columns, and the columns there was no room for.
    """
    columns = _columns(tables.overall)
    methods = len(tables.overall)
    parts = [tables.groups[i : i + methods] for i in range(0, len(tables.groups), methods)]
    if len(parts) > 1:
        parts.append(tables.overall)
    everything = [figures for part in parts for figures in part]
    widths = {name: _width(name, cell, everything) for name, cell in columns.items()}
    dropped = []
    for name in _DISPENSABLE:
        if name in widths and sum(widths.values()) + _GAP * (len(widths) - 1) > width:
            del widths[name]
            dropped.append(name)
    shown = []
    for part in parts:
        table = _table(part[0].group or "all groups", has_header=part in (parts[0], parts[-1]))
        for name, column_width in widths.items():
            justify = "left" if name == "method" else "right"
            table.add_column(name, justify=justify, width=column_width)  # type: ignore[arg-type]
        for figures in part:
            table.add_row(*(columns[name](figures) for name in widths))
        shown.append(table)
    return shown, dropped


def acceptance_table(tables: Tables) -> Table | None:
    """Accepted / judged at depth 1, 2, ... over all groups, for methods that drafted."""
    drafting = [figures for figures in tables.overall if figures.judged_by_depth]
    if not drafting:
        return None
    depths = min(_MAX_DEPTHS, max(len(figures.judged_by_depth) for figures in drafting))
    table = _table("accepted / judged, by depth")
    table.add_column("method")
    for depth in range(1, depths + 1):
        table.add_column(str(depth), justify="right")
    for figures in drafting:
        shown = [f"{rate:.2f}" for rate in figures.acceptance_by_depth[:depths]]
        table.add_row(figures.method, *shown)
    return table


def notes(tables: Tables, run: Mapping[str, Any], dropped: Seq[str]) -> list[str]:
    """What the figures were measured on and against, one sentence a line."""
    machine, versions, model = run["machine"], run["versions"], run["model"]
    settings = run["settings"]
    methods = [figures.method for figures in tables.overall]
    where = (
        f"{machine['device_name']}, {_count(machine['threads'], 'thread')}, {model['name']} in "
        f"{model['dtype']}, torch {versions['torch']}, transformers {versions['transformers']}"
    )
    how = (
        f"temperature {settings['temperature']:g}, {_count(settings['max_new_tokens'], 'token')} "
        f"a turn at most, batches of {settings['batch']}, {_count(settings['repeat'], 'repeat')}"
    )
    lines = [where, how]
    if "plain" in methods:
        lines.append(
            "speed-up: wall time of plain decoding / wall time, same engine, same session, same "
            "questions, after a warm-up; of the sums over all questions, and the median question"
        )
    if "hf" in methods:
        lines.append("vs hf: the same against generate of transformers, on the same model")
    if any(f.expected_over_measured is not None for f in tables.overall):
        lines.append(
            "expected / measured: tokens that the plans of all steps expected / tokens that came"
        )
    if tables.peak_rss_bytes is not None:
        lines.append(f"peak memory of the process: {tables.peak_rss_bytes / 1e9:.2f} GB")
    if dropped:
        lines.append(f"no room for: {', '.join(dropped)}; figures.json has everything")
    return lines


def _columns(overall: Seq[Figures]) -> dict[str, Cell]:
    methods = {figures.method for figures in overall}
    columns: dict[str, Cell] = {
        "method": lambda f: f.method,
        "tokens/s": lambda f: _number(f.tokens_per_second, ".1f", f.tokens_per_second_repeats),
        "tokens per step": lambda f: _number(f.tokens_per_step, ".2f"),
    }
    if "plain" in methods:
        columns["speed-up"] = lambda f: _ratio_of_sums(f.speedup)
        columns["median"] = lambda f: _median_of_ratios(f.speedup)
    if "hf" in methods:
        columns["vs hf"] = lambda f: _ratio_of_sums(f.speedup_vs_hf)
        columns["median vs hf"] = lambda f: _median_of_ratios(f.speedup_vs_hf)
    columns["first token"] = lambda f: _milliseconds(f.first_token_seconds)
    columns["rows per step"] = lambda f: _number(f.rows_per_step, ".1f")
    if any(figures.expected_over_measured is not None for figures in overall):
        columns["expected / measured"] = lambda f: _number(f.expected_over_measured, ".2f")
    columns["% draft, target, rest"] = _shares
    if "plain" in methods:
        columns["same text"] = _same_text
    if any(figures.failed for figures in overall):
        columns["failed"] = lambda f: str(f.failed)
    return columns


def _table(title: str, *, has_header: bool = True) -> Table:
    return Table(
        title=title,
        show_header=has_header,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
        pad_edge=False,
        padding=(0, _GAP, 0, 0),
    )


def _width(name: str, cell: Cell, everything: Seq[Figures]) -> int:
    """Room for every cell; a heading may take several lines."""
    words = max(len(word) for word in name.split())
    return max(words, *(len(cell(figures)) for figures in everything))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _number(value: float | None, form: str, spread: Spread | None = None) -> str:
    if value is None:
        return _UNKNOWN
    if spread is None:
        return f"{value:{form}}"
    return f"{value:{form}} ({spread.low:{form}}-{spread.high:{form}})"


def _ratio_of_sums(speedup: Speedup | None) -> str:
    return _UNKNOWN if speedup is None else _number(speedup.ratio_of_sums, ".2f", speedup.repeats)


def _median_of_ratios(speedup: Speedup | None) -> str:
    return _UNKNOWN if speedup is None else f"{speedup.median_of_ratios:.2f}"


def _milliseconds(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else f"{seconds * 1e3:.0f} ms"


def _shares(figures: Figures) -> str:
    shares = (figures.draft_share, figures.target_share, figures.elsewhere_share)
    return " ".join(_UNKNOWN if share is None else f"{100 * share:.0f}" for share in shares)


def _same_text(figures: Figures) -> str:
    if figures.identical is None:
        return _UNKNOWN
    return f"{figures.identical}/{figures.identical + len(figures.differences)}"
