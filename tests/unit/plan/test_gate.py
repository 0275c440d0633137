from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from outdraft.plan.gate import Gate

PAYS, LOSES = (1.0, 0.1), (0.1, 1.0)  # gain and seconds


def asked_at(gate: Gate, num_steps: int, gain: float = 0.0, seconds: float = 1.0) -> list[int]:
    """The steps in which it asks; every proposal has that gain and takes those seconds."""
    asked = []
    for step in range(num_steps):
        if gate.wants():
            asked.append(step)
            gate.observe(gain, seconds)
    return asked


def ask(gate: Gate, gain: float, seconds: float) -> None:
    """Waits until it asks and lets it see such a proposal."""
    while not gate.wants():
        pass
    gate.observe(gain, seconds)


def closed(num_misses: int = 5) -> Gate:
    """One that leaves steps out."""
    gate = Gate()
    for _ in range(num_misses):
        ask(gate, *LOSES)
    return gate


def test_a_new_gate_is_open() -> None:
    assert Gate().is_open
    assert Gate().wants()


def test_what_pays_is_asked_in_every_step() -> None:
    assert asked_at(Gate(), 100, *PAYS) == list(range(100))


def test_what_just_pays_for_itself_pays() -> None:
    assert asked_at(Gate(), 100, 0.5, 0.5) == list(range(100))


def test_what_costs_nothing_and_brings_nothing_does_not_pay() -> None:
    assert len(asked_at(Gate(), 100, 0.0, 0.0)) < 15


def test_after_three_misses_gaps_double_up_to_sixteen_steps() -> None:
    asked = asked_at(Gate(), 110, *LOSES)
    assert asked == [0, 1, 2, 4, 7, 12, 21, 38, 55, 72, 89, 106]


def test_it_stays_open_as_long_as_it_is_patient() -> None:
    for num_misses, is_open in [(1, True), (2, True), (3, False), (4, False)]:
        assert closed(num_misses).is_open == is_open


def test_a_step_without_an_answer_to_learn_from_counts_as_a_step() -> None:
    gate = closed(num_misses=5)  # four steps are left out
    assert [gate.wants() for _ in range(6)] == [False, False, False, False, True, True]


def test_one_proposal_that_pays_opens_it_for_every_step() -> None:
    gate = closed()
    ask(gate, 100.0, 1.0)
    assert gate.is_open
    assert asked_at(gate, 20, *PAYS) == list(range(20))


def test_after_it_opened_it_takes_three_misses_again() -> None:
    gate = closed()
    ask(gate, 100.0, 1.0)
    assert asked_at(gate, 10, 0.0, 100.0) == [0, 1, 2, 4, 7]


def test_it_is_the_average_that_has_to_pay() -> None:
    """One of three times its time, after ten of next to nothing, does not make up for them."""
    gate = closed(num_misses=10)
    ask(gate, 3.0, 1.0)
    assert not gate.is_open
    for _ in range(3):
        ask(gate, 3.0, 1.0)
    assert gate.is_open


def test_a_slow_proposal_among_good_ones_does_not_close_it() -> None:
    gate = Gate()
    for seconds in [*[0.5] * 20, 2.0, 0.5, 0.5]:
        ask(gate, 1.0, seconds)
        assert gate.is_open


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=60))
def test_no_gap_is_longer_than_sixteen_steps(proposals: list[tuple[float, float]]) -> None:
    gate, gap = Gate(), 0
    for gain, seconds in proposals:
        while not gate.wants():
            gap += 1
            assert gap <= 16
        gap = 0
        gate.observe(gain, seconds)


# --- where it is asked sooner, and later ----------------------------------------------------------


def waiting(num_misses: int = 7, seconds: float = 1.0, plain_seconds: float = 1e9) -> Gate:
    """One that has just missed again."""
    gate = Gate()
    for _ in range(num_misses):
        while not gate.wants():
            pass
        gate.observe(0.0, seconds, plain_seconds)
    return gate


def test_where_the_text_changes_it_is_asked_soon() -> None:
    gate = waiting()
    assert [gate.wants(is_break=True) for _ in range(3)] == [False, False, True]
    gate = waiting()
    assert [gate.wants(is_break=step == 5) for step in range(6)] == [False] * 5 + [True]


def test_a_dear_one_is_not_asked_at_every_change() -> None:
    """A proposal takes half a step: probes at every change would take a quarter of the time."""
    gate = waiting(20, 0.5, 1.0)
    assert [gate.wants(is_break=True) for _ in range(11)] == [False] * 10 + [True]


def test_gaps_are_as_long_as_a_proposal_is_dear() -> None:
    for seconds, gap in [(0.0, 16), (0.01, 16), (0.5, 25), (4.0, 200), (1e9, 512)]:
        gate = waiting(40, seconds, 1.0)
        assert [gate.wants() for _ in range(gap + 1)] == [False] * gap + [True]


def test_after_a_change_for_the_better_it_is_open_within_a_few_steps() -> None:
    gate = waiting(20, 0.5, 1.0)
    asked = [gate.wants(is_break=step == 12) for step in range(12)]
    assert not any(asked)
    for _ in range(2):
        assert gate.wants(is_break=True)
        gate.observe(0.6, 0.5, 1.0)
    assert gate.is_open
    assert asked_at(gate, 20, 0.6, 0.5) == list(range(20))


def test_one_that_pays_once_and_not_again_waits_again() -> None:
    gate = waiting(20, 0.5, 1.0)
    ask(gate, 0.6, 0.5)
    assert gate.wants()
    gate.observe(0.0, 0.5, 1.0)
    assert not gate.is_open
    assert [gate.wants() for _ in range(26)] == [False] * 25 + [True]


def test_it_is_steady_if_it_asked_in_the_step_before() -> None:
    gate = Gate()
    assert gate.is_new
    assert not gate.is_steady
    gate.observe(0.0, 1.0)
    assert gate.is_steady
    gate = waiting()
    gate.wants()
    assert not gate.is_steady
    assert not gate.is_new


@pytest.mark.parametrize(
    ("seconds", "listens_every"), [(0.001, 4), (0.08, 4), (0.2, 10), (1.0, 50)]
)
def test_left_out_it_listens_as_seldom_as_its_price_demands(
    seconds: float, listens_every: int
) -> None:
    gate = Gate()
    for _ in range(12):
        while not gate.wants():
            pass
        gate.observe(0.0, seconds, plain_seconds=1.0)
    heard = [gate.listens for _ in range(40) if not gate.wants()]
    assert heard == [step % listens_every == 0 for step in range(1, len(heard) + 1)]
    assert len(heard) >= 10
