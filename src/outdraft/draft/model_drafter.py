"""What drafters that guess with a language model have in common."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from outdraft.draft.guess_tree import Guess, GuessTree
from outdraft.draft.model_runner import DraftJob, Guesser, ModelRunner
from outdraft.interfaces import Drafter, TargetModel
from outdraft.sampling import keyed_noise, to_probs
from outdraft.sequence import Sequence
from outdraft.settings import GenerationSettings
from outdraft.types import Budget, Commit, DraftTree

# Children that each read guess gets.
_MAX_CHILDREN = 4
# A greedy request takes the likeliest token; how likely, is what the model says at temperature 1.
_AS_IT_IS = GenerationSettings(temperature=1.0)


class ModelDrafter(Drafter):
    """Asks a language model, which draws as the target will: same settings, same noise.

    At temperature 0 a token's acceptance is its probability. Above, all tokens race as the target's
    will, `probs / noise`, and the acceptance of a token is its share of the race: near 1 for a
    clear winner, however unlikely it was to win.
    """

    score_names = ("draft probability", "depth")

    def __init__(self, name: str, model: TargetModel) -> None:
        self.name = name
        self._runner = ModelRunner(model)

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        jobs: dict[int, DraftJob] = {}
        for i, (sequence, max_depth) in enumerate(zip(batch, budget.max_depths, strict=True)):
            job = None
            if budget.max_nodes > 0 and max_depth > 0:
                job = self._job(sequence, budget.max_nodes, max_depth)
            if job is not None:
                jobs[i] = job
        trees = [DraftTree(drafter=self.name)] * len(batch)
        guessed = self._runner.draft(list(jobs.values()))
        for (i, job), tree in zip(jobs.items(), guessed, strict=True):
            trees[i] = self._to_draft(batch[i], tree, job.max_nodes)
        return trees

    def observe(self, sequence: Sequence, commit: Commit) -> None:
        if commit.finish_reason is None:
            self._runner.settle(sequence.request_id, self._read_ids(sequence))

    def finish(self, sequence: Sequence) -> None:
        self._runner.forget(sequence.request_id)

    @property
    def memory_bytes(self) -> int:
        return self._runner.cache_bytes

    def _read_ids(self, sequence: Sequence) -> Seq[int]:
        """The text as the draft model reads it."""
        return sequence.ids

    def _job(self, sequence: Sequence, max_nodes: int, max_depth: int) -> DraftJob | None:
        """What to draft; nothing where the text has outgrown the draft model's context."""
        token_ids = self._read_ids(sequence)
        if len(token_ids) > self._runner.model.max_context:
            self._runner.forget(sequence.request_id)
            return None
        return DraftJob(
            sequence.request_id, token_ids, max_nodes, max_depth, self._guesser(sequence)
        )

    def _guesser(self, sequence: Sequence) -> Guesser:
        def guess(logits: Tensor, depths: Seq[int]) -> list[list[Guess]]:
            positions = [sequence.root_position + depth for depth in depths]
            return race(logits, positions, sequence.settings, sequence.seed)

        return guess

    def _to_draft(self, sequence: Sequence, tree: GuessTree, max_nodes: int) -> DraftTree:
        """The best of what was guessed, in the target's tokens."""
        del sequence
        nodes = tree.best(max_nodes)
        place = {node: i for i, node in enumerate(nodes)}
        guesses = [tree.guesses[node] for node in nodes]
        return DraftTree(
            token_ids=tuple(guess.token_id for guess in guesses),
            parents=tuple(place.get(tree.parents[node], -1) for node in nodes),
            acceptance=tuple(guess.acceptance for guess in guesses),
            drafter=self.name,
            scores=tuple((tree.guesses[node].prob, float(tree.depths[node])) for node in nodes),
        )


def race(
    logits: Tensor, positions: Seq[int], settings: GenerationSettings, seed: int
) -> list[list[Guess]]:
    """What a request with these settings and this seed would most likely draw, row by row.

    Args:
        logits: `[rows, vocab]`.
        positions: of the tokens to be drawn.
    """
    probs = to_probs(logits, _AS_IT_IS if settings.is_greedy else settings)
    shares = probs
    if not settings.is_greedy:
        distinct = sorted(set(positions))
        noise = keyed_noise(seed, distinct, probs.shape[-1], probs.device)
        index = torch.tensor([distinct.index(position) for position in positions])
        shares = probs / noise[index.to(probs.device)]
        shares = shares / shares.sum(dim=-1, keepdim=True)
    best = shares.topk(min(_MAX_CHILDREN, shares.shape[-1]), dim=-1)
    found = zip(
        best.indices.tolist(),
        best.values.tolist(),
        probs.gather(-1, best.indices).tolist(),
        strict=True,
    )
    return [[Guess(*guess) for guess in zip(*row, strict=True)] for row in found]
