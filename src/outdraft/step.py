"""One step: draft → plan → verify → commit."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq

from torch import Tensor

from outdraft.commit import commit
from outdraft.interfaces import Drafter, KVCache, TargetModel
from outdraft.logprobs import with_logprobs
from outdraft.plan import Pricing, Unpriced, make_plan
from outdraft.sampling import at_least_fp32, choose, greedy, unless_blocked
from outdraft.sequence import Sequence
from outdraft.trace import OnStep, StepRecord, StepSeconds
from outdraft.types import Commit, DraftTree
from outdraft.verify import verify


def step(
    batch: Seq[Sequence],
    drafter: Drafter,
    target: TargetModel,
    cache: KVCache,
    max_nodes: int,
    *,
    pricing: Pricing | None = None,
    on_step: OnStep | None = None,
    told: list[Commit] | None = None,
) -> list[Commit]:
    """Moves every sequence of the batch on by at least one token.

    Args:
        max_nodes: guesses per sequence at most.
        pricing: decides how many of them are read; without it, all are.
        on_step: is told of the step once it is committed.
        told: gets each commit as soon as it is made, should the step fail after that.
    """
    started_at = time.perf_counter()
    pricing = pricing or Unpriced()
    offer = pricing.ask(drafter, batch, max_nodes)
    drafted_at = time.perf_counter()
    plan = make_plan(
        offer.trees, batch, offer.width, vocab_size=target.vocab_size, device=target.device
    )
    planned_at = time.perf_counter()
    logits = target.forward(plan.rows, cache)
    read_at = time.perf_counter()
    scores = process_rows(logits, plan.trees, batch)
    target_ids = choose_tokens(scores, plan.trees, batch)
    pricing.show(drafter, offer, plan, batch, logits)
    verdicts = with_logprobs(verify(plan, target_ids), logits, scores, batch)
    commits = commit(verdicts, plan, batch, cache, drafter, told=told)
    pricing.learn(offer, plan, batch, commits, time.perf_counter() - drafted_at)
    for sequence in batch:
        sequence.stats.draft_seconds += drafted_at - started_at
        sequence.stats.target_seconds += read_at - planned_at
    if on_step is not None:
        seconds = StepSeconds.up_to_now(started_at, drafted_at, planned_at, read_at)
        row_lens = plan.rows.row_lens
        on_step(
            StepRecord(batch, plan.trees, row_lens, scores, target_ids, verdicts, commits, seconds)
        )
    return commits


def process_rows(logits: Tensor, trees: Seq[DraftTree], batch: Seq[Sequence]) -> Tensor:
    """The logits as the requests' own processors leave them; untouched if no request has any."""
    if not any(sequence.processors for sequence in batch):
        return logits
    scores = at_least_fp32(logits).clone()
    for i, (sequence, tree) in enumerate(zip(batch, trees, strict=True)):
        if sequence.processors:
            rows = slice(0, 1 + len(tree))
            scores[i, rows] = sequence.process(tree, scores[i, rows])
    return scores


def choose_tokens(logits: Tensor, trees: Seq[DraftTree], batch: Seq[Sequence]) -> Tensor:
    """The token the target writes after each row, `[seqs, rows]`, by its processed logits.

    Greedy rows take their likeliest token; sampled rows draw with the noise of their own
    request's seed and the position that follows the row. Where nothing is allowed, there is
    `NO_TOKEN`.
    """
    target_ids = greedy(logits)
    for i, (sequence, tree) in enumerate(zip(batch, trees, strict=True)):
        rows = slice(0, 1 + len(tree))
        if not sequence.settings.is_greedy:
            next_position = sequence.root_position + 1
            positions = [next_position, *(next_position + depth for depth in tree.depths())]
            target_ids[i, rows] = choose(
                logits[i, rows], positions, sequence.settings, sequence.seed
            )
        if sequence.processors:  # without any, every token is allowed
            target_ids[i, rows] = unless_blocked(target_ids[i, rows], logits[i, rows])
    return target_ids
