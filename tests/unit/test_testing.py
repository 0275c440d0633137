from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from outdraft.draft.datastore import DatastoreDrafter
from outdraft.draft.plain import NoDrafter
from outdraft.draft.prompt_lookup import PromptLookup
from outdraft.draft.suffix import Suffix
from outdraft.draft.suffix_memory import SuffixMemory, SuffixWithMemory
from outdraft.errors import DrafterError
from outdraft.interfaces import Drafter
from outdraft.models.table import TableTarget
from outdraft.sequence import Sequence
from outdraft.testing import PROMPTS, drafter_contract
from outdraft.types import Budget, Commit, DraftTree
from support.stores import vocabulary_of, write_datastore

VOCAB = 16


class Copier(Drafter):
    """Guesses the tokens that stood one, two, ... places back; a base for what is done wrong."""

    name = "copier"
    score_names = ("distance",)

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        return [
            self.guess(sequence, min(budget.max_nodes, depth))
            for sequence, depth in zip(batch, budget.max_depths, strict=True)
        ]

    def guess(self, sequence: Sequence, size: int) -> DraftTree:
        copied = sequence.ids[-4:][:size]
        chain = DraftTree.chain(copied, 0.5, self.name)
        return replace(chain, scores=((1.0,),) * len(copied))


# --- those that keep it ---------------------------------------------------------------------------


class Listener(Copier):
    """Remembers the likeliest successor of each token, from all rows."""

    wants_logits = True

    def __init__(self) -> None:
        self.after: dict[int, int] = {}
        self.rows_seen = 0

    def guess(self, sequence: Sequence, size: int) -> DraftTree:
        token_ids = [sequence.root_id]
        while len(token_ids) <= size and token_ids[-1] in self.after:
            token_ids.append(self.after[token_ids[-1]])
        return DraftTree.chain(token_ids[1:], 0.5, self.name)

    def observe_logits(self, sequence: Sequence, tree: DraftTree, logits: Tensor) -> None:
        assert logits.shape == (len(tree) + 1, VOCAB)
        self.rows_seen += len(logits)
        for token_id, row in zip((sequence.root_id, *tree.token_ids), logits, strict=True):
            self.after[token_id] = int(row.argmax())

    @property
    def memory_bytes(self) -> int:
        return 64 * len(self.after)


class TooMany(Copier):
    """Does not keep to the budget, which is allowed: what is over is cut."""

    def guess(self, sequence: Sequence, size: int) -> DraftTree:
        return super().guess(sequence, size + 7)


@pytest.mark.parametrize("make", [Copier, Listener, TooMany, PromptLookup, Suffix])
def test_good_drafters_pass(make: type[Drafter]) -> None:
    drafter_contract(make)


def test_a_datastore_passes(tmp_path: Path) -> None:
    path = tmp_path / "x.datastore"
    write_datastore(path, [[i * j % VOCAB for i in range(30)] for j in range(9)])
    drafter_contract(lambda: DatastoreDrafter(path, vocabulary_of(VOCAB)))


def test_a_memory_passes_within_its_bound() -> None:
    drafter_contract(lambda: SuffixWithMemory(SuffixMemory(400)), max_memory_bytes=10**6)
    with pytest.raises(AssertionError, match="bytes as requests finish; it may hold"):
        drafter_contract(lambda: SuffixWithMemory(SuffixMemory()))


def test_another_target_and_other_prompts() -> None:
    target = TableTarget(vocab_size=40, seed=3)
    drafter_contract(Suffix, target=target, eos_id=7, prompts=[[30, 31, 30, 31]])


def test_the_drafter_hears_of_rows_and_of_expected_texts() -> None:
    made: list[Listener] = []
    expected: list[int] = []

    class Watching(Listener):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def guess(self, sequence: Sequence, size: int) -> DraftTree:
            expected.append(len(sequence.prediction_ids))
            return super().guess(sequence, size)

    drafter_contract(Watching)
    assert any(drafter.rows_seen > 0 for drafter in made)
    assert max(expected) > 10


# --- those that break it --------------------------------------------------------------------------


class Nameless(Copier):
    name = ""


class OneScoreName(Copier):
    score_names = "distance"  # type: ignore[assignment]


class TooFewTrees(Copier):
    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        return super().propose(batch, budget)[:1]


class NoTrees(Copier):
    def guess(self, sequence: Sequence, size: int) -> DraftTree:
        return None  # type: ignore[return-value]


class ForeignTokens(Copier):
    def guess(self, sequence: Sequence, size: int) -> DraftTree:
        return DraftTree.chain([VOCAB][:size], 0.5, self.name)


class UnnamedScores(Copier):
    score_names = ()


