"""Several drafters at work on the same texts; their guesses are merged when the step is planned."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from torch import Tensor

from outdraft.errors import DrafterError
from outdraft.interfaces import Drafter
from outdraft.sequence import Sequence
from outdraft.types import Budget, Commit, DraftTree


class Several(Drafter):
    """Passes on what happens to all of its parts.

    Whoever plans a step asks the parts one by one, so that each one's time and worth are known;
    asked itself, it answers for the first part that knows something.

    Args:
        drafters: with different names.

    Raises:
        DrafterError: two have the same name.
    """

    def __init__(self, drafters: Seq[Drafter]) -> None:
        names = [drafter.name for drafter in drafters]
        if len(set(names)) < len(names):
            raise DrafterError(f"{', '.join(names)}: name each drafter once")
        self.name = ",".join(names)
        self.wants_logits = any(drafter.wants_logits for drafter in drafters)
        self._parts = tuple(drafters)

    @property
    def parts(self) -> tuple[Drafter, ...]:
        return self._parts

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        proposed = [drafter.propose(batch, budget) for drafter in self._parts]
        return [
            next((tree for tree in trees if tree), DraftTree(drafter=self.name))
            for trees in zip(*proposed, strict=True)
        ]

    def observe(self, sequence: Sequence, commit: Commit) -> None:
        for drafter in self._parts:
            drafter.observe(sequence, commit)

    def observe_logits(self, sequence: Sequence, tree: DraftTree, logits: Tensor) -> None:
        for drafter in self._parts:
            if drafter.wants_logits:
                drafter.observe_logits(sequence, tree, logits)

    def finish(self, sequence: Sequence) -> None:
        for drafter in self._parts:
            drafter.finish(sequence)

    @property
    def memory_bytes(self) -> int:
        return sum(drafter.memory_bytes for drafter in self._parts)
