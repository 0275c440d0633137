"""Draws the pictures of docs/benchmarks.md from the figures that are kept beside this file.

python draw.py              temperature.json and context.json to PNG files
python draw.py keep DIR     takes the figures from the bench folders in DIR
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
AXES = {
    "temperature": "temperature",
    "context": "tokens of the text that the question is about",
}
KEPT = ("tokens", "tokens_per_step", "rows_per_step", "tokens_per_second", "speedup", "identical")
COLOURS = ("#1f6f8b", "#c1542f")
INK, SOFT, LINE = "#1d2126", "#5a626c", "#e3e0da"


def keep(folder: Path) -> None:
    """Of each folder NAME-VALUE, the figures of all questions, and what they were measured on."""
    for name in AXES:
        points = []
        for path in folder.glob(f"{name}-*/figures.json"):
            value = float(path.parent.name.removeprefix(f"{name}-"))
            whole = json.loads(path.read_text(encoding="utf-8"))
            methods = {
                figure["method"]: {kept: figure[kept] for kept in KEPT}
                for figure in whole["figures"]["overall"]
            }
            points.append({name: value, "methods": methods})
        run = whole["run"]
        about = {part: run[part] for part in ("machine", "versions", "model")}
        about["max_new_tokens"] = run["settings"]["max_new_tokens"]
        record = {**about, "points": sorted(points, key=lambda point: point[name])}
        (HERE / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def draw(name: str) -> None:
    """Speed-up and tokens per step of `auto`, with plain decoding's as a line at 1."""
    from matplotlib.figure import Figure

    record: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    values = [point[name] for point in record["points"]]
    auto = [point["methods"]["auto"] for point in record["points"]]
    lines = {
        "speed-up over plain decoding": [each["speedup"]["ratio_of_sums"] for each in auto],
        "tokens per target pass": [each["tokens_per_step"] for each in auto],
    }
    figure = Figure(figsize=(7, 3.6), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for (label, heights), colour, marker in zip(lines.items(), COLOURS, "os", strict=True):
        axes.plot(values, heights, color=colour, marker=marker, label=label)
        for value, height in zip(values, heights, strict=True):
            axes.annotate(
                f"{height:.2f}",
                (value, height),
                (0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=colour,
            )
    if name == "context":
        axes.set_xscale("log", base=2)
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()
    else:
        axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.axhline(1.0, color=INK, linewidth=1, linestyle=(0, (3, 2)))
    axes.set_ylim(bottom=0.8)
    model, machine = record["model"], record["machine"]
    axes.set_xlabel(
        f"{AXES[name]}\n{model['name']} in {model['dtype']}, {machine['device_name']}, "
        f"{machine['threads']} threads; {record['max_new_tokens']} tokens at most",
        color=SOFT,
        fontsize=9,
    )
    axes.legend(frameon=False, fontsize=9)
    axes.grid(color=LINE)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)
    figure.savefig(HERE / f"{name}.png")


if __name__ == "__main__":
    if sys.argv[1:2] == ["keep"]:
        keep(Path(sys.argv[2]))
    for name in AXES:
        draw(name)
