"""Keeping the steps of an answer, to draw one of them."""

from __future__ import annotations

from outdraft.cli.figure import RecordedStep
from outdraft.trace import StepRecord


class Recorder:
    """An observer of steps that keeps what each guessed and committed.

    Attributes:
        steps: in order; the token that the prompt's own pass gives is no step.
    """

    def __init__(self) -> None:
        self.steps: list[RecordedStep] = []

    def __call__(self, record: StepRecord) -> None:
        for sequence, tree, commit in zip(record.batch, record.trees, record.commits, strict=True):
            if sequence.stats.steps > 0:
                root_id = sequence.ids[-1 - len(commit.token_ids)]
                self.steps.append(RecordedStep(root_id, tree, commit))
