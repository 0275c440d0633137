"""From figures to places in pictures: percentages of a width, or points of a view box."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass

from outdraft.bench.figures import DrafterFigures, Figures, Speedup, Tables
from outdraft.bench.methods import HF, PLAIN

ALL_GROUPS = "all groups"
FEW_JUDGED = 20
"""Below so many judged guesses, an acceptance rate says little and is drawn hollow."""

_NUM_COLOURS = 6
_MAX_DEPTHS = 12
_STEPS = (0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)


def colours(methods: Seq[str]) -> dict[str, str]:
    """The style class of each method: baselines are grey, others take colours in turn."""
    guessing = [name for name in methods if not is_baseline(name)]
    return {
        name: ("plain" if name == PLAIN else "hf")
        if is_baseline(name)
        else f"m{guessing.index(name) % _NUM_COLOURS}"
        for name in methods
    }


def is_baseline(name: str) -> bool:
    """Whether others are compared with it."""
    return name == PLAIN or name.startswith(HF)


# --- speed-ups ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """A method's speed-up; `width`, `low` and `high` are percentages of the axis."""

    method: str
    speedup: Speedup
    width: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Tick:
    """A number on an axis, and its place."""

    place: float
    label: str


@dataclass(frozen=True, slots=True)
class SpeedupChart:
    """Speed-ups over plain decoding, by group.

    Args:
        parity: where plain decoding stands: at 1.
    """

    groups: tuple[tuple[str, tuple[Bar, ...]], ...]
    ticks: tuple[Tick, ...]
    parity: float


def speedup_chart(tables: Tables) -> SpeedupChart | None:
    """All groups together first; `None` where there is no plain decoding to compare with."""
    shown = [
        figures
        for figures in (*tables.overall, *_groups(tables))
        if figures.speedup is not None and figures.method != PLAIN
    ]
    if not shown:
        return None
    step, top = _axis(max(_reach(figures.speedup) for figures in shown))
    groups: dict[str, list[Bar]] = {}
    for figures in shown:
        assert figures.speedup is not None  # the others were left out above
        bar = _bar(figures.method, figures.speedup, top)
        groups.setdefault(figures.group or ALL_GROUPS, []).append(bar)
    return SpeedupChart(
        tuple((name, tuple(bars)) for name, bars in groups.items()), _ticks(step, top), 100 / top
    )


def _ticks(step: float, top: float) -> tuple[Tick, ...]:
    digits = 2 if step == 0.25 else 1 if step < 1 else 0
    return tuple(
        Tick(100 * number * step / top, f"{number * step:.{digits}f}")
        for number in range(round(top / step) + 1)
    )


def _groups(tables: Tables) -> Seq[Figures]:
    """Those of each group, unless the only one is all there is."""
    names = {figures.group for figures in tables.groups}
    return tables.groups if len(names) > 1 else ()


def _reach(speedup: Speedup | None) -> float:
    if speedup is None:
        return 0.0
    return max(speedup.ratio_of_sums, speedup.repeats.high if speedup.repeats else 0.0)


def _axis(reach: float) -> tuple[float, float]:
    """Distance of ticks, and the end of an axis that shows `reach` and parity."""
    reach = max(reach, 1.0) * 1.02
    step = next((step for step in _STEPS if reach / step <= 6), math.ceil(reach / 6))
    return step, step * math.ceil(reach / step)


def _bar(method: str, speedup: Speedup, top: float) -> Bar:
    low = high = None
    if speedup.repeats is not None:
        low, high = 100 * speedup.repeats.low / top, 100 * speedup.repeats.high / top
    return Bar(method, speedup, 100 * speedup.ratio_of_sums / top, low, high)


# --- acceptance by depth --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DepthPoint:
    """Accepted / judged at one depth, and its place."""

    depth: int
    x: float
    y: float
    accepted: int
    judged: int
    rate: float

    @property
    def is_sparse(self) -> bool:
        return self.judged < FEW_JUDGED


