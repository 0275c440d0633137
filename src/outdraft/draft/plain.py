"""No drafting: every step reads the roots alone, which is plain decoding."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from outdraft.interfaces import Drafter
from outdraft.sequence import Sequence
from outdraft.types import Budget, DraftTree


class NoDrafter(Drafter):
    """Guesses nothing."""

    name = "none"
    is_plain = True

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        del budget
        return [DraftTree()] * len(batch)
