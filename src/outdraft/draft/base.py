"""What drafters that guess from token ids alone have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as Seq
from typing import Generic, Protocol, TypeVar

from outdraft.interfaces import Drafter
from outdraft.sequence import Sequence
from outdraft.types import Budget, DraftTree


class Index(Protocol):
    """What such a drafter remembers of one request."""

    def extend(self, token_ids: Seq[int]) -> None:
        """Takes in the tokens that follow those already known."""


AnyIndex = TypeVar("AnyIndex", bound=Index)


class IndexDrafter(Drafter, Generic[AnyIndex]):
    """Keeps one index per request over its prompt and output, brought up to date when asked."""

    def __init__(self) -> None:
        self._indexes: dict[int, tuple[AnyIndex, int]] = {}

    @abstractmethod
    def new_index(self) -> AnyIndex:
        """An index of no tokens."""

    @abstractmethod
    def guess(
        self, index: AnyIndex, max_nodes: int, max_depth: int, min_path_prob: float = 0.0
    ) -> DraftTree:
        """What may follow the tokens of the index, within the limits of a `Budget`."""

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        trees = []
        for sequence, max_depth in zip(batch, budget.max_depths, strict=True):
            if budget.max_nodes < 1 or max_depth < 1:
                trees.append(DraftTree(drafter=self.name))
                continue
            index = self._up_to_date(sequence)
            trees.append(self.guess(index, budget.max_nodes, max_depth, budget.min_path_prob))
        return trees

    def finish(self, sequence: Sequence) -> None:
        self._indexes.pop(sequence.request_id, None)

    def _up_to_date(self, sequence: Sequence) -> AnyIndex:
        index, num_known = self._indexes.get(sequence.request_id) or (self.new_index(), 0)
        index.extend(sequence.ids[num_known:])
        self._indexes[sequence.request_id] = (index, len(sequence.ids))
        return index
