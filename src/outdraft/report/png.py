"""The main chart as a bitmap, for places that take no HTML."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from outdraft.errors import SettingsError
from outdraft.report.charts import SpeedupChart, colours, speedup_chart
from outdraft.report.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _SOFT, _LINE = "#1d2126", "#5a626c", "#e3e0da"
# As in the page's style, where it is light.
_PALETTE = {
    "hf": "#646c76",
    "m0": "#1f6f8b",
    "m1": "#c1542f",
    "m2": "#3d7a3f",
    "m3": "#8252a0",
    "m4": "#a0790c",
    "m5": "#b23a6b",
}


# More bars make no picture for a README: then those of all groups together have to do.
_MAX_ROWS = 48


def draw_png(run: Run, path: Path) -> None:
    """Speed-ups by group as bars, with the spread of the repeats; the format is the file name's.

    Raises:
        SettingsError: matplotlib is not installed, or the run has no plain decoding to compare
            with.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SettingsError(
            f"drawing {path} needs matplotlib; pip install 'outdraft[bench]', or leave --png out"
        ) from error
    chart = speedup_chart(run.tables)
    if chart is None:
        raise SettingsError(
            f"there is no speed-up to draw in {path}: the methods are {', '.join(run.methods)}; "
            "measure beside --baseline plain"
        )
    num_rows = sum(1 + len(bars) for _, bars in chart.groups)
    if num_rows > _MAX_ROWS:
        chart = replace(chart, groups=chart.groups[:1])
        num_rows = 1 + len(chart.groups[0][1])
    figure = Figure(figsize=(8, 0.9 + 0.27 * num_rows), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    _draw_bars(axes, chart, colours(run.methods))
    about = run.description
    axes.set_xlabel(
        f"speed-up over plain decoding\n{about['model']['name']} in {about['model']['dtype']}, "
        f"{about['machine']['device_name']}, threads: {about['machine']['threads']}",
        color=_SOFT,
        fontsize=9,
    )
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be written ({error}); name another file") from error


def _draw_bars(axes: Axes, chart: SpeedupChart, colour_of: dict[str, str]) -> None:
    """One row per bar, under a row with its group's name."""
    labels, row = [], 0
    for group, bars in chart.groups:
        labels.append(group)
        for bar in bars:
            row += 1
            labels.append(bar.method)
            ratio, repeats = bar.speedup.ratio_of_sums, bar.speedup.repeats
            axes.barh(row, ratio, height=0.62, color=_PALETTE[colour_of[bar.method]])
            end = ratio
            if repeats is not None:
                axes.hlines(row, repeats.low, repeats.high, color=_INK, linewidth=1.2)
                end = max(ratio, repeats.high)
            axes.annotate(
                f"{ratio:.2f}",
                (end, row),
                (5, 0),
                textcoords="offset points",
                va="center",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )
        row += 1
    axes.set_yticks(range(len(labels)), labels)
    names = {group for group, _ in chart.groups}
    for text in axes.get_yticklabels():
        text.set_fontweight("bold" if text.get_text() in names else "normal")
    axes.set_ylim(row - 0.4, -0.8)  # the first group on top
    axes.axvline(1.0, color=_INK, linewidth=1, linestyle=(0, (3, 2)))
    axes.grid(axis="x", color=_LINE)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=_INK)
    axes.spines[:].set_visible(False)
