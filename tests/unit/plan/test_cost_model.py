from __future__ import annotations

import json
import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from outdraft.errors import SettingsError
from outdraft.plan.cost_model import CostModel, PassSize

TIMES = st.floats(1e-6, 1e3)
POINTS = st.lists(
    st.tuples(
        st.builds(PassSize, st.integers(1, 4), st.integers(1, 32), st.integers(0, 4096)), TIMES
    ),
    min_size=1,
    max_size=20,
)
SIZES = st.builds(PassSize, st.integers(1, 8), st.integers(1, 64), st.integers(0, 8192))


def one(rows: int, context: int = 0) -> PassSize:
    return PassSize(1, rows, context)


def model(per_position: float = 0.0, per_pair: float = 0.0) -> CostModel:
    """1 to 16 rows: cheap up to 4, then dearer."""
    base = [0.10, 0.10, 0.12, 0.20, 0.40]
    return CostModel([1, 2, 4, 8, 16], base, per_position=per_position, per_pair=per_pair)


def is_monotone(costs: CostModel) -> bool:
    """In rows up to twice those measured, and in the context."""
    by_rows = [costs.seconds(one(rows, 100)) for rows in range(1, 33)]
    by_context = [costs.seconds(one(4, context)) for context in range(0, 2000, 100)]
    # the same sum, added up in another order, may differ in the last bit
    return all(a <= b * (1 + 1e-12) for line in (by_rows, by_context) for a, b in pairwise(line))


# --- the fit --------------------------------------------------------------------------------------


def test_measured_passes_cost_what_they_took() -> None:
    points = [(one(1), 0.1), (one(4), 0.2), (one(16), 0.5)]
    costs = CostModel.fit(points)
    assert [costs.seconds(size) for size, _ in points] == pytest.approx([0.1, 0.2, 0.5])


def test_between_them_costs_are_a_straight_line() -> None:
    costs = CostModel.fit([(one(1), 0.1), (one(5), 0.3)])
    assert [costs.seconds(one(rows)) for rows in (2, 3, 4)] == pytest.approx([0.15, 0.2, 0.25])


def test_behind_the_last_they_go_on_as_steeply_as_they_did() -> None:
    costs = CostModel.fit([(one(1), 0.1), (one(8), 0.1), (one(16), 0.5)])
    assert costs.seconds(one(24)) == pytest.approx(0.9)


def test_behind_a_flat_end_they_still_grow() -> None:
    costs = CostModel.fit([(one(1), 0.1), (one(8), 0.5), (one(15), 0.5)])
    assert costs.seconds(one(29)) == pytest.approx(0.5 + 0.4)


def test_a_single_row_count_says_what_a_row_costs() -> None:
    costs = CostModel.fit([(one(4), 0.2)])
    assert costs.seconds(one(1)) == costs.seconds(one(4)) == pytest.approx(0.2)
    assert costs.seconds(one(8)) == pytest.approx(0.4)


def test_repeats_count_as_their_median() -> None:
    points = [(one(1), seconds) for seconds in (0.1, 9.0, 0.1, 0.11, 0.09)]
    assert CostModel.fit(points).seconds(one(1)) == pytest.approx(0.1)


def test_costs_that_fall_with_rows_are_levelled() -> None:
    costs = CostModel.fit([(one(1), 0.1), (one(2), 0.3), (one(4), 0.2), (one(8), 0.6)])
    found = [costs.seconds(one(rows)) for rows in (1, 2, 4, 8)]
    assert found == pytest.approx([0.1, 0.25, 0.25, 0.6])


def test_rows_of_all_sequences_count() -> None:
    costs = model()
    assert costs.seconds(PassSize(4, 2, 0)) == costs.seconds(one(8))


