"""What drafting did for one answer, as tables: `outdraft generate --explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from outdraft.stats import DrafterStats, Stats


def show(console: Console, stats: Stats) -> None:
    """One table per answer, one row per drafter, and what they come to."""
    for name, value in _facts(stats):
        console.print(f"{name:<22}{value}", markup=False)
    if not any(record.asked for record in stats.drafters.values()):
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("drafter")
    for column in ("asked", "guessed", "accepted", "of judged", "ms each", "memory"):
        table.add_column(column, justify="right")
    table.add_column("")
    for name, record in stats.drafters.items():
        table.add_row(name, *_cells(record), _reason(record, stats.steps))
    console.print()
    console.print(table)


def _facts(stats: Stats) -> list[tuple[str, str]]:
    steps = max(1, stats.steps)
    facts = [
        ("tokens per step", f"{stats.tokens_per_step:.2f}"),
        ("rows per step", f"{stats.rows_per_step:.1f}"),
        ("plain steps", f"{stats.plain_steps} of {stats.steps} ({stats.plain_share:.0%})"),
        ("planned for", f"{stats.expected_tokens / steps:.2f} tokens per step"),
    ]
    if stats.estimated_speedup is not None:
        facts.append(("estimated speed-up", f"{stats.estimated_speedup:.2f} over plain decoding"))
    return facts


def _cells(record: DrafterStats) -> list[str]:
    share = f"{record.accepted / record.judged:.0%}" if record.judged else "–"
    each = f"{record.seconds * 1e3 / record.asked:.2f}" if record.asked else "–"
    memory = f"{record.memory_bytes / 2**20:.1f} MB"
    return [str(record.asked), str(record.drafted), str(record.accepted), share, each, memory]


def _reason(record: DrafterStats, steps: int) -> str:
    if record.asked == 0:
        return "never asked"
    if record.drafted == 0:
        return "had nothing to say that was worth its rows"
    if record.asked < steps:
        return f"left out of {steps - record.asked} steps: its guesses did not pay for its time"
    return ""
