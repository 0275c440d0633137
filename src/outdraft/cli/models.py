"""`outdraft models`: what can be named after --model without a download, or with one."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from outdraft.cli import common

EXAMPLES = common.examples(
    "outdraft models",
    'outdraft generate "Why is the sky blue?" --model smollm2-135m',
    "OUTDRAFT_HOME=/data/outdraft outdraft models",
)


def models() -> None:
    """List the models that have a short name here, and those in the caches.

    Aliases are fetched on first use and kept in OUTDRAFT_HOME, else in your cache folder. Any other
    causal language model of the hub, a local folder or a .gguf file works too.
    """
    from outdraft.models.bundled import cache_home, list_models

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("model", style="bold", overflow="fold")
    table.add_column("on disk", justify="right", no_wrap=True)
    table.add_column("what")
    for entry in list_models():
        size = human_size(entry.num_bytes) if entry.is_here else "not yet"
        table.add_row(escape(entry.name), size, escape(entry.description))
    console = common.out_console()
    console.print(table)
    console.print(f"\naliases are kept in {escape(str(cache_home()))}", style="dim", soft_wrap=True)


def human_size(num_bytes: int) -> str:
    """Bytes as MB or GB, three digits."""
    if num_bytes < 999.5e6:
        return f"{num_bytes / 1e6:.0f} MB"
    return f"{num_bytes / 1e9:.3g} GB"
