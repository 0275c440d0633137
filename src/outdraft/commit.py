"""The only place where the state moves on.

Sequence, cache, statistics and drafter move together, and before anybody sees a token.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from outdraft.interfaces import Drafter, KVCache
from outdraft.sequence import Sequence
from outdraft.types import Commit, Origin, Plan, TokenLogprob, Verdict


def commit(
    verdicts: Seq[Verdict],
    plan: Plan,
    batch: Seq[Sequence],
    cache: KVCache,
    drafter: Drafter,
    *,
    told: list[Commit] | None = None,
) -> list[Commit]:
    """Makes each verdict part of its sequence, token by token, up to the first that ends it.

    rows of the path     root   d1    d2    d3          enter the cache
    tokens committed     d1     d2    d3    own         enter the text; the last one is the
                                                        next root and is not in the cache yet

    Args:
        told: gets each commit too, before the drafter hears of it, so that a drafter that fails
            loses none.
    """
    commits = []
    for seq_idx, (verdict, tree, sequence) in enumerate(
        zip(verdicts, plan.trees, batch, strict=True)
    ):
        sequence.stats.count_step(len(tree), verdict.judged, len(verdict.path) - 1)
        origins: list[Origin] = ["drafted"] * (len(verdict.path) - 1)
        origins.append(verdict.origin)
        done = append_tokens(
            sequence,
            verdict.token_ids,
            origins,
            verdict.logprobs,
            is_blocked=verdict.is_blocked,
        )
        if done.token_ids:
            cache.commit(seq_idx, verdict.path[: len(done.token_ids)])
        commits.append(done)
        if told is not None:
            told.append(done)
        drafter.observe(sequence, done)
    return commits


def append_tokens(
    sequence: Sequence,
    token_ids: Seq[int],
    origins: Seq[Origin],
    logprobs: Seq[TokenLogprob] = (),
    *,
    is_blocked: bool = False,
) -> Commit:
    """Adds tokens one by one through the stop rules; nothing behind the first stop is kept.

    Nothing at all is kept for a request that a processor's error has ended in this step.

    Args:
        logprobs: of the tokens; none where the request does not want them.
        is_blocked: nothing is allowed behind the tokens.
    """
    pieces = []
    for token_id in token_ids:
        if sequence.finish_reason is not None:
            break
        pieces.append(sequence.append(token_id))
    num_kept = len(pieces)
    if is_blocked and sequence.finish_reason is None:
        pieces.append(sequence.block())
    sequence.stats.count_tokens(origins[:num_kept])
    sequence.logprobs += logprobs[:num_kept]
    return Commit(
        request_id=sequence.request_id,
        token_ids=tuple(token_ids[:num_kept]),
        origins=tuple(origins[:num_kept]),
        text="".join(pieces),
        finish_reason=sequence.finish_reason,
        logprobs=tuple(logprobs[:num_kept]),
    )
