from __future__ import annotations

from outdraft.results import Result, best_of
from outdraft.settings import GenerationSettings
from outdraft.stats import Stats
from outdraft.types import TokenLogprob


def answer(seed: int, token_id: int, *logprobs: float) -> Result:
    return Result(
        text="",
        token_ids=(token_id,) * len(logprobs),
        prompt_tokens=1,
        finish_reason="stop",
        seed=seed,
        drafter="none",
        stats=Stats(),
        logprobs=tuple(TokenLogprob(token_id, logprob, None) for logprob in logprobs),
    )


def test_the_best_by_mean_logprob_come_first_and_the_rest_is_left_out() -> None:
    results = [answer(0, 1, -3.0), answer(1, 2, -1.0, -2.0), answer(2, 3, -1.0, -1.0, -1.0)]
    result = best_of(results, GenerationSettings(temperature=1.0, n=2, best_of=3))
    assert [each.seed for each in result.samples] == [2, 1]
    assert (result.seed, result.mean_logprob) == (2, -1.0)
    assert all(each.others == () for each in result.samples)


def test_without_best_of_the_answers_keep_their_order() -> None:
    results = [answer(0, 1, -3.0), answer(1, 2, -1.0)]
    result = best_of(results, GenerationSettings(temperature=1.0, n=2))
    assert [each.seed for each in result.samples] == [0, 1]


def test_rounding_does_not_rank_equal_answers() -> None:
    results = [answer(0, 1, -1.0 - 1e-12), answer(1, 1, -1.0), answer(2, 2, -0.5)]
    result = best_of(results, GenerationSettings(temperature=1.0, n=3, best_of=3))
    assert [each.seed for each in result.samples] == [2, 0, 1]


def test_without_logprobs_there_is_no_mean() -> None:
    assert answer(0, 1).mean_logprob is None
