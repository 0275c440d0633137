from __future__ import annotations

import pytest

from outdraft.plan.cost_model import CostModel, PassSize
from outdraft.plan.plain_check import PlainCheck

PLAIN, WIDE = PassSize(1, 1, 9), PassSize(1, 4, 9)


def measured() -> CostModel:
    return CostModel([1, 4, 8], [1.0, 1.2, 1.5])


def run(
    check: PlainCheck, costs: CostModel, seconds: float, size: PassSize = WIDE, most: int = 100
) -> int:
    """Steps of one size until a check is wanted, so many at most."""
    for step in range(most):
        if check.is_running:
            return step
        check.observe(costs, size, seconds)
    return most


def test_as_long_as_all_goes_as_expected_nothing_is_checked() -> None:
    assert run(PlainCheck(), measured(), 1.2) == 100
    assert run(PlainCheck(), measured(), 1.3) == 100


def test_dear_rows_are_told_from_a_slow_machine() -> None:
    costs, check = measured(), PlainCheck()
    assert run(check, costs, 2.4) < 10
    assert costs.seconds(PLAIN) == pytest.approx(2.0, rel=0.1)  # as far as anybody knows
    for _ in range(3):
        assert check.is_running
        check.observe(costs, PLAIN, 1.0)
    assert not check.is_running
    assert costs.seconds(PLAIN) == pytest.approx(1.0)
    assert costs.seconds(WIDE) == pytest.approx(2.4, rel=0.2)


def test_checks_are_rare() -> None:
    costs, check = measured(), PlainCheck()
    run(check, costs, 2.4)
    for _ in range(3):
        check.observe(costs, PLAIN, 2.0)
    assert run(check, costs, 6.0, most=200) == 128


def test_checks_that_find_nothing_become_rarer_and_one_that_does_makes_them_frequent() -> None:
    costs, check = measured(), PlainCheck()
    gaps = []
    for i in range(7):
        factor = 1.0 if i % 2 else 1.6  # of the whole machine, so that a check finds nothing
        gaps.append(run(check, costs, 1.2 * factor, most=2000))
        for _ in range(3):
            check.observe(costs, PLAIN, factor)
    assert gaps[0] < 10
    assert gaps[1:] == [128, 256, 512, 1024, 1024, 1024]
    assert run(check, costs, 1.2 * 4.0, most=2000) == 1024
    for _ in range(3):
        check.observe(costs, PLAIN, 1.6)  # the rows alone became dear
    assert run(check, costs, 1.2) == 64


def test_where_plain_passes_are_run_anyway_none_is_needed() -> None:
    costs, check = measured(), PlainCheck()
    assert run(check, costs, 2.0, PLAIN) == 100
    assert run(check, costs, 2.4) == 100


@pytest.mark.parametrize("num_rows", [1, 2, 4, 6, 8, 20])
@pytest.mark.parametrize("factor", [0.3, 0.9, 3.0])
def test_a_size_costs_what_it_is_rebased_to(num_rows: int, factor: float) -> None:
    costs, size = CostModel([1, 4, 8], [1.0, 1.2, 1.5], per_pair=1e-3), PassSize(1, num_rows, 9)
    for _ in range(9):
        costs.observe(WIDE, 2.4)
    wanted = factor * costs.seconds(size)
    costs.rebase(size, wanted)
    if num_rows != 20:  # behind the last row count it is a matter of slope
        assert costs.seconds(size) == pytest.approx(wanted, rel=0.02)
    costs._check()


def test_no_time_rebases_nothing() -> None:
    costs = measured()
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        costs.rebase(PLAIN, seconds)
    assert costs.to_json() == measured().to_json()
