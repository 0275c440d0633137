"""Drafters that pay level by level: bought only while it is worth it. By a clock of our own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence as Seq
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from outdraft.draft.draft_model import DraftModel
from outdraft.draft.plain import NoDrafter
from outdraft.interfaces import Drafter, KVCache
from outdraft.models.table import TableTarget
from outdraft.plan import Priced, Unpriced, pricing as pricing_module
from outdraft.plan.cost_model import CostModel, PassSize
from outdraft.plan.draft_cost import DraftCost
from outdraft.sequence import Sequence
from outdraft.types import Budget, DraftTree, Rows
from support.runs import run
from support.toys import TABLE, make_sequence

TARGET = TableTarget(**TABLE)
PROMPT = (5, 6, 7, 8, 9)
CLEAR = 8.0  # times the table's logits: a model that is sure of all it says


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pricing_module, "time", SimpleNamespace(perf_counter=clock))
    return clock


class SlowTable(TableTarget):
    """A draft model whose passes take their time, and that may be surer than it should be."""

    def __init__(self, clock: Clock, seconds: float, seed: int, sureness: float = CLEAR) -> None:
        super().__init__(**{**TABLE, "seed": seed})
        self.clock, self.seconds, self.sureness = clock, seconds, sureness
        self.num_passes = 0

    def forward(self, rows: Rows, cache: KVCache, **options: Any) -> Tensor:
        self.clock.now += self.seconds
        self.num_passes += 1
        return self.sureness * super().forward(rows, cache, **options)


class Fixed(CostModel):
    """Costs that no step changes; adds up those of the passes that were read."""

    total = 0.0

    def observe(self, size: PassSize, seconds: float) -> None:
        self.total += self.seconds(size)


def endless(length: int = 200) -> Sequence:
    return make_sequence(PROMPT, eos_ids=[], max_new_tokens=length)


def rows_at(price: float) -> Fixed:
    """A plain pass takes a second, and every further row so much more."""
    return Fixed([1, 2], [1.0, 1.0 + price])


@cache
def plain_text() -> tuple[int, ...]:
    plain = endless()
    run(TARGET, NoDrafter(), [plain])
    return tuple(plain.new_ids)


def speed(model: SlowTable, costs: Fixed) -> tuple[float, Sequence]:
    """Over plain decoding, of 200 tokens."""
    sequence = endless()
    before = model.clock.now
    run(TARGET, DraftModel(model, TARGET), [sequence], pricing=Priced(costs))
    assert tuple(sequence.new_ids) == plain_text()
    return 199.0 / (costs.total + model.clock.now - before), sequence


@pytest.mark.parametrize(
    ("seconds", "row_price", "sureness"),
    [(0.05, 0.1, CLEAR), (0.05, 0.5, 1.0), (0.3, 0.0, CLEAR), (0.5, 0.1, 1.0)],
)
def test_a_draft_model_that_knows_nothing_hardly_slows_a_run_down(
    clock: Clock, seconds: float, row_price: float, sureness: float
) -> None:
    model = SlowTable(clock, seconds, seed=1, sureness=sureness)
    gained, sequence = speed(model, rows_at(row_price))
    assert sequence.stats.drafters["model"].asked > 5  # it is not given up
    assert gained > 0.95


@pytest.mark.parametrize(("seconds", "least"), [(0.05, 3.0), (0.5, 1.1)])
def test_one_that_writes_what_the_target_writes_pays(
    clock: Clock, seconds: float, least: float
) -> None:
    model = SlowTable(clock, seconds, seed=TABLE["seed"])
    gained, _ = speed(model, rows_at(0.02))
    assert gained > least


def asked_in_requests(clock: Clock, seed: int, num_requests: int) -> list[int]:
    """Of short requests one after the other, those about which a slow model was asked."""
    model = SlowTable(clock, 2.0, seed=seed)
    drafter, pricing = DraftModel(model, TARGET), Priced(rows_at(0.02))
    asked = []
    for i in range(num_requests):
        sequence = endless(12)
        run(TARGET, drafter, [sequence], pricing=pricing)
        assert tuple(sequence.new_ids) == plain_text()[:12]
        if sequence.stats.drafters["model"].asked:
            asked.append(i)
    return asked


def test_one_that_loses_request_by_request_is_left_out_of_most(clock: Clock) -> None:
    """It reads each prompt before it is found out, which only not asking it at all can save."""
    asked = asked_in_requests(clock, seed=1, num_requests=60)
    assert asked[:3] == [0, 1, 2]
    assert 4 <= len(asked) <= 8
    assert max(b - a for a, b in itertools.pairwise(asked)) > 5


def test_one_that_pays_is_asked_about_every_request(clock: Clock) -> None:
    model = SlowTable(clock, 0.05, seed=TABLE["seed"])
    drafter, pricing = DraftModel(model, TARGET), Priced(rows_at(0.02))
    for _ in range(9):
        sequence = endless(12)
        run(TARGET, drafter, [sequence], pricing=pricing)
        assert sequence.stats.drafters["model"].accepted > 5


def test_no_more_levels_are_bought_than_pay(clock: Clock) -> None:
    """Of a right model: the dearer a level, the fewer."""
    passes = {}
    for seconds in (0.01, 0.4, 3.0):
        model = SlowTable(clock, seconds, seed=TABLE["seed"], sureness=1.0)
        _, sequence = speed(model, rows_at(0.02))
        passes[seconds] = model.num_passes / sequence.stats.drafters["model"].asked
    assert passes[0.01] > 2.0 * passes[0.4]
    assert passes[3.0] < 1.2


class Levels(Drafter):
    """Notes what a level has to bring in, and says that it bought some."""

    name = "levels"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.wanted: list[float] = []

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        self.wanted.append(budget.min_level_tokens)
        self.levels = len(self.wanted) % 3
        self.clock.now += 0.1 + 0.2 * self.levels
        return [DraftTree.chain((1,), 0.9, self.name)] * len(batch)


def test_a_level_has_to_bring_in_what_its_time_is_worth(clock: Clock) -> None:
    """0.2 s for a level and 0.1 s for a row, at a token a second, of a half-trusted drafter."""
    drafter, pricing, sequence = Levels(clock), Priced(rows_at(0.1)), endless(9)
    for _ in range(20):
        pricing._draft_costs.setdefault(drafter.name, DraftCost())
        for levels in range(3):
            pricing._draft_costs[drafter.name].observe(levels, 0.1 + 0.2 * levels)
    pricing.ask(drafter, [sequence], 15)
    assert drafter.wanted == [pytest.approx((0.2 + 0.1) / 0.5, rel=0.05)]
    for _ in range(60):
        pricing.calibrator.observe(DraftTree.chain((1,), 0.9, "levels"), 0.0, (2, 3))
    pricing.ask(drafter, [endless(9)], 15)
    assert drafter.wanted[1] > 10.0 * drafter.wanted[0]


def test_nobody_buys_levels_before_they_were_timed_or_for_a_mere_probe(clock: Clock) -> None:
    drafter, pricing, sequence = Levels(clock), Priced(rows_at(9.0)), endless(60)
    run(TARGET, drafter, [sequence], pricing=pricing)
    assert drafter.wanted[:2] == [math.inf, math.inf]
    assert 0.0 < drafter.wanted[2] < math.inf
    assert set(drafter.wanted[3:]) == {math.inf}
    unpriced = Levels(clock)
    run(TARGET, unpriced, [endless(9)], pricing=Unpriced())
    assert set(unpriced.wanted) == {0.0}
