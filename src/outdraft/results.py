"""What a user gets: the pieces of an answer as they come, and the whole of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Seq
from dataclasses import dataclass, replace
from typing import Self

from outdraft.engine import Engine
from outdraft.errors import SettingsError
from outdraft.sequence import Sequence
from outdraft.settings import GenerationSettings
from outdraft.stats import Stats
from outdraft.types import Commit, FinishReason, Origin, TokenLogprob


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


def piece_of(commit: Commit) -> Piece:
    """What a user sees of a commit."""
    return Piece(commit.text, commit.token_ids, commit.origins, commit.logprobs)


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


class Stream:
    """The pieces of one answer as they come.

    Leaving it early, by `cancel()`, a `with` block or deletion, frees all the request held.
    """

    def __init__(self, engine: Engine, sequence: Sequence, drafter: str) -> None:
        self._engine = engine
        self._sequence = sequence
        self._drafter = drafter

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        while self._sequence.finish_reason is None:
            for commit in self._step():  # none while a long prompt is being read
                self._sequence.raise_error()
                return piece_of(commit)
        raise StopIteration

    def _step(self) -> list[Commit]:
        try:
            return self._engine.step()
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Ends the answer where it stands; `result` then says `cancelled`."""
        self._engine.cancel(self._sequence)

    @property
    def result(self) -> Result:
        """The whole answer.

        Raises:
            SettingsError: it has not ended yet.
            Exception: the one that ended it.
        """
        if self._sequence.finish_reason is None:
            raise SettingsError("the stream has not ended; read it to the end or cancel() it first")
        return result_of(self._sequence, self._drafter)

    def __del__(self) -> None:
        self.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.cancel()


def result_of(sequence: Sequence, drafter: str) -> Result:
    """The answer of a request that has ended, or the error that ended it, raised."""
    assert sequence.finish_reason is not None  # callers wait for the end
    sequence.raise_error()
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
