"""From a prompt and what is asked for to sequences that an engine runs."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

from outdraft.errors import SettingsError
from outdraft.grammar.matcher import Matcher
from outdraft.grammar.tokenizer import GrammarTokenizer
from outdraft.interfaces import TargetModel
from outdraft.models.processors import make_processors
from outdraft.sampling import sample_seed
from outdraft.sequence import Sequence
from outdraft.settings import GenerationSettings
from outdraft.text.detokenizer import text_decoder
from outdraft.text.prompts import Prompt, Tokenizer, bad_word_ids, to_prompt_ids


class SequenceMaker:
    """Makes sequences of one model, each with all that belongs to it alone; for any thread.

    A seed, a grammar's state and processors are made here and nowhere else, so that a request is
    the same request in a batch, a stream, a session and a chat.

    Args:
        eos_ids: tokens that end a text.
    """

    def __init__(
        self, target: TargetModel, tokenizer: Tokenizer, *, eos_ids: Collection[int]
    ) -> None:
        self._target = target
        self._tokenizer = tokenizer
        self._eos_ids = frozenset(eos_ids)
        self._decode = text_decoder(tokenizer)
        self._request_ids = itertools.count()
        self._grammar_turn = threading.Lock()

    def make_samples(
        self, prompt: Prompt, settings: GenerationSettings | Mapping[str, Any]
    ) -> list[Sequence]:
        """One for each answer to be drawn, each with a seed of its own.

        Raises:
            SettingsError: a setting is unknown or out of range, or the prompt empty or no prompt.
        """
        if not isinstance(settings, GenerationSettings):
            settings = GenerationSettings(**settings)
        seed = secrets.randbits(63) if settings.seed is None else settings.seed
        prompt_ids = to_prompt_ids(self._tokenizer, prompt)
        return [
            self._make(prompt_ids, settings.replace(seed=sample_seed(seed, index)))
            for index in range(settings.num_samples)
        ]

    def make(self, prompt: Prompt, settings: GenerationSettings | Mapping[str, Any]) -> Sequence:
        """The one answer.

        Raises:
            SettingsError: as for `make_samples`, or several answers are asked for.
        """
        if not isinstance(settings, GenerationSettings):
            settings = GenerationSettings(**settings)
        return self.make_samples(prompt, check_one_answer(settings))[0]

    def _make(self, prompt_ids: list[int], settings: GenerationSettings) -> Sequence:
        assert settings.seed is not None  # every sample has one
        vocab_size = self._target.vocab_size
        if not 0 <= min(prompt_ids) <= max(prompt_ids) < vocab_size:
            raise SettingsError(
                f"the prompt has token ids from {min(prompt_ids)} to {max(prompt_ids)}; the "
                f"target's vocabulary has {vocab_size}, from 0 on"
            )
        end_ids = frozenset() if settings.ignore_eos else self._eos_ids
        processors, drafting_off_reason = make_processors(
            settings,
            prompt_len=len(prompt_ids),
            end_ids=sorted(end_ids | set(settings.stop_ids)),
            bad_words=bad_word_ids(self._tokenizer, settings.bad_words),
            vocab_size=vocab_size,
            device=self._target.device,
        )
        return Sequence(
            next(self._request_ids),
            prompt_ids,
            settings,
            seed=settings.seed,
            eos_ids=self._eos_ids,
            max_context=self._target.max_context,
            decode=self._decode,
            prediction_ids=self._prediction_ids(settings),
            matcher=self._matcher(settings),
            processors=processors,
            drafting_off_reason=drafting_off_reason,
        )

    def _matcher(self, settings: GenerationSettings) -> Matcher | None:
        if settings.grammar_source is None:
            return None
        with self._grammar_turn:
            return self._grammar_tokenizer.matcher(settings.grammar_source)

    @cached_property
    def _grammar_tokenizer(self) -> GrammarTokenizer:
        """The tokenizer as grammars see it, made on first use."""
        return GrammarTokenizer(
            self._tokenizer, vocab_size=self._target.vocab_size, eos_ids=self._eos_ids
        )

    def _prediction_ids(self, settings: GenerationSettings) -> list[int]:
        if settings.prediction is None:
            return []
        return list(self._tokenizer(settings.prediction, add_special_tokens=False)["input_ids"])


def check_one_answer(settings: GenerationSettings) -> GenerationSettings:
    """The settings; refuses to draw several answers where there is a place for one.

    Raises:
        SettingsError: several are asked for.
    """
    if settings.num_samples > 1:
        raise SettingsError(
            f"streams, sessions and chats give one answer and not {settings.num_samples}; leave "
            "out n and best_of, or call generate() or agenerate()"
        )
    return settings
