"""What a user gets back."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from outdraft.sequence import Sequence
from outdraft.settings import GenerationSettings
from outdraft.stats import Stats
from outdraft.types import FinishReason, Origin, TokenLogprob


@dataclass(frozen=True, slots=True)
class Result:
    """One answer.

    Args:
        text: without end-of-text tokens, up to but not including a stop string.
        token_ids: all new tokens, the one that ended the text included.
        seed: repeats a sampled text, whatever the drafter.
        drafter: name of the method that guessed.
        logprobs: one for each of `token_ids`, if asked for.
        prompt_logprobs: one for each token of the prompt, if asked for; none for the first.
        others: further answers to the same prompt, if asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    finish_reason: FinishReason
    seed: int
    drafter: str
    stats: Stats
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    others: tuple[Result, ...] = ()

    @property
    def samples(self) -> tuple[Result, ...]:
        """All `n` answers, this one first: by their number, or the best first with `best_of`."""
        return (replace(self, others=()), *self.others)

    @property
    def mean_logprob(self) -> float | None:
        """Mean log-probability of the tokens before processing; `None` if not asked for."""
        if not self.logprobs:
            return None
        return sum(each.logprob for each in self.logprobs) / len(self.logprobs)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step added to a streamed answer; the texts of all pieces join to the result's.

    Args:
        text: may be empty while a character or a possible stop string is unfinished.
        token_ids: the tokens committed by the step.
        origins: per token, where it came from.
        logprobs: of the tokens, if asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


def best_of(results: Seq[Result], settings: GenerationSettings) -> Result:
    """The answers to one prompt as one result.

    Equal answers stay in the order of their numbers: rounding does not rank them.
    """
    if settings.best_of is not None:
        means: dict[tuple[int, ...], float] = {}
        for result in results:
            means.setdefault(result.token_ids, result.mean_logprob or 0.0)
        results = sorted(results, key=lambda result: -means[result.token_ids])
    first, *others = results[: settings.n]
    return replace(first, others=tuple(others))


def result_of(sequence: Sequence, drafter: str) -> Result:
    """The answer of a request that has ended."""
    assert sequence.finish_reason is not None  # callers wait for the end
    return Result(
        text=sequence.text,
        token_ids=tuple(sequence.new_ids),
        prompt_tokens=sequence.prompt_len,
        finish_reason=sequence.finish_reason,
        seed=sequence.seed,
        drafter=drafter,
        stats=sequence.stats,
        logprobs=tuple(sequence.logprobs),
        prompt_logprobs=tuple(sequence.prompt_logprobs),
    )
