"""A request's row processors, made of its settings and of transformers' `LogitsProcessor`s.

Applied in transformers' order: bias, repetition penalty (then presence and frequency), n-grams, bad
words, ends that come too early, suppressed tokens, and then the user's own.

A user's processor is called with the history of each row, `input_ids` `[rows, len]` and `scores`
`[rows, vocab]`, and with rows that are never committed:

    stateless     transformers' classes below, or `is_stateless = True`: rows of one length together
    restorable    has `snapshot()` and `restore(snapshot)`: along each path, one row at a time
    any other     might notice guesses: nothing is guessed for the request, and its stats say so
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence as Seq
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers.generation import logits_process as hf

from outdraft.errors import SettingsError
from outdraft.processing import RowProcessor, row_paths
from outdraft.settings import GenerationSettings
from outdraft.types import DraftTree

LogitsProcessor = Callable[[Any, Any], Any]
"""From `input_ids` and `scores` to processed scores."""

STATELESS: frozenset[type] = frozenset(
    {
        hf.EpsilonLogitsWarper,
        hf.EtaLogitsWarper,
        hf.ExponentialDecayLengthPenalty,
        hf.ForcedBOSTokenLogitsProcessor,
        hf.ForcedEOSTokenLogitsProcessor,
        hf.InfNanRemoveLogitsProcessor,
        hf.LogitNormalization,
        hf.MinLengthLogitsProcessor,
        hf.MinNewTokensLengthLogitsProcessor,
        hf.MinPLogitsWarper,
        hf.NoBadWordsLogitsProcessor,
        hf.NoRepeatNGramLogitsProcessor,
        hf.RepetitionPenaltyLogitsProcessor,
        hf.SequenceBiasLogitsProcessor,
        hf.SuppressTokensAtBeginLogitsProcessor,
        hf.SuppressTokensLogitsProcessor,
        hf.TemperatureLogitsWarper,
        hf.TopHLogitsWarper,
        hf.TopKLogitsWarper,
        hf.TopPLogitsWarper,
        hf.TypicalLogitsWarper,
    }
)


@runtime_checkable
class Restorable(Protocol):
    """A processor whose state can be kept and brought back, any number of times."""

    def __call__(self, input_ids: Any, scores: Any) -> Any: ...

    def snapshot(self) -> Any:
        """The state as it is; later calls do not change what is returned."""

    def restore(self, snapshot: Any) -> None: ...


class LogitBias(hf.LogitsProcessor):
    """Adds to the logits of some tokens."""

    def __init__(self, biases: Seq[tuple[int, float]], device: torch.device) -> None:
        self._ids = torch.tensor([token_id for token_id, _ in biases], device=device)
        self._biases = torch.tensor([bias for _, bias in biases], device=device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        del input_ids
        return scores.index_add(1, self._ids, self._biases.to(scores.dtype).expand(len(scores), -1))


class OccurrencePenalty(hf.LogitsProcessor):
    """Lowers the logits of tokens the text already holds, as OpenAI's API defines it.

    Args:
        prompt_len: tokens in front that do not count.
        presence: is taken off once.
        frequency: is taken off as often as the text holds the token.
    """

    def __init__(self, prompt_len: int, presence: float, frequency: float) -> None:
        self._prompt_len = prompt_len
        self._presence = presence
        self._frequency = frequency

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        text = input_ids[:, self._prompt_len :]
        counts = torch.zeros_like(scores)
        counts.scatter_add_(1, text, torch.ones_like(text, dtype=scores.dtype))
        return scores - self._presence * (counts > 0) - self._frequency * counts


class HistoryProcessor(RowProcessor):
    """Calls processors that keep nothing in mind, for all rows of one length at once.

    Args:
        prefix: tokens that stand before the prompt for these processors alone, such as padding.
    """

    def __init__(self, processors: Seq[LogitsProcessor], prefix: Seq[int] = ()) -> None:
        self._processors = tuple(processors)
        self._prefix = list(prefix)

    def process(self, ids: Seq[int], tree: DraftTree, logits: Tensor) -> Tensor:
        history = torch.tensor([*self._prefix, *ids], device=logits.device)[None]
        paths = row_paths(tree)
        rows_by_depth: dict[int, list[int]] = {}
        for row, path in enumerate(paths):
            rows_by_depth.setdefault(len(path), []).append(row)
        for depth, rows in rows_by_depth.items():
            guessed = [paths[row] for row in rows]
            ends = torch.tensor(guessed, dtype=torch.long, device=logits.device)
            before = history.expand(len(rows), -1)
            input_ids = torch.cat([before, ends.view(len(rows), depth)], dim=1)
            scores = logits[rows]
            for processor in self._processors:
                scores = processor(input_ids, scores)
            logits[rows] = scores.to(logits.dtype)
        return logits


class PathProcessor(RowProcessor):
    """Walks a processor's state along each path of the tree, and on along the one committed.

    A call stands for the token it is about, so what is committed is the state *behind* the call
    for the row before that token:

        call with       text        text, d1        text, d1, d2
        state           S1          S2              S3
        commits         d1          x ≠ d2                          next step starts from S2
    """

    def __init__(self, processor: Restorable, prefix: Seq[int] = ()) -> None:
        self._processor = processor
        self._prefix = tuple(prefix)
        self._after: dict[tuple[int, ...], Any] = {}
        self._path: tuple[int, ...] = ()

    def process(self, ids: Seq[int], tree: DraftTree, logits: Tensor) -> Tensor:
        start = self._processor.snapshot()
        self._after, self._path = {}, ()
        for row, path in enumerate(row_paths(tree)):
            self._processor.restore(self._after[path[:-1]] if path else start)
            input_ids = torch.tensor([[*self._prefix, *ids, *path]], device=logits.device)
            logits[row] = self._processor(input_ids, logits[row : row + 1])[0]
            self._after[path] = self._processor.snapshot()
        self._processor.restore(start)
        return logits

    def advance(self, token_id: int) -> None:
        self._processor.restore(self._after[self._path])
        self._path = (*self._path, token_id)


def make_processors(
    settings: GenerationSettings,
    *,
    prompt_len: int,
    end_ids: Seq[int],
    bad_words: Seq[Seq[int]],
    vocab_size: int,
    device: torch.device,
) -> tuple[list[RowProcessor], str | None]:
    """What a request's settings do to its logits, before temperature and filters.

    Args:
        end_ids: tokens that end its text.
        bad_words: the settings' own, as token ids.

    Returns:
        The processors, none where nothing is asked for; and why nothing may be guessed for the
        request, if so.

    Raises:
        SettingsError: a setting names a token that the target does not have, or a processor that
            may keep state cannot be copied.
    """
    _check_ids(settings, bad_words, vocab_size)
    own = _of_settings(settings, prompt_len, end_ids, bad_words, device)
    return in_rows([*own, *settings.logits_processors], known=len(own))


def in_rows(
    processors: Seq[LogitsProcessor], *, known: int = 0, prefix: Seq[int] = ()
) -> tuple[list[RowProcessor], str | None]:
    """The same processors, one after the other, as row processors.

    Those that may keep state are copied: each request starts with them as they were given.

    Args:
        known: so many of the first are stateless whatever they say.
        prefix: see `HistoryProcessor`.

    Returns:
        The row processors, and why nothing may be guessed, if so.

    Raises:
        SettingsError: one that may keep state cannot be copied.
    """
    made: list[RowProcessor] = []
    stateless: list[LogitsProcessor] = []
    reason = None
    for i, processor in enumerate(processors):
        if i < known or is_stateless(processor):
            stateless.append(processor)
            continue
        if stateless:
            made.append(HistoryProcessor(stateless, prefix))
            stateless = []
        own = _copied(processor)
        if isinstance(own, Restorable):
            made.append(PathProcessor(own, prefix))
        else:
            made.append(HistoryProcessor([own], prefix))
            reason = (
                f"the logits processor {type(processor).__name__} might notice guesses; give it "
                "snapshot() and restore(), or is_stateless = True if it keeps nothing in mind"
            )
    if stateless:
        made.append(HistoryProcessor(stateless, prefix))
    return made, reason


def is_stateless(processor: LogitsProcessor) -> bool:
    """Whether it is known, or says, to look at nothing but what it is called with."""
    return type(processor) in STATELESS or getattr(processor, "is_stateless", False) is True


def _of_settings(
    settings: GenerationSettings,
    prompt_len: int,
    end_ids: Seq[int],
    bad_words: Seq[Seq[int]],
    device: torch.device,
) -> list[LogitsProcessor]:
    made: list[LogitsProcessor] = []
    if settings.logit_bias:
        made.append(LogitBias(settings.logit_bias, device))
    if settings.repetition_penalty != 1.0:
        made.append(hf.RepetitionPenaltyLogitsProcessor(settings.repetition_penalty))
    if settings.presence_penalty or settings.frequency_penalty:
        made.append(
            OccurrencePenalty(prompt_len, settings.presence_penalty, settings.frequency_penalty)
        )
    if settings.no_repeat_ngram_size:
        made.append(hf.NoRepeatNGramLogitsProcessor(settings.no_repeat_ngram_size))
    if bad_words:
        made.append(hf.NoBadWordsLogitsProcessor([list(ids) for ids in bad_words]))
    if settings.min_new_tokens and end_ids:
        made.append(
            hf.MinNewTokensLengthLogitsProcessor(
                prompt_len, settings.min_new_tokens, list(end_ids), device=str(device)
            )
        )
    if settings.suppress_ids:
        made.append(hf.SuppressTokensLogitsProcessor(settings.suppress_ids, device=str(device)))
    return made


def _check_ids(settings: GenerationSettings, bad_words: Seq[Seq[int]], vocab_size: int) -> None:
    named = {
        "logit_bias": [token_id for token_id, _ in settings.logit_bias],
        "suppress_ids": settings.suppress_ids,
        "stop_ids": settings.stop_ids,
        "bad_words": [token_id for ids in bad_words for token_id in ids],
    }
    for name, ids in named.items():
        if max(ids, default=0) >= vocab_size:
            raise SettingsError(
                f"{name} names token {max(ids)}; the target's vocabulary has {vocab_size}, from 0 "
                "on"
            )


def _copied(processor: LogitsProcessor) -> LogitsProcessor:
    try:
        return copy.deepcopy(processor)
    except (TypeError, copy.Error) as error:
        raise SettingsError(
            f"the logits processor {type(processor).__name__} cannot be copied ({error}), and "
            "every request needs its own; give it a __deepcopy__, or is_stateless = True if it "
            "keeps nothing in mind"
        ) from error
