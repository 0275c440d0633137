"""A tree of what the target itself said may follow, in this and earlier texts.

Guesses from: the likeliest next tokens after every row the target ever judged, rejected guesses
included. They are kept in tables, one for each number of last tokens that make a context, shared
by all requests. A table has a fixed number of slots, and the context seen last takes a slot.

Score: a node's probability is the target's own, averaged over the places where the context was
seen; longer contexts are asked first and leave a share to shorter ones, the smaller the oftener
they were seen. Cost: per step one search for the largest logits of each row, where the logits are,
one read of the device for the whole batch, and a few microseconds for each node. Sources: Token
Recycling (Luo et al. 2024), which keeps one last token, no probabilities and a fixed tree; the
mixture of contexts is that of PPM (Cleary and Witten 1984).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from outdraft.draft.best_first import Guess, best_first_tree
from outdraft.draft.successors import Successors, SuccessorTable, top_tokens
from outdraft.interfaces import Drafter
from outdraft.sequence import Sequence
from outdraft.types import Budget, DraftTree

Context = tuple[int, ...]
"""The last `MAX_CONTEXT` tokens before a guess."""

MAX_CONTEXT = 3
WIDTH = 8
_NUM_SLOTS = 1 << 16
# Rows that may wait to be read from the device, in case nobody asks for guesses.
_MAX_PENDING = 1024
# How sure a context of 1, 2, ... tokens is, seen once, against all that it does not know.
_TRUST = (1.0, 2.0, 4.0)
# A context seen more often than this is not surer.
_MAX_TIMES = 8
# Stands before the text; no token has it.
_NOTHING = -1
# Odd and larger than any vocabulary: keys of two tokens are all different.
_RADIX = 0x9E3779B1F
_MASK64 = (1 << 64) - 1
_FACTORS = tuple(pow(_RADIX, power, 1 << 64) for power in range(MAX_CONTEXT))


class Recycling(Drafter):
    """The likeliest paths through the target's own earlier opinions.

    Args:
        num_slots: contexts of each length that are kept, a power of two.
    """

    name = "recycling"
    score_names = ("context length", "probability", "times the context was seen")
    wants_logits = True

    def __init__(self, num_slots: int = _NUM_SLOTS) -> None:
        self._table = SuccessorTable(MAX_CONTEXT, num_slots, WIDTH)
        self._pending: list[tuple[list[Context], Tensor]] = []

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        self._learn()
        trees = []
        for sequence, max_depth in zip(batch, budget.max_depths, strict=True):
            if budget.max_nodes < 1 or max_depth < 1:
                trees.append(DraftTree(drafter=self.name))
                continue
            tree = best_first_tree(
                self.name,
                context_of(sequence),
                self._guesses,
                max_nodes=budget.max_nodes,
                max_depth=max_depth,
                min_path_prob=budget.min_path_prob,
            )
            trees.append(tree)
        return trees

    def observe_logits(self, sequence: Sequence, tree: DraftTree, logits: Tensor) -> None:
        contexts = [context_of(sequence)]
        for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
            contexts.append((*contexts[parent + 1][1:], token_id))
        self._pending.append((contexts, top_tokens(logits, WIDTH)))
        if sum(len(contexts) for contexts, _ in self._pending) > _MAX_PENDING:
            self._learn()

    @property
    def memory_bytes(self) -> int:
        return self._table.num_bytes

    def _learn(self) -> None:
        """Reads what was said since the last call, of all requests at once."""
        if not self._pending:
            return
        contexts = [context for contexts, _ in self._pending for context in contexts]
        said = torch.cat([said for _, said in self._pending]).numpy(force=True)
        self._pending.clear()
        # Of a context that comes twice the last counts; likely paths have the first rows.
        token_ids, probs = np.split(said[::-1], 2, axis=1)
        self._table.learn(keys_of(contexts[::-1]), token_ids, probs.view(np.float32))

    def _guesses(self, context: Context, min_prob: float) -> Iterator[Guess[Context]]:
        """What followed the longest context, and what followed shorter ones.

        A context of `length` tokens that was seen `times` times has a say of
        `weight / (weight + 1)` with `weight = trust[length] * times`; what is left of the
        probability goes to the next shorter one.
        """
        probs: dict[int, float] = {}
        left = 1.0
        found = self._look_up(context)
        for length, successors in found:
            if left < min_prob:
                break
            weight = _TRUST[length - 1] * min(successors.times, _MAX_TIMES)
            share = left * weight / (weight + 1.0)
            for token_id, prob in zip(successors.token_ids, successors.probs, strict=True):
                if prob > 0.0:
                    probs[token_id] = probs.get(token_id, 0.0) + share * prob
            left -= share
        for token_id, prob in probs.items():
            if prob >= min_prob:
                score = (float(found[0][0]), prob, float(found[0][1].times))
                yield Guess(token_id, min(prob, 1.0), (*context[1:], token_id), score)

    def _look_up(self, context: Context) -> list[tuple[int, Successors]]:
        """What each context length knows, the longest first."""
        found = []
        for length, key in enumerate(key_of(context), start=1):
            successors = self._table.look_up(length - 1, key)
            if successors is None:
                break
            found.append((length, successors))
        return found[::-1]


def context_of(sequence: Sequence) -> Context:
    """The end of a text, filled up in front if it is shorter than that."""
    token_ids = sequence.ids[-MAX_CONTEXT:]
    return (*[_NOTHING] * (MAX_CONTEXT - len(token_ids)), *token_ids)


def key_of(context: Context) -> list[int]:
    """The numbers under which the last token, the last two tokens, ... are kept."""
    keys, key = [], 0
    for factor, token_id in zip(_FACTORS, reversed(context), strict=True):
        key = (key + factor * (token_id + 1)) & _MASK64
        keys.append(key)
    return keys


def keys_of(contexts: Seq[Context]) -> np.ndarray:
    """The same for many contexts at once, `[lengths, contexts]`."""
    columns = np.array(contexts, dtype=np.int64)[:, ::-1].T + 1
    factors = np.array(_FACTORS, dtype=np.uint64)[:, None]
    keys: np.ndarray = np.cumsum(columns.astype(np.uint64) * factors, axis=0, dtype=np.uint64)
    return keys
