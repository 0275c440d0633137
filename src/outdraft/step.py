"""One step: draft → plan → verify → commit."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from outdraft.commit import commit
from outdraft.interfaces import Drafter, KVCache, TargetModel
from outdraft.plan import make_plan
from outdraft.sampling import draw, greedy, keyed_noise, to_probs
from outdraft.sequence import Sequence
from outdraft.types import Budget, Commit, Plan
from outdraft.verify import verify


def step(
    batch: Seq[Sequence], drafter: Drafter, target: TargetModel, cache: KVCache, max_nodes: int
) -> list[Commit]:
    """Moves every sequence of the batch on by at least one token."""
    started_at = time.perf_counter()
    budget = Budget(max_nodes, tuple(sequence.remaining - 1 for sequence in batch))
    drafts = drafter.propose(batch, budget)
    drafted_at = time.perf_counter()
    plan = make_plan(drafts, batch, max_nodes, vocab_size=target.vocab_size, device=target.device)
    planned_at = time.perf_counter()
    logits = target.forward(plan.rows, cache)
    read_at = time.perf_counter()
    target_ids = choose_tokens(logits, plan, batch)
    verdicts = verify(plan, target_ids)
    commits = commit(verdicts, plan, batch, cache, drafter)
    for sequence in batch:
        sequence.stats.draft_seconds += drafted_at - started_at
        sequence.stats.target_seconds += read_at - planned_at
    return commits


def choose_tokens(logits: Tensor, plan: Plan, batch: Seq[Sequence]) -> Tensor:
    """The token the target writes after each row, `[seqs, rows]`.

    Greedy rows take their likeliest token; sampled rows draw with the noise of their own
    request's seed and the position that follows the row.
    """
    target_ids = greedy(logits)
    for i, (sequence, tree) in enumerate(zip(batch, plan.trees, strict=True)):
        if not sequence.settings.is_greedy:
            depths = [0, *tree.depths()]
            target_ids[i, : len(depths)] = draw_tokens(logits[i, : len(depths)], depths, sequence)
    return target_ids


def draw_tokens(logits: Tensor, depths: Seq[int], sequence: Sequence) -> Tensor:
    """One sequence's draws: row `r` stands `depths[r]` behind the root.

    Rows of equal depth compete for the same position, so they share its noise.
    """
    probs = to_probs(logits, sequence.settings)
    first = sequence.root_position + 1
    positions = range(first, first + max(depths) + 1)
    noise = keyed_noise(sequence.seed, positions, probs.shape[-1], probs.device)
    return draw(probs, noise[torch.tensor(depths, device=probs.device)])
