from __future__ import annotations

import pytest

from outdraft.bench.figures import Tables, make_tables
from outdraft.bench.records import Turn
from outdraft.report.charts import (
    FEW_JUDGED,
    colours,
    depth_chart,
    speedup_chart,
    time_shares,
)
from support.benches import make_record, make_turn


def tables(*seconds: tuple[str, float], repeats: int = 1, **changes: object) -> Tables:
    """One question answered by these methods in these times; later repeats take longer."""
    records = [
        make_record("w1", name, make_turn(seconds=time * (1 + 0.1 * i), **changes), repeat=i)
        for i in range(repeats)
        for name, time in seconds
    ]
    return make_tables(records, [name for name, _ in seconds])


def test_baselines_are_grey_and_others_differ() -> None:
    names = ["plain", "hf", "hf-lookup", "a", "b"]
    assert list(colours(names).values()) == ["plain", "hf", "hf", "m0", "m1"]
    assert len(set(colours([str(i) for i in range(6)]).values())) == 6


# --- speed-ups ------------------------------------------------------------------------------------


def test_bars_stand_at_their_figures() -> None:
    chart = speedup_chart(tables(("plain", 3.0), ("a", 2.0), ("b", 6.0)))
    assert chart is not None
    ((group, (a, b)),) = chart.groups
    assert group == "all groups"
    assert (a.method, b.method) == ("a", "b")
    assert a.width / chart.parity == pytest.approx(1.5) == a.speedup.ratio_of_sums
    assert b.width / chart.parity == pytest.approx(0.5)
    assert a.low is a.high is None


@pytest.mark.parametrize("time", [0.01, 0.1, 0.9, 1.0, 1.7, 30.0])
def test_the_axis_has_room_for_all_and_names_its_ticks(time: float) -> None:
    chart = speedup_chart(tables(("plain", 1.0), ("a", time)))
    assert chart is not None
    assert 0 < chart.groups[0][1][0].width <= 100
    assert chart.parity <= 100
    assert 2 <= len(chart.ticks) <= 8
    assert (chart.ticks[0].place, chart.ticks[-1].place) == (0, pytest.approx(100))
    for tick in chart.ticks:
        assert tick.place / chart.parity == pytest.approx(float(tick.label), abs=0.006)


def test_the_spread_of_repeats_stands_around_the_bar() -> None:
    records = [
        make_record("w1", name, make_turn(seconds=time), repeat=i)
        for i, times in enumerate([(2.0, 1.0), (2.0, 2.0)])
        for name, time in zip(("plain", "a"), times, strict=True)
    ]
    chart = speedup_chart(make_tables(records, ["plain", "a"]))
    assert chart is not None
    (bar,) = chart.groups[0][1]
    assert bar.low is not None
    assert bar.high is not None
    assert bar.low / chart.parity == pytest.approx(1.0)
    assert bar.high / chart.parity == pytest.approx(2.0)
    assert bar.low < bar.width < bar.high <= 100


def test_groups_follow_all_of_them() -> None:
    records = [
        make_record(question, method, group=group)
        for question, group in (("w1", "writing"), ("r1", "rag"))
        for method in ("plain", "a")
    ]
    chart = speedup_chart(make_tables(records, ["plain", "a"]))
    assert chart is not None
    assert [name for name, _ in chart.groups] == ["all groups", "writing", "rag"]


def test_without_a_baseline_there_is_no_chart() -> None:
    assert speedup_chart(tables(("a", 1.0))) is None
    assert speedup_chart(tables(("plain", 1.0))) is None


# --- acceptance and time --------------------------------------------------------------------------


def drafting(judged: tuple[int, ...], accepted: tuple[int, ...]) -> Turn:
    return make_turn(judged_by_depth=judged, accepted_by_depth=accepted)


def test_points_stand_at_their_rates() -> None:
    turn = drafting((FEW_JUDGED, 10), (5, 10))
    found = make_tables([make_record("w1", "a", turn), make_record("w1")], ["plain", "a"])
    chart = depth_chart(found)
    assert chart is not None
    ((method, (first, second)),) = chart.lines
    assert method == "a"
    assert (first.rate, second.rate) == (0.25, 1.0) == found.overall[1].acceptance_by_depth
    by_label = {tick.label: tick.place for tick in chart.rates}
    assert (first.y, second.y) == (by_label["0.25"], by_label["1.00"])
    assert [point.x for point in (first, second)] == [tick.place for tick in chart.depths]
    assert (first.is_sparse, second.is_sparse) == (False, True)
    assert by_label["1.00"] < by_label["0.25"]  # upwards


def test_deep_paths_are_cut_at_the_edge_of_the_chart() -> None:
    turn = drafting((30,) * 20, (30,) * 20)
    chart = depth_chart(make_tables([make_record("w1", "a", turn)], ["a"]))
    assert chart is not None
    assert chart.max_depth == len(chart.lines[0][1]) == 12
    assert all(chart.left < point.x < chart.width for point in chart.lines[0][1])


def test_where_nothing_was_judged_there_is_no_chart() -> None:
    assert depth_chart(tables(("plain", 1.0))) is None


def test_shares_of_time_fill_the_bar() -> None:
    (row,) = time_shares(tables(("a", 2.0), draft_seconds=0.5, target_seconds=1.0))
    assert row.parts == {"drafting": (25, 0), "target": (50, 25), "elsewhere": (25, 75)}


def test_methods_with_unknown_times_have_none() -> None:
    assert time_shares(tables(("hf", 2.0), draft_seconds=None)) == ()