def test_the_context_is_told_apart_by_positions_and_pairs() -> None:
    def true_seconds(size: PassSize) -> float:
        rows, positions = size.num_seqs * size.num_rows, size.num_seqs * size.context
        return 0.1 + 0.01 * rows + 1e-5 * positions + 2e-6 * rows * size.context

    sizes = [one(rows, context) for rows in (1, 4, 16) for context in (0, 500, 1000)]
    costs = CostModel.fit([(size, true_seconds(size)) for size in sizes])
    for size in (one(1, 4000), one(10, 300), PassSize(3, 4, 700)):
        assert costs.seconds(size) == pytest.approx(true_seconds(size))


def test_a_context_seen_at_one_row_count_is_charged_per_row() -> None:
    costs = CostModel.fit([(one(1, 0), 0.1), (one(1, 1000), 0.2), (one(8, 0), 0.3)])
    assert costs.seconds(one(1, 2000)) == pytest.approx(0.3)
    assert costs.seconds(one(8, 1000)) == pytest.approx(0.3 + 0.8)


def test_a_context_that_makes_nothing_slower_costs_nothing() -> None:
    costs = CostModel.fit([(one(1, 0), 0.2), (one(1, 1000), 0.1)])
    assert costs.seconds(one(1, 5000)) == costs.seconds(one(1, 0))


@given(POINTS)
def test_any_measurements_give_costs_that_never_fall(points: list[tuple[PassSize, float]]) -> None:
    assert is_monotone(CostModel.fit(points))


@given(POINTS, SIZES)
def test_costs_are_times(points: list[tuple[PassSize, float]], size: PassSize) -> None:
    assert 0.0 < CostModel.fit(points).seconds(size) < math.inf


@pytest.mark.parametrize(
    "points",
    [[], [(one(0), 0.1)], [(one(1), 0.0)], [(one(1), -1.0)], [(one(1), math.nan)]],
)
def test_what_was_not_measured_cannot_be_fitted(points: list[tuple[PassSize, float]]) -> None:
    with pytest.raises(SettingsError, match="cannot be fitted"):
        CostModel.fit(points)


@pytest.mark.parametrize(
    ("rows", "base", "rate"),
    [
        ([], [], 0.0),
        ([1, 2], [0.1], 0.0),
        ([2, 2], [0.1, 0.1], 0.0),
        ([0, 2], [0.1, 0.1], 0.0),
        ([1, 2], [0.2, 0.1], 0.0),
        ([1], [0.0], 0.0),
        ([1], [math.inf], 0.0),
        ([1], [0.1], -1e-6),
        ([1], [0.1], math.nan),
    ],
)
def test_numbers_that_are_no_costs_are_refused(
    rows: list[int], base: list[float], rate: float
) -> None:
    with pytest.raises(SettingsError, match="costs need rising rows"):
        CostModel(rows, base, per_position=rate)


# --- real steps -----------------------------------------------------------------------------------


def test_one_slow_step_does_not_move_it() -> None:
    costs = model()
    for _ in range(20):
        costs.observe(one(16), 0.4)
    before = {rows: costs.seconds(one(rows)) for rows in (1, 4, 16)}
    costs.observe(one(16), 40.0)
    after = {rows: costs.seconds(one(rows)) for rows in (1, 4, 16)}
    assert after == pytest.approx(before, rel=0.03)


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_change_of_everything_is_noticed_in_ten_steps_for_all_sizes(factor: float) -> None:
    costs = model(per_position=1e-5)
    for _ in range(100):
        costs.observe(one(16, 200), costs.seconds(one(16, 200)))
    before = {rows: costs.seconds(one(rows, 200)) for rows in range(1, 33)}
    wanted = factor * before[16]
    for _ in range(10):
        costs.observe(one(16, 200), wanted)
    assert costs.pace == pytest.approx(factor, rel=0.1)
    for rows, seconds in before.items():
        assert costs.seconds(one(rows, 200)) == pytest.approx(factor * seconds, rel=0.1)
    for _ in range(40):
        costs.observe(one(16, 200), wanted)
    assert costs.seconds(one(16, 200)) == pytest.approx(wanted, rel=0.02)


