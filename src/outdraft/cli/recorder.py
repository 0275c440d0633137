"""Watching a drafter at work, without the engine knowing."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from torch import Tensor

from outdraft.cli.figure import RecordedStep
from outdraft.interfaces import Drafter
from outdraft.sequence import Sequence
from outdraft.types import Budget, Commit, DraftTree


class Recorder(Drafter):
    """Passes everything on to a drafter, and keeps what each step guessed and committed.

    Attributes:
        steps: in order; the token that the prompt's own pass gives is no step.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.name
        self.score_names = drafter.score_names
        self.wants_logits = drafter.wants_logits
        self.steps: list[RecordedStep] = []
        self._drafter = drafter
        self._proposed: dict[int, tuple[int, DraftTree]] = {}

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        trees = self._drafter.propose(batch, budget)
        for sequence, tree in zip(batch, trees, strict=True):
            self._proposed[sequence.request_id] = (sequence.root_id, tree)
        return trees

    def observe(self, sequence: Sequence, commit: Commit) -> None:
        self._drafter.observe(sequence, commit)
        if proposed := self._proposed.pop(sequence.request_id, None):
            self.steps.append(RecordedStep(*proposed, commit))

    def observe_logits(self, sequence: Sequence, tree: DraftTree, logits: Tensor) -> None:
        self._drafter.observe_logits(sequence, tree, logits)

    def finish(self, sequence: Sequence) -> None:
        self._drafter.finish(sequence)
        self._proposed.pop(sequence.request_id, None)

    @property
    def memory_bytes(self) -> int:
        return self._drafter.memory_bytes
