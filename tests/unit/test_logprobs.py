"""Log-probabilities: of the right rows, before and after processing."""

from __future__ import annotations

import math

import pytest
import torch

from outdraft.logprobs import token_logprobs, with_logprobs
from outdraft.sampling import to_probs
from outdraft.types import Verdict
from support.toys import make_sequence

LOGITS = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SCORES = LOGITS.masked_fill(torch.arange(16) == 3, float("-inf"))
#   rows of the path: the root and node 1 (row 2); written behind them: 5 and 7
VERDICT = Verdict((0, 2), (5, 7), "bonus", (1,))


def test_each_token_is_judged_behind_the_row_it_was_written_after() -> None:
    batch = [make_sequence(logprobs=2, temperature=0.7, top_k=4), make_sequence(logprobs=0)]
    sampled, greedy = with_logprobs([VERDICT, VERDICT], LOGITS, SCORES, batch)
    for i, verdict in enumerate([sampled, greedy]):
        for row, token_id, found in zip((0, 2), (5, 7), verdict.logprobs, strict=True):
            raw = LOGITS[i, row].log_softmax(-1)
            assert found.token_id == token_id
            assert found.logprob == pytest.approx(float(raw[token_id]))
    probs = to_probs(SCORES[0, [0, 2]], batch[0].settings)
    drawn = [math.exp(each.processed_logprob or 0) for each in sampled.logprobs]
    assert drawn == pytest.approx([float(probs[0, 5]), float(probs[1, 7])])
    scores = SCORES[1, [0, 2]].log_softmax(-1)
    after = [each.processed_logprob for each in greedy.logprobs]
    assert after == pytest.approx([float(scores[0, 5]), float(scores[1, 7])])
    top = LOGITS[0, 2].log_softmax(-1).topk(2)
    ids, values = zip(*sampled.logprobs[1].top, strict=True)
    assert (ids, values) == (tuple(top.indices.tolist()), pytest.approx(top.values.tolist()))
    assert greedy.logprobs[0].top == ()


def test_who_wants_none_gets_none_and_best_of_wants_some() -> None:
    batch = [make_sequence(), make_sequence(temperature=1.0, best_of=2)]
    verdicts = with_logprobs([VERDICT, VERDICT], LOGITS, SCORES, batch)
    assert verdicts[0] is VERDICT
    assert len(verdicts[1].logprobs) == 2


def test_no_more_tokens_are_listed_than_there_are() -> None:
    (found,) = token_logprobs(LOGITS[0, :1], [5], 99)
    assert len(found.top) == 16
    assert found.processed_logprob is None
    assert token_logprobs(LOGITS[0, :0], [], 3) == ()
