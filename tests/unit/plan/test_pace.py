from __future__ import annotations

import math
import random

import pytest

from outdraft.plan.pace import Pace, clip


def paces(ratios: list[float]) -> list[float]:
    """The factor after each ratio."""
    pace = Pace()
    factors = []
    for ratio in ratios:
        pace.observe(ratio)
        factors.append(pace.factor)
    return factors


def test_it_is_one_until_something_was_observed() -> None:
    assert Pace().factor == 1.0


@pytest.mark.parametrize("outlier", [100.0, 1.5, 0.01])
@pytest.mark.parametrize("num_before", [0, 1, 4, 50])
def test_one_odd_step_does_not_move_it(outlier: float, num_before: int) -> None:
    factors = paces([*[1.0] * num_before, outlier, *[1.0] * 20])
    assert all(abs(math.log(factor)) < 0.01 for factor in factors)


def test_odd_steps_in_a_row_do_not_move_it_while_they_are_fewer_than_half() -> None:
    factors = paces([1.0] * 20 + [30.0] * 4 + [1.0] * 20)
    assert max(factors) < 1.03


@pytest.mark.parametrize("change", [2.0, 0.5, 10.0, 1.2])
def test_a_change_is_noticed_within_ten_steps(change: float) -> None:
    factors = paces([1.0] * 100 + [change] * 10)
    assert factors[-1] == pytest.approx(change)


@pytest.mark.parametrize("change", [2.0, 0.5, 1.05])
def test_a_change_is_followed_through_noise(change: float) -> None:
    generator = random.Random(7)
    noisy = [change * math.exp(generator.gauss(0.0, 0.1)) for _ in range(50)]
    factors = paces([1.0] * 100 + noisy)
    assert factors[-1] == pytest.approx(change, rel=0.1)


def test_small_steady_drifts_are_followed_too() -> None:
    assert paces([1.05] * 200)[-1] == pytest.approx(1.05, rel=1e-3)


def test_noise_is_smoothed() -> None:
    generator = random.Random(3)
    factors = paces([math.exp(generator.gauss(0.0, 0.05)) for _ in range(2000)])
    spread = sum(math.log(factor) ** 2 for factor in factors) / len(factors)
    assert math.sqrt(spread) < 0.02


def test_what_the_pace_does_not_explain_is_told() -> None:
    pace = Pace()
    assert pace.observe(1.5) == pytest.approx(math.log(1.5), abs=0.01)
    for _ in range(50):
        unexplained = pace.observe(1.5)
    assert unexplained == pytest.approx(0.0)


def test_clipping_keeps_the_sign() -> None:
    assert [clip(value, 0.5) for value in (-2.0, -0.1, 0.0, 0.5, 3.0)] == [-0.5, -0.1, 0, 0.5, 0.5]