def test_plain_costs_stay_fair_while_hardly_any_plain_step_is_run() -> None:
    costs, true = model(), model()
    generator = random.Random(11)
    for step in range(600):
        size = one(1) if step % 60 == 0 else one(generator.choice([8, 12, 16]))
        load = 1.0 if step < 300 else 1.8
        noise = math.exp(generator.gauss(0.0, 0.08)) * (5.0 if step % 37 == 0 else 1.0)
        costs.observe(size, load * noise * true.seconds(size))
    assert costs.seconds(one(1)) == pytest.approx(1.8 * true.seconds(one(1)), rel=0.1)


def test_a_row_count_that_was_measured_wrongly_is_put_right() -> None:
    costs = model()
    for _ in range(60):
        costs.observe(one(1), 0.1)
        costs.observe(one(1), 0.1)
        costs.observe(one(8), 0.3)  # and not 0.2
    assert costs.seconds(one(1)) == pytest.approx(0.1, rel=0.03)
    assert costs.seconds(one(8)) == pytest.approx(0.3, rel=0.05)


def test_a_step_between_two_row_counts_moves_the_nearer_one_more() -> None:
    costs = model()
    for _ in range(40):
        costs.observe(one(1), 0.1)
        costs.observe(one(14), 0.45)  # and not 0.35
    before, after = model().to_json()["base"], costs.to_json()["base"]
    moved = [new / old for old, new in zip(before, after, strict=True)]
    assert moved[4] > moved[3] > 1.01
    assert moved[1:3] == [1.0, 1.0]


def test_what_was_measured_last_wins_where_costs_would_fall() -> None:
    costs = model()
    for step in range(250):
        for _ in range(4):  # so the pace is that of plain steps
            costs.observe(one(1), 0.1)
        costs.observe(one(16), 0.11)
        assert step % 10 != 0 or is_monotone(costs)
    assert costs.seconds(one(16)) == pytest.approx(0.11, rel=0.05)
    assert costs.seconds(one(8)) <= costs.seconds(one(16))


@given(st.lists(st.tuples(SIZES, TIMES), max_size=60))
def test_whatever_steps_take_costs_never_fall(steps: list[tuple[PassSize, float]]) -> None:
    costs = model(per_position=1e-5, per_pair=1e-6)
    for size, seconds in steps:
        costs.observe(size, seconds)
        assert 0.0 < costs.seconds(size) < math.inf
    assert is_monotone(costs)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_none_tells_nothing(seconds: float) -> None:
    costs = model()
    for _ in range(20):
        costs.observe(one(4), seconds)
    assert costs.pace == 1.0
    assert costs.seconds(one(4)) == model().seconds(one(4))


# --- JSON -----------------------------------------------------------------------------------------


def test_costs_come_back_from_json_without_the_pace() -> None:
    costs = model(per_position=1e-5, per_pair=1e-6)
    for _ in range(20):
        costs.observe(one(8, 100), 1.5 * costs.seconds(one(8, 100)))
        costs.observe(one(1, 100), 1.2 * costs.seconds(one(1, 100)))
    again = CostModel.from_json(json.loads(json.dumps(costs.to_json())))
    assert again.pace == 1.0
    assert costs.pace != 1.0
    for size in (one(1), one(6, 3000), PassSize(4, 9, 50)):
        assert again.seconds(size) * costs.pace == pytest.approx(costs.seconds(size))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": None},
        {"rows": [2, 1, 4, 8, 16]},
        {"base": ["fast"]},
        {"base": [0.1]},
        {"per_pair": -1.0},
        {"per_position": math.nan},
    ],
)
def test_other_json_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        CostModel.from_json({**model().to_json(), **change})


def test_json_without_a_number_is_refused() -> None:
    values = model().to_json()
    del values["per_pair"]
    with pytest.raises(SettingsError, match="measure them anew"):
        CostModel.from_json(values)
