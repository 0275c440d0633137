from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, strategies as st

from outdraft.plan.draft_cost import DraftCost


def observed(*proposals: tuple[int, float]) -> DraftCost:
    cost = DraftCost()
    for levels, seconds in proposals:
        cost.observe(levels, seconds)
    return cost


def test_a_drafter_never_asked_costs_nothing_yet() -> None:
    cost = DraftCost()
    assert not cost.is_measured
    assert cost.seconds(8) == cost.per_level == 0.0


def test_a_first_proposal_says_what_it_cost() -> None:
    cost = observed((3, 0.4))
    assert cost.is_measured
    assert cost.seconds(3) == pytest.approx(0.4)
    assert cost.per_level == pytest.approx(0.1)


def test_asking_and_levels_are_told_apart() -> None:
    cost = observed(*[(levels, 0.01 + 0.03 * levels) for levels in (2, 5, 1, 8, 3, 3, 6, 7)])
    assert cost.per_level == pytest.approx(0.03, rel=0.01)
    found = [cost.seconds(levels) for levels in (0, 4, 10)]
    assert found == pytest.approx([0.01, 0.13, 0.31], rel=0.03)


def test_levels_that_cost_nothing_are_free() -> None:
    cost = observed((1, 0.02), (5, 0.02), (9, 0.019), (2, 0.02))
    assert cost.per_level == 0.0
    assert cost.seconds(100) == pytest.approx(0.02, rel=0.05)


def test_asking_alone_is_never_free() -> None:
    cost = observed((1, 0.01), (2, 0.05), (0, 0.01), (4, 0.2))
    assert cost.seconds(0) > 0.0


def test_one_slow_proposal_hardly_counts() -> None:
    usual = [(levels, 0.01 + 0.03 * levels) for levels in (2, 5, 1, 8, 3, 6)] * 8
    for num_later in (0, 16):
        cost = observed(*usual, (4, 9.0), *[(4, 0.13)] * num_later)
        assert [cost.seconds(levels) for levels in (1, 8)] == pytest.approx([0.04, 0.25], rel=0.02)


def test_a_slow_first_proposal_is_soon_forgotten() -> None:
    cost = observed((4, 2.0), *[(levels, 0.02 * levels) for levels in (4, 5, 6, 7, 4, 5, 6, 7)])
    assert cost.seconds(5) == pytest.approx(0.1, rel=0.2)


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_change_of_load_is_noticed_within_ten_proposals(factor: float) -> None:
    generator = random.Random(5)
    cost = DraftCost()
    for step in range(210):
        levels = generator.randint(1, 6)
        seconds = (0.01 + 0.02 * levels) * (factor if step >= 200 else 1.0)
        cost.observe(levels, seconds * math.exp(generator.gauss(0.0, 0.03)))
    assert cost.seconds(4) == pytest.approx(factor * 0.09, rel=0.1)
    assert cost.per_level == pytest.approx(factor * 0.02, rel=0.2)


def test_a_line_that_changed_is_learnt_anew() -> None:
    early = [(levels, 0.01 + 0.02 * levels) for levels in (1, 2, 3, 4)] * 16
    late = [(levels, 0.05 + 0.001 * levels) for levels in (1, 2, 3, 4)] * 32
    cost = observed(*early, *late)
    assert cost.seconds(0) == pytest.approx(0.05, rel=0.1)
    assert cost.per_level == pytest.approx(0.001, rel=0.2)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_none_tells_nothing(seconds: float) -> None:
    assert not observed((3, seconds)).is_measured


@given(st.lists(st.tuples(st.integers(0, 12), st.floats(1e-7, 1e3)), min_size=1, max_size=80))
def test_costs_are_times_that_never_fall_with_levels(proposals: list[tuple[int, float]]) -> None:
    cost = observed(*proposals)
    assert 0.0 < cost.seconds(0) <= cost.seconds(1) <= cost.seconds(20) < math.inf