@dataclass(frozen=True, slots=True)
class DepthChart:
    """One line per method that drafted; places are points of a box of `width` by `height`."""

    width: int
    height: int
    left: int
    bottom: int
    lines: tuple[tuple[str, tuple[DepthPoint, ...]], ...]
    depths: tuple[Tick, ...]
    rates: tuple[Tick, ...]

    @property
    def max_depth(self) -> int:
        return len(self.depths)


def depth_chart(tables: Tables) -> DepthChart | None:
    """Of all groups together; `None` where nothing was judged."""
    drafting = [figures for figures in tables.overall if any(figures.judged_by_depth)]
    if not drafting:
        return None
    width, height, left, right, top, bottom = 360, 220, 34, 12, 10, 186
    num_depths = min(_MAX_DEPTHS, max(len(figures.judged_by_depth) for figures in drafting))
    gap = (width - left - right) / num_depths

    def x(depth: int) -> float:
        return left + gap * (depth - 0.5)

    def y(rate: float) -> float:
        return bottom - rate * (bottom - top)

    lines = []
    for figures in drafting:
        counts = zip(
            figures.accepted_by_depth,
            figures.judged_by_depth,
            figures.acceptance_by_depth,
            strict=True,
        )
        points = [
            DepthPoint(depth, x(depth), y(rate), accepted, judged, rate)
            for depth, (accepted, judged, rate) in enumerate(counts, start=1)
        ]
        lines.append((figures.method, tuple(points[:num_depths])))
    return DepthChart(
        width,
        height,
        left,
        bottom,
        tuple(lines),
        tuple(Tick(x(depth), str(depth)) for depth in range(1, num_depths + 1)),
        tuple(Tick(y(rate), f"{rate:.2f}") for rate in (0.0, 0.25, 0.5, 0.75, 1.0)),
    )


# --- what was expected, and what came -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Promise:
    """Tokens per step that a method's plans expected, and those that came.

    Args:
        width: percentage of the axis that `ratio`, expected / measured, takes.
    """

    method: str
    expected: float
    measured: float
    ratio: float
    width: float


@dataclass(frozen=True, slots=True)
class ReliabilityChart:
    """Expected / measured tokens per step, by group; `parity` is where both are equal."""

    groups: tuple[tuple[str, tuple[Promise, ...]], ...]
    ticks: tuple[Tick, ...]
    parity: float


def reliability_chart(tables: Tables) -> ReliabilityChart | None:
    """All groups together first; `None` where no method that drafts knows what it expected."""
    shown = [
        (figures, figures.expected_over_measured)
        for figures in (*tables.overall, *_groups(tables))
        if figures.expected_over_measured is not None and not is_baseline(figures.method)
    ]
    if not shown:
        return None
    step, top = _axis(max(ratio for _, ratio in shown))
    groups: dict[str, list[Promise]] = {}
    for figures, ratio in shown:
        measured = (figures.tokens - figures.turns) / (figures.passes - figures.turns)
        promise = Promise(figures.method, ratio * measured, measured, ratio, 100 * ratio / top)
        groups.setdefault(figures.group or ALL_GROUPS, []).append(promise)
    return ReliabilityChart(
        tuple((name, tuple(promises)) for name, promises in groups.items()),
        _ticks(step, top),
        100 / top,
    )


def drafter_rows(tables: Tables) -> tuple[tuple[str, tuple[DrafterFigures, ...]], ...]:
    """Each method's drafters, all groups together; baselines have none."""
    return tuple(
        (figures.method, figures.drafters)
        for figures in tables.overall
        if figures.drafters and not is_baseline(figures.method)
    )


# --- where the time went --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shares:
    """A method's time: its parts, each with its share and the place where it begins."""

    method: str
    parts: Mapping[str, tuple[float, float]]


def time_shares(tables: Tables) -> tuple[Shares, ...]:
    """Of methods whose times are all known; those of `--batch` runs and transformers are not."""
    shares = []
    for figures in tables.overall:
        parts = {
            "drafting": figures.draft_share,
            "target": figures.target_share,
            "elsewhere": figures.elsewhere_share,
        }
        placed, place = {}, 0.0
        for name, share in parts.items():
            if share is not None:
                placed[name] = (100 * share, place)
                place += 100 * share
        if len(placed) == len(parts):
            shares.append(Shares(figures.method, placed))
    return tuple(shares)
