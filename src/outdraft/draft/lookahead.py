"""Jacobi iteration beside the verification, which fills a pool of n-grams as it goes.

Guesses from: the likeliest token after every row the target read, kept with the tokens before it in
a pool of n-grams of the request, next to those of prompt and output. The likeliest continuations in
the pool are verified; rows that are left are spent on a **trunk**, a chain of guesses for the next
positions. What the target says after each of its rows is the guess for the position behind that
row in the next step: one iteration of Jacobi's method for the equations `token = argmax after what
precedes it`. Such a guess is seldom right where it stands and often a little later, so it is for
the n-grams which they leave in the pool that trunks are read.

    position      n+1  n+2  n+3  n+4  n+5
    pool     ┌──▶  a ─▶ b ─▶ c                 likely enough to be right
    root  ───┤     └──▶ d
    trunk    └──▶  v ─▶ w ─▶ x ─▶ y ─▶ z       said after the rows of the trunk before

Score: length of the longest run of tokens that a guess is known to have followed; 0 in the trunk,
whose first guess gets a little of what its siblings leave. Cost: per step one search for the
likeliest token of each row, where the logits are, one read of the device for the whole batch, and a
few dictionary look-ups for each row; and it fills all rows it may, which is what it lives on.

Source: Lookahead Decoding (Fu et al. 2024). There, n-grams of one length are matched by the root
alone and verified as wholes, and they come from rows that hang on the trunk and hold its last few
iterations. Where rows are as few as here, these are worth more in the trunk, since every row, a
guess of the pool included, gives an n-gram whose last token was said after the others.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch
from torch import Tensor

from outdraft.draft.base import IndexDrafter
from outdraft.draft.best_first import best_first_tree
from outdraft.draft.ngram_pool import BYTES_PER_CONTEXT, MAX_CONTEXT, Context, NgramPool
from outdraft.sampling import greedy
from outdraft.sequence import Sequence
from outdraft.types import Budget, DraftTree

# Rows that the pool leaves to the trunk, and the longest trunk.
_MIN_TRUNK = 5
_MAX_TRUNK = 15
# Of what its siblings leave, what a guess of the trunk gets: the first, and those behind it, of
# which more are right once the first one was.
_FIRST_GUESS = 0.07
_LATER_GUESS = 0.25
_LEAST_ACCEPTANCE = 1e-3
# Rows that may wait to be read from the device, in case nobody asks for guesses.
_MAX_PENDING = 1024

_ROOT = -1


class Window:
    """One request: its n-grams, and what the target last guessed for the positions ahead."""

    def __init__(self) -> None:
        self.pool = NgramPool()
        self.context: Context = ()
        self._token_ids: list[int] = []
        self._guesses: dict[int, int] = {}  # by position
        self._trunk: list[int] = []

    @property
    def num_tokens(self) -> int:
        return len(self._token_ids)

    def extend(self, token_ids: Seq[int]) -> None:
        for token_id in token_ids:
            self.pool.add(self.context, token_id)
            self.context = (*self.context, token_id)[-MAX_CONTEXT:]
        self._token_ids.extend(token_ids)

    def hear(self, heard: _Heard, said: Seq[int]) -> None:
        """Takes in what the target said after each row of a step.

        The trunk is found again by its tokens: a plan may have reordered rows, or left some out.
        """
        tree = heard.tree
        children = {key: i for i, key in enumerate(zip(tree.parents, tree.token_ids, strict=True))}
        contexts = [heard.context]
        for parent, token_id in zip(tree.parents, tree.token_ids, strict=True):
            contexts.append((*contexts[parent + 1], token_id)[-MAX_CONTEXT:])
        # What was said last counts most; likely paths have the first rows.
        for context, token_id in zip(reversed(contexts), reversed(said), strict=True):
            self.pool.add(context, token_id)
        node, guesses = _ROOT, {}
        for position, token_id in enumerate(self._trunk, start=heard.num_tokens + 1):
            if (node, token_id) not in children:
                break
            node = children[node, token_id]
            guesses[position] = said[node + 1]
        if guesses:
            self._guesses = guesses

    def with_trunk(self, tree: DraftTree, max_nodes: int, max_depth: int) -> DraftTree:
        """The tree of the pool, with a trunk in the rows that are left."""
        token_ids, parents = list(tree.token_ids), list(tree.parents)
        acceptance, scores = list(tree.acceptance), list(tree.scores)
        children = {key: i for i, key in enumerate(zip(parents, token_ids, strict=True))}
        left = [1.0] * (max_nodes + 1)  # of the root's probability, then of each node's
        for parent, prob in zip(parents, acceptance, strict=True):
            left[parent + 1] -= prob
        self._trunk = []
        node, context, share = _ROOT, self.context, _FIRST_GUESS
        for position in range(self.num_tokens, self.num_tokens + min(max_depth, _MAX_TRUNK)):
            token_id = self._guess_for(position, context)
            if (node, token_id) not in children:
                if len(token_ids) == max_nodes:
                    break
                children[node, token_id] = len(token_ids)
                token_ids.append(token_id)
                parents.append(node)
                acceptance.append(max(share * left[node + 1], _LEAST_ACCEPTANCE))
                scores.append((0.0,))
                share = _LATER_GUESS
            self._trunk.append(token_id)
            node = children[node, token_id]
            context = (*context, token_id)[-MAX_CONTEXT:]
        return DraftTree(
            tuple(token_ids), tuple(parents), tuple(acceptance), tree.drafter, tuple(scores)
        )

    def _guess_for(self, position: int, context: Context) -> int:
        """The target's guess, else the pool's, else some token of the text, each time another."""
        guess = self._guesses.get(position)
        if guess is None:
            guess = self.pool.likeliest(context)
        if guess is None:
            guess = self._token_ids[(position * 7) % len(self._token_ids)]
        return guess


class _Heard(NamedTuple):
    """A step's rows, and what the target says after each, still on the device.

    Args:
        context, num_tokens: of the text that ends with the root.
        said: `[rows]`.
    """

    window: Window
    context: Context
    num_tokens: int
    tree: DraftTree
    said: Tensor


class Lookahead(IndexDrafter[Window]):
    """The likeliest n-grams of text and Jacobi iterations, and rows for the next iteration."""

    name = "lookahead"
    score_names = ("context length",)
    wants_logits = True

    def __init__(self) -> None:
        super().__init__()
        self._pending: list[_Heard] = []

    def new_index(self) -> Window:
        return Window()

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        self._learn()
        return super().propose(batch, budget)

    def guess(
        self, index: Window, max_nodes: int, max_depth: int, min_path_prob: float = 0.0
    ) -> DraftTree:
        tree = best_first_tree(
            self.name,
            index.context,
            index.pool.guesses,
            max_nodes=max_nodes - min(_MIN_TRUNK, max_nodes // 3),
            max_depth=max_depth,
            min_path_prob=min_path_prob,
        )
        return index.with_trunk(tree, max_nodes, max_depth)

    def observe_logits(self, sequence: Sequence, tree: DraftTree, logits: Tensor) -> None:
        window = self._up_to_date(sequence)
        heard = _Heard(window, window.context, window.num_tokens, tree, greedy(logits))
        self._pending.append(heard)
        if sum(len(heard.said) for heard in self._pending) > _MAX_PENDING:
            self._learn()

    def finish(self, sequence: Sequence) -> None:
        window, _ = self._indexes.get(sequence.request_id, (None, 0))
        self._pending = [heard for heard in self._pending if heard.window is not window]
        super().finish(sequence)

    @property
    def memory_bytes(self) -> int:
        num_contexts = sum(len(window.pool) for window, _ in self._indexes.values())
        return num_contexts * BYTES_PER_CONTEXT

    def _learn(self) -> None:
        """Reads what was said since the last call, of all requests at once."""
        if not self._pending:
            return
        said = torch.cat([heard.said for heard in self._pending]).tolist()
        first = 0
        for heard in self._pending:
            last = first + len(heard.said)
            heard.window.hear(heard, said[first:last])
            first = last
        self._pending.clear()
