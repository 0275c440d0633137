"""The machine changes while a text is written: within fifty steps the plan is the right one again.

By a clock of our own: what a step takes is made up, by its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq

import pytest
import torch

from outdraft.interfaces import Drafter
from outdraft.plan import Priced, make_plan
from outdraft.plan.cost_model import CostModel, PassSize
from outdraft.plan.offer import Offer
from outdraft.sequence import Sequence
from outdraft.types import Budget, Commit, DraftTree, Plan
from support.toys import make_sequence

VOCAB = 16
ROWS = [1, 2, 4, 8, 16]
CHANGE = 60  # the step before which everything is as it was measured

Seconds = Callable[[int], float]
"""Of a pass, by its rows."""


def flat(rows: int) -> float:
    return 1.0 + 0.02 * (rows - 1)


def steep(rows: int) -> float:
    return 1.0 + 1.0 * (rows - 1)


def twice(rows: int) -> float:
    return 2.0 * flat(rows)


class Machine(Priced):
    """Steps take what somebody says.

    Attributes:
        num_rows: of each step.
        told: what a plain pass was thought to take after each step.
    """

    def __init__(self, before: Seconds, after: Seconds) -> None:
        super().__init__(CostModel(ROWS, [before(rows) for rows in ROWS]))
        self._before, self._after = before, after
        self.num_rows: list[int] = []
        self.told: list[float] = []

    def learn(
        self, offer: Offer, plan: Plan, batch: Seq[Sequence], commits: Seq[Commit], seconds: float
    ) -> None:
        seconds_of = self._before if len(self.num_rows) < CHANGE else self._after
        self.num_rows.append(plan.rows.num_rows)
        super().learn(offer, plan, batch, commits, seconds_of(plan.rows.num_rows))
        self.told.append(self.costs.seconds(PassSize(1, 1, 9)))


class Knows(Drafter):
    """Right with its first guesses, in long chains."""

    name = "knows"

    def __init__(self, text: Seq[int], num_right: int) -> None:
        self._text, self._num_right = text, num_right

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        (sequence,) = batch
        at = len(sequence.new_ids)
        guesses = list(self._text[at : at + self._num_right])
        wrong = [(token_id + 1) % VOCAB for token_id in self._text[at:][:1]]
        chain = (guesses + wrong)[: budget.max_depths[0]]
        return [DraftTree.chain(chain, 0.8, self.name)]


TEXT = [(i * i + 3 * i // 7) % VOCAB for i in range(2000)]
NUM_STEPS = CHANGE + 60


def right_path(tree: DraftTree, text: Seq[int]) -> list[int]:
    """The tokens of a tree that the text runs through, and the target's own after them."""
    nodes = dict(zip(zip(tree.parents, tree.token_ids, strict=True), range(len(tree)), strict=True))
    node, length = -1, 0
    while (node, text[length]) in nodes:
        node, length = nodes[node, text[length]], length + 1
    return list(text[: length + 1])


def steps_on(before: Seconds, after: Seconds, num_right: int = 2) -> Machine:
    """Without a target: what it would write is known."""
    machine, drafter = Machine(before, after), Knows(TEXT, num_right)
    sequence = make_sequence((5, 6, 7), eos_ids=[], max_new_tokens=len(TEXT))
    for _ in range(NUM_STEPS):
        offer = machine.ask(drafter, [sequence], 15)
        plan = make_plan(
            offer.trees, [sequence], offer.width, vocab_size=VOCAB, device=torch.device("cpu")
        )
        token_ids = right_path(plan.trees[0], TEXT[len(sequence.new_ids) :])
        for token_id in token_ids:
            sequence.append(token_id)
        commit = Commit(0, tuple(token_ids), ("drafted",) * len(token_ids))
        machine.learn(offer, plan, [sequence], [commit], 0.0)
    return machine


def settled(machine: Machine) -> list[int]:
    """Rows of some steps from the fiftieth after the change on."""
    return machine.num_rows[CHANGE + 50 :]


@pytest.mark.parametrize(("before", "after"), [(flat, twice), (twice, flat)])
def test_another_process_comes_or_goes(before: Seconds, after: Seconds) -> None:
    machine = steps_on(before, after)
    assert machine.told[CHANGE - 1] == pytest.approx(before(1), rel=0.05)
    assert machine.told[CHANGE + 50] == pytest.approx(after(1), rel=0.1)
    assert set(settled(machine)) == set(machine.num_rows[CHANGE - 10 : CHANGE])


@pytest.mark.parametrize("num_right", [1, 2])
def test_rows_suddenly_dear_are_not_read_any_more(num_right: int) -> None:
    """Though every step before read as many, so that a slower machine would look the same."""
    machine = steps_on(flat, steep, num_right)
    assert min(machine.num_rows[CHANGE - 10 : CHANGE]) >= 2
    assert machine.told[-1] == pytest.approx(1.0, rel=0.1)
    plain = [rows == 1 for rows in settled(machine)]
    assert sum(plain) >= 8