class WritesAlong(Copier):
    def guess(self, sequence: Sequence, size: int) -> DraftTree:
        sequence.ids.append(3)
        return DraftTree(drafter=self.name)


class WritesWhenTold(Copier):
    def observe(self, sequence: Sequence, commit: Commit) -> None:
        sequence.ids[0] = 9


class Reseeds(Copier):
    def observe(self, sequence: Sequence, commit: Commit) -> None:
        sequence.seed += 1


class KeepsRequests(Copier):
    def __init__(self) -> None:
        self.kept: list[Sequence] = []

    def observe(self, sequence: Sequence, commit: Commit) -> None:
        self.kept.append(sequence)


class Hoards(Copier):
    def __init__(self) -> None:
        self.kept: dict[int, list[int]] = {}

    def finish(self, sequence: Sequence) -> None:
        self.kept[len(self.kept)] = sequence.ids * 4


class SaysItHoards(Copier):
    num_finished = 0

    def finish(self, sequence: Sequence) -> None:
        self.num_finished += 1

    @property
    def memory_bytes(self) -> int:
        return 1000 * self.num_finished


class ExpectsToBeAsked(Copier):
    """Takes for granted that every request it hears of was proposed for."""

    def __init__(self) -> None:
        self.asked: dict[int, int] = {}

    def guess(self, sequence: Sequence, size: int) -> DraftTree:
        self.asked[sequence.request_id] = len(sequence.ids)
        return super().guess(sequence, size)

    def finish(self, sequence: Sequence) -> None:
        del self.asked[sequence.request_id]


class Crooked(Copier):
    def guess(self, sequence: Sequence, size: int) -> DraftTree:
        return DraftTree((1, 2), (0, 1), (0.5, 0.5), self.name)


class MisreadsBudget(Copier):
    """Pairs the wrong number of depths with sequences when none is asked about."""

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        return super().propose(batch, budget) or [DraftTree()]


@pytest.mark.parametrize(
    ("make", "kind", "reason"),
    [
        (Nameless, AssertionError, "a drafter's name is a string, not ''"),
        (OneScoreName, AssertionError, "score_names is a tuple of strings, not 'distance'"),
        (TooFewTrees, AssertionError, "propose returned 1 trees for [23] sequences"),
        (NoTrees, AssertionError, "propose returned a NoneType; it returns a list of DraftTree"),
        (ForeignTokens, AssertionError, r"guessed \(16,\); the target has the tokens 0 to 15"),
        (UnnamedScores, AssertionError, r"returned scores of length \[1\]; score_names: \(\)"),
        (WritesAlong, AssertionError, "propose changed the tokens of a request"),
        (WritesWhenTold, AssertionError, "observe changed the tokens of a request"),
        (Reseeds, AssertionError, r"changed the text of the prompt \[.*\(temperature 1.0"),
        (KeepsRequests, AssertionError, r"still holds \d+ requests that have finished; drop them"),
        (Hoards, AssertionError, r"holds \d+ then \d+ then \d+ bytes as requests finish"),
        (SaysItHoards, AssertionError, r"holds \d+ then \d+ then \d+ bytes as requests finish"),
        (NoDrafter, AssertionError, "'none' never guessed anything, so nothing was tested"),
        (MisreadsBudget, AssertionError, "propose returned trees for an empty batch"),
        (ExpectsToBeAsked, KeyError, "0"),
        (Crooked, DrafterError, "node 0 has parent 0"),
        (dict, AssertionError, r"{} is no outdraft\.Drafter"),
    ],
)
def test_bad_drafters_are_found_out(make: Any, kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        drafter_contract(make)


def test_a_drafter_that_knows_nothing_can_be_let_through() -> None:
    drafter_contract(NoDrafter, must_guess=False)


def test_a_drafter_may_be_asked_in_some_steps_only() -> None:
    """As in a mixture of drafters: it hears of tokens that it was never asked for."""
    gaps: list[int] = []

    class Gaps(Copier):
        def __init__(self) -> None:
            self.known: dict[int, int] = {}

        def guess(self, sequence: Sequence, size: int) -> DraftTree:
            known = self.known.get(sequence.request_id, len(sequence.ids))
            gaps.append(len(sequence.ids) - known)
            self.known[sequence.request_id] = len(sequence.ids)
            return DraftTree(drafter=self.name)

        def finish(self, sequence: Sequence) -> None:
            self.known.pop(sequence.request_id, None)

    drafter_contract(Gaps, must_guess=False)
    assert max(gaps) >= 3


def test_the_prompts_repeat_themselves() -> None:
    assert any(len(set(prompt)) < len(prompt) for prompt in PROMPTS)
