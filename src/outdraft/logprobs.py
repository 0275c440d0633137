"""How likely the target found the tokens it wrote.

    logits ──log-softmax──▶ logprob                 what the model says
       │
       └─processors─▶ scores ──to_probs, log──▶ processed_logprob    what the token was drawn from

At temperature 0 nothing is drawn; the processed log-probability is then the log-softmax of the
processed logits.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor

from outdraft.sampling import at_least_fp32, to_probs
from outdraft.sequence import Sequence
from outdraft.settings import GenerationSettings
from outdraft.types import TokenLogprob, Verdict


def with_logprobs(
    verdicts: Seq[Verdict], logits: Tensor, scores: Tensor, batch: Seq[Sequence]
) -> list[Verdict]:
    """The verdicts, with log-probabilities for the requests that want them.

    Token `i` of a verdict was written after row `path[i]`.

    Args:
        logits: `[seqs, rows, vocab]`, the target's own.
        scores: the same rows after the processors.
    """
    return [
        replace(verdict, logprobs=_of_verdict(verdict, logits[i], scores[i], sequence.settings))
        if sequence.settings.wants_logprobs
        else verdict
        for i, (verdict, sequence) in enumerate(zip(verdicts, batch, strict=True))
    ]


def token_logprobs(
    logits: Tensor,
    token_ids: Seq[int],
    num_top: int,
    processed: Tensor | None = None,
) -> tuple[TokenLogprob, ...]:
    """Of the token that follows each row of `logits`, `[rows, vocab]`.

    Args:
        num_top: so many of the likeliest tokens are returned with it.
        processed: log-probabilities after processing, where there are any.
    """
    raw = at_least_fp32(logits).log_softmax(dim=-1)
    index = torch.tensor(token_ids, dtype=torch.long, device=raw.device)[:, None]
    top = raw.topk(min(num_top, raw.shape[-1]), dim=-1)
    chosen = raw.gather(-1, index)[:, 0].tolist()
    drawn = [None] * len(token_ids)
    if processed is not None:
        drawn = processed.gather(-1, index)[:, 0].tolist()
    rows = zip(token_ids, chosen, drawn, top.indices.tolist(), top.values.tolist(), strict=True)
    return tuple(
        TokenLogprob(token_id, logprob, after, tuple(zip(ids, values, strict=True)))
        for token_id, logprob, after, ids, values in rows
    )


def _of_verdict(
    verdict: Verdict, logits: Tensor, scores: Tensor, settings: GenerationSettings
) -> tuple[TokenLogprob, ...]:
    rows = list(verdict.path[: len(verdict.token_ids)])
    judged = scores[rows]
    processed = (
        at_least_fp32(judged).log_softmax(dim=-1)
        if settings.is_greedy
        else to_probs(judged, settings).log()
    )
    return token_logprobs(logits[rows], verdict.token_ids, settings.logprobs or 0, processed)
