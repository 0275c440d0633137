"""One request on its way: its ids, its text and when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence as Seq

from torch import Tensor

from outdraft.grammar.matcher import Matcher
from outdraft.processing import GrammarMask, RowProcessor
from outdraft.settings import GenerationSettings
from outdraft.stats import Stats
from outdraft.stopping import StopStrings
from outdraft.text.detokenizer import Detokenizer
from outdraft.types import DraftTree, FinishReason, TokenLogprob

Decode = Callable[[Seq[int]], str]


class Sequence:
    """The state of one request; only `append` moves it on.

    Args:
        prompt_ids: at least one token.
        seed: of the noise; already drawn where the user named none.
        eos_ids: tokens that end the text.
        max_context: positions the target has, prompt included.
        decode: from new token ids to text.
        prediction_ids: the new tokens somebody expects; a hint for drafters.
        processors: of its logits, in this order.
        matcher: of the grammar that its text follows, at the beginning; masks logits before all
            processors.
        drafting_off_reason: why nothing may be guessed for it; `None` lets drafters guess.
    """

    def __init__(
        self,
        request_id: int,
        prompt_ids: Seq[int],
        settings: GenerationSettings,
        *,
        seed: int,
        eos_ids: frozenset[int],
        max_context: int,
        decode: Decode,
        prediction_ids: Seq[int] = (),
        processors: Seq[RowProcessor] = (),
        matcher: Matcher | None = None,
        drafting_off_reason: str | None = None,
    ) -> None:
        self.request_id = request_id
        self.ids = list(prompt_ids)
        self.prompt_len = len(self.ids)
        self.settings = settings
        self.seed = seed
        self.prediction_ids = tuple(prediction_ids)
        self.matcher = matcher
        masks = [GrammarMask(matcher)] if matcher is not None else []
        self.processors = (*masks, *processors)
        self.text = ""
        self.logprobs: list[TokenLogprob] = []  # of the new tokens, where they are wanted
        self.prompt_logprobs: list[TokenLogprob | None] = []  # likewise; the first token has none
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None  # that ended it
        self.stats = Stats(drafting_off_reason=drafting_off_reason)
        self._end_ids = (frozenset() if settings.ignore_eos else eos_ids) | set(settings.stop_ids)
        self.max_len = min(self.prompt_len + settings.max_new_tokens, max_context)
        self._detokenizer = Detokenizer(decode)
        self._stop_strings = StopStrings(settings.stop, keeps=settings.include_stop)
        self._started_at = time.perf_counter()

    @property
    def root_id(self) -> int:
        """The last committed token: the one row a plain step reads."""
        return self.ids[-1]

    @property
    def root_position(self) -> int:
        return len(self.ids) - 1

    @property
    def new_ids(self) -> list[int]:
        return self.ids[self.prompt_len :]

    @property
    def remaining(self) -> int:
        """Tokens that may still be committed before a length ends the request."""
        return self.max_len - len(self.ids)

    @property
    def max_draft_depth(self) -> int:
        """Guesses in a row that could still be committed; a step adds a token of its own."""
        return 0 if self.stats.drafting_off_reason is not None else self.remaining - 1

    def process(self, tree: DraftTree, logits: Tensor) -> Tensor:
        """What the target's logits `[1 + nodes, vocab]` become for this request; once per pass.

        An error of a processor ends this request alone, and its logits do not matter any more.

        Args:
            logits: fp32 or fp64; may be changed in place.
        """
        try:
            for processor in self.processors:
                logits = processor.process(self.ids, tree, logits)
        except Exception as error:  # noqa: BLE001  # whatever a user's code may raise
            self._fail(error)
        return logits

    def append(self, token_id: int) -> str:
        """Commits one token; returns the text it makes visible and may set `finish_reason`.

        A stop at or before the length limit beats the limit. The user's own callables are asked
        about every token and all text shown by then, whatever else ends the request there. An
        error of one of them, or of a processor, ends this request alone.
        """
        self.ids.append(token_id)
        try:
            return self._take_in(token_id)
        except Exception as error:  # noqa: BLE001  # whatever a user's code may raise
            self._fail(error)
            return ""

    def _take_in(self, token_id: int) -> str:
        for processor in self.processors:
            processor.advance(token_id)
        if token_id in self._end_ids:
            shown = self._show(self._detokenizer.flush(), finish="stop")
        elif self.remaining > 0:
            shown = self._show(self._detokenizer.push(token_id), finish=None)
        else:
            piece = self._detokenizer.push(token_id) + self._detokenizer.flush()
            shown = self._show(piece, finish="length")
        if self._is_stopped_by_user() and self.finish_reason != "stop":
            return shown + self._show(self._detokenizer.flush(), finish="stop")
        return shown

    def cancel(self) -> str:
        """Ends the request where it stands; returns the text that was still held back."""
        return self._show(self._detokenizer.flush(), finish="cancelled")

    def block(self) -> str:
        """Ends the request where nothing is allowed; returns the text that was still held back."""
        return self._show(self._detokenizer.flush(), finish="blocked")

    def raise_error(self) -> None:
        """Raises the error that ended the request, if one did."""
        if self.error is not None:
            raise self.error

    def _fail(self, error: Exception) -> None:
        self.error = error
        self.finish_reason = "error"
        self._keep_time()

    @property
    def _is_long_enough(self) -> bool:
        return len(self.ids) - self.prompt_len >= self.settings.min_new_tokens

    def _is_stopped_by_user(self) -> bool:
        verdicts = [stop(self.new_ids, self.text) for stop in self.settings.stop_when]
        return any(verdicts) and self._is_long_enough

    def _show(self, piece: str, finish: FinishReason | None) -> str:
        shown, is_stopped = piece, False
        if self._is_long_enough:  # a stop string begins behind the text that has to be there
            shown, is_stopped = self._stop_strings.push(piece)
        if is_stopped:
            finish = "stop"
        elif finish is not None:
            shown += self._stop_strings.flush()
        self.text += shown
        self.finish_reason = finish
        self._keep_time()
        return shown

    def _keep_time(self) -> None:
        self.stats.seconds = time.perf_counter() - self._started_at
        if not self.stats.first_token_seconds:
            self.stats.first_token_seconds = self.stats.seconds
