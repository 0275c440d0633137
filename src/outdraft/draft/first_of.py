"""Several drafters, asked in order: the first that has something to say is taken."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from torch import Tensor

from outdraft.interfaces import Drafter
from outdraft.sequence import Sequence
from outdraft.types import Budget, Commit, DraftTree


class FirstOf(Drafter):
    """Asks the next drafter only for the sequences of which those before it know nothing."""

    def __init__(self, drafters: Seq[Drafter]) -> None:
        self.name = ",".join(drafter.name for drafter in drafters)
        self.wants_logits = any(drafter.wants_logits for drafter in drafters)
        self._drafters = tuple(drafters)

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        trees = [DraftTree(drafter=self.name)] * len(batch)
        open_idx = list(range(len(batch)))
        for drafter in self._drafters:
            if not open_idx:
                break
            depths = tuple(budget.max_depths[i] for i in open_idx)
            asked = [batch[i] for i in open_idx]
            proposed = drafter.propose(asked, Budget(budget.max_nodes, depths))
            for i, tree in zip(open_idx, proposed, strict=True):
                trees[i] = tree
            open_idx = [i for i in open_idx if not trees[i]]
        return trees

    def observe(self, sequence: Sequence, commit: Commit) -> None:
        for drafter in self._drafters:
            drafter.observe(sequence, commit)

    def observe_logits(self, sequence: Sequence, tree: DraftTree, logits: Tensor) -> None:
        for drafter in self._drafters:
            if drafter.wants_logits:
                drafter.observe_logits(sequence, tree, logits)

    def finish(self, sequence: Sequence) -> None:
        for drafter in self._drafters:
            drafter.finish(sequence)

    @property
    def memory_bytes(self) -> int:
        return sum(drafter.memory_bytes for drafter in self._drafters)
