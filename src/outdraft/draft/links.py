"""How texts go to a draft model, and its guesses back, where token ids mean the same or do not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq

import torch

from outdraft.draft.guess_tree import ROOT, GuessTree
from outdraft.draft.model_runner import Guesser
from outdraft.draft.race import Runners
from outdraft.draft.token_map import TokenMap
from outdraft.sequence import Sequence
from outdraft.types import DraftTree


class Link(ABC):
    """Carries texts from the target's tokens to the draft model's, and guesses back."""

    @abstractmethod
    def read_ids(self, sequence: Sequence) -> Seq[int]:
        """The text, as the draft model reads it; empty if it cannot."""

    @abstractmethod
    def guesser(self, sequence: Sequence) -> Guesser:
        """What follows each row that the draft model reads behind this text."""

    @abstractmethod
    def to_draft(
        self, sequence: Sequence, tree: GuessTree, max_nodes: int, max_depth: int
    ) -> DraftTree:
        """The best guesses, as tokens of the target."""

    def forget(self, request_id: int) -> None:
        """Frees what is kept for a request."""
        del request_id


class SameTokens(Link):
    """For models that share a tokenizer: a draft model reads the target's own ids.

    Args:
        stand_in: read in place of tokens that the draft model does not have.
        device: of the draft model.
    """

    def __init__(
        self, drafter: str, tokens: TokenMap, *, stand_in: int = 0, device: torch.device
    ) -> None:
        self._drafter = drafter
        self._to_draft = [stand_in] * tokens.target_rows
        for draft_id, target_id in enumerate(tokens.to_target):
            if target_id >= 0:
                self._to_draft[target_id] = draft_id
        self._to_target = tokens.to_target
        self._runners = Runners(tokens, device)

    def read_ids(self, sequence: Sequence) -> Seq[int]:
        return [self._to_draft[token_id] for token_id in sequence.ids]

    def guesser(self, sequence: Sequence) -> Guesser:
        return lambda logits, depths: self._runners.race(sequence, logits, depths)

    def to_draft(
        self, sequence: Sequence, tree: GuessTree, max_nodes: int, max_depth: int
    ) -> DraftTree:
        del sequence, max_depth
        return to_draft_tree(self._drafter, tree, max_nodes, self._to_target)


def to_draft_tree(drafter: str, tree: GuessTree, max_nodes: int, to_target: Seq[int]) -> DraftTree:
    """The likeliest guesses, each as the one token of the target that it stands for."""
    nodes = tree.best(max_nodes)
    place = {node: i for i, node in enumerate(nodes)} | {ROOT: ROOT}
    guesses = [tree.guesses[node] for node in nodes]
    return DraftTree(
        token_ids=tuple(to_target[guess.token_id] for guess in guesses),
        parents=tuple(place[tree.parents[node]] for node in nodes),
        acceptance=tuple(guess.acceptance for guess in guesses),
        drafter=drafter,
        scores=tuple((tree.guesses[node].prob, float(tree.depths[node])) for node in nodes),
    )
