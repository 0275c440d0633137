"""Requests in, commits out: read prompts, admit, step, let go."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence as Seq
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outdraft.commit import append_tokens
from outdraft.errors import SettingsError
from outdraft.interfaces import Drafter, KVCache, TargetModel
from outdraft.logprobs import token_logprobs, with_logprobs
from outdraft.plan import Pricing, Unpriced
from outdraft.prefixes import Beginning, KeptTexts, common_len
from outdraft.sequence import Sequence
from outdraft.settings import EngineSettings
from outdraft.stats import DrafterStats
from outdraft.step import choose_tokens, process_rows, step
from outdraft.trace import OnStep, StepRecord, StepSeconds
from outdraft.types import Commit, DraftTree, Rows, Verdict
from outdraft.verify import walk

OnPrompt = Callable[[int, int], None]


@dataclass(slots=True)
class _Reading:
    """A prompt on its way into a cache of its own, `num_read` tokens of it so far.

    Args:
        logits: after the last token read, `[1, vocab]`.
        seconds: that its passes took.
    """

    sequence: Sequence
    cache: KVCache
    num_read: int
    num_reused: int
    logits: Tensor | None = None
    seconds: float = 0.0

    @property
    def unread(self) -> list[int]:
        """The tokens of the prompt that are still to be read."""
        return self.sequence.ids[self.num_read :]


class Engine:
    """Runs requests over one target, sharing its passes.

    Sequences join and leave the batch between any two steps; none waits for another. A prompt is
    read chunk by chunk in between, in a cache of its own, and joins the batch when it is read.
    After each call, every running sequence's cache holds exactly its tokens but the last.

    Args:
        pricing: decides how many guesses are read; without it, as many as the settings allow.
        on_step: is told of every step, prompts that were read included, once it is committed.
        on_prompt: is told, after each piece of a prompt, how many tokens of how many were read.
        kept: texts that prompts may begin with; takes in each request that ends.
        turn: held during each call, for engines in several threads that share target or drafter.
    """

    def __init__(
        self,
        target: TargetModel,
        drafter: Drafter,
        settings: EngineSettings,
        *,
        pricing: Pricing | None = None,
        on_step: OnStep | None = None,
        on_prompt: OnPrompt | None = None,
        kept: KeptTexts | None = None,
        turn: AbstractContextManager[object] | None = None,
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._settings = settings
        self._pricing = pricing or Unpriced()
        self._on_step = on_step
        self._on_prompt = on_prompt
        self._kept = kept
        self._turn = turn or nullcontext()
        self._cache = target.new_cache()
        self._waiting: deque[Sequence] = deque()
        self._reading: _Reading | None = None
        self._running: list[Sequence] = []  # in the order of the cache's sequences
        self._unreturned: list[Commit] = []  # of this step, or of one that failed after them

    @property
    def is_idle(self) -> bool:
        nobody = not self._waiting and self._reading is None and not self._running
        return nobody and not self._unreturned

    def add(self, sequence: Sequence) -> None:
        """Queues a request.

        Raises:
            SettingsError: its prompt is empty or leaves no room for a single new token, or it asks
                for more than `max_cached_tokens`.
        """
        self.check(sequence)
        self._waiting.append(sequence)

    def run(self, sequences: Seq[Sequence]) -> None:
        """Adds requests and runs them to their end; whatever goes wrong, none is left running.

        Raises:
            SettingsError: as for `add`.
            Exception: an error of the engine, or the first that ended one of the requests.
        """
        for sequence in sequences:
            self.add(sequence)
        try:
            while not self.is_idle:
                self.step()
                for sequence in sequences:
                    sequence.raise_error()
        finally:
            for sequence in sequences:
                self.cancel(sequence)

    def check(self, sequence: Sequence) -> None:
        """Refuses a request that cannot be run.

        Raises:
            SettingsError: as for `add`.
        """
        if sequence.prompt_len == 0:
            raise SettingsError("the prompt has no tokens; give at least one")
        if sequence.remaining < 1:
            raise SettingsError(
                f"the prompt has {sequence.prompt_len} tokens and the target reads "
                f"{self._target.max_context}; shorten the prompt by at least "
                f"{sequence.prompt_len - self._target.max_context + 1}"
            )
        room = self._settings.max_cached_tokens
        if room is not None and sequence.max_len > room:
            raise SettingsError(
                f"a prompt of {sequence.prompt_len} tokens and up to "
                f"{sequence.max_len - sequence.prompt_len} new ones do not fit into "
                f"max_cached_tokens={room}; ask for less, or raise it in EngineSettings"
            )

    @torch.inference_mode()
    def cancel(self, sequence: Sequence) -> None:
        """Ends a request at once and frees all it held; the others do not notice."""
        with self._turn:
            if sequence.finish_reason is not None:
                return
            sequence.cancel()
            if sequence in self._waiting:
                self._waiting.remove(sequence)
            elif self._reading is not None and self._reading.sequence is sequence:
                self._reading = None
            elif sequence in self._running:
                self._release(self._running.index(sequence))

    def forget(self) -> None:
        """Forgets the texts that ended requests left."""
        with self._turn:
            if self._kept is not None:
                self._kept.clear()

    @torch.inference_mode()
    def step(self) -> list[Commit]:
        """Moves every running sequence on, then reads a chunk of the prompts that come next.

        Returns:
            What was committed; nothing where all that happened is that a part of a prompt was
            read. What a failed step had committed is returned by the next one.
        """
        with self._turn:
            if not self._unreturned:
                if self._running:
                    self._decode()
                self._read_prompts()
            commits, self._unreturned = self._unreturned, []
            return commits

    def _decode(self) -> None:
        try:
            step(
                self._running,
                self._drafter,
                self._target,
                self._cache,
                self._settings.max_draft_nodes,
                pricing=self._pricing,
                on_step=self._on_step,
                told=self._unreturned,
            )
        finally:
            self._release_finished()

    def _read_prompts(self) -> None:
        """Reads as many tokens of prompts as a chunk has, in the order in which they came.

        Every prompt is cut at the same places whatever the company, and so is read by the same
        passes: a piece that is not affordable any more is left to the next step as a whole.
        """
        affordable = self._settings.prompt_chunk
        read: _Reading | None = None
        while reading := self._reading or self._open_next(read):
            num_tokens = min(len(reading.unread), self._settings.prompt_chunk)
            if num_tokens > affordable:
                return
            affordable -= num_tokens
            try:
                if num_tokens:
                    self._read(reading, num_tokens)
                    read = reading
                if not reading.unread:
                    self._admit(reading)
            except BaseException:
                self.cancel(reading.sequence)  # a prompt half read is dropped
                raise
            finally:
                self._release_finished()

    def _open_next(self, before: _Reading | None) -> _Reading | None:
        """Begins with the next prompt, if there is a place for it.

        Args:
            before: the last prompt that was read; if the next is the same, such as that of a
                further sample, it is not read again.
        """
        if not self._waiting or not self._has_room(self._waiting[0]):
            return None
        sequence = self._waiting.popleft()
        if before is not None and _is_alike(sequence, before):
            known_len = sequence.stats.reused_prompt_tokens = before.num_read
            self._reading = replace(before, sequence=sequence, num_reused=known_len, seconds=0.0)
            return self._reading
        cache = self._target.new_cache()
        known = self._longest_known(sequence)
        if known is None:
            cache.add()
        else:
            cache.add_from(*known)
        num_reused = sequence.stats.reused_prompt_tokens = known.length if known else 0
        self._reading = _Reading(sequence, cache, num_reused, num_reused)
        return self._reading

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether it may run beside those that do."""
        num_seqs = len(self._running) + 1
        if num_seqs > self._settings.max_batch:
            return False
        room = self._settings.max_cached_tokens
        longest = max(each.max_len for each in (sequence, *self._running))
        return room is None or num_seqs * longest <= room

    def _longest_known(self, sequence: Sequence) -> Beginning | None:
        """The longest beginning of a prompt that is held somewhere; its last token is to be read.

        Ended requests leave theirs, and those that run may share it too. Who wants the prompt's
        log-probabilities has to read all of it: nobody keeps those.
        """
        if self._kept is None or sequence.settings.prompt_logprobs:
            return None
        prompt_ids = sequence.ids[:-1]
        held = self._cache.committed_lens
        known = [
            Beginning(self._cache, i, common_len(running.ids[: held[i]], prompt_ids))
            for i, running in enumerate(self._running)
        ]
        if kept := self._kept.longest(prompt_ids):
            known.append(kept)
        return max(known, key=lambda each: each.length, default=None)

    def _read(self, reading: _Reading, num_tokens: int) -> None:
        """Reads some tokens of a prompt."""
        sequence, start = reading.sequence, reading.num_read
        started_at = time.perf_counter()
        rows = Rows.chain(sequence.ids[start : start + num_tokens], start, self._target.device)
        num_judged = 0 if sequence.settings.prompt_logprobs else 1  # rows; 0 is all
        with sequence.stats.time_target():
            logits = self._target.forward(rows, reading.cache, logits_to_keep=num_judged)[0]
        if sequence.settings.prompt_logprobs:
            _note_prompt(sequence, start, logits)
        reading.cache.commit(0, range(num_tokens))
        reading.num_read += num_tokens
        reading.seconds += time.perf_counter() - started_at
        if self._on_prompt is not None:
            self._on_prompt(reading.num_read, sequence.prompt_len)
        reading.logits = logits[-1:]

    def _admit(self, reading: _Reading) -> None:
        """Commits the token that follows a prompt, which runs with the others from then on."""
        assert reading.logits is not None  # all of the prompt was read
        sequence, read_at = reading.sequence, time.perf_counter()
        if self._running:
            self._cache.add_from(reading.cache, 0, reading.num_read)
        else:
            self._cache = reading.cache
        self._reading = None
        self._running.append(sequence)
        scores = process_rows(reading.logits[None], [DraftTree()], [sequence])
        target_ids = choose_tokens(scores, [DraftTree()], [sequence])
        verdict = walk(DraftTree(), target_ids[0].tolist())
        (verdict,) = with_logprobs([verdict], reading.logits[None], scores, [sequence])
        commit = append_tokens(
            sequence,
            verdict.token_ids,
            ("plain",),
            verdict.logprobs,
            is_blocked=verdict.is_blocked,
        )
        self._unreturned.append(commit)
        self._drafter.observe(sequence, commit)
        if self._on_step is not None:
            seconds = StepSeconds(
                0.0, 0.0, reading.seconds, reading.seconds + time.perf_counter() - read_at
            )
            self._on_step(
                _prompt_record(reading, scores, target_ids, verdict, commit=commit, seconds=seconds)
            )

    def _release_finished(self) -> None:
        for seq_idx in reversed(range(len(self._running))):
            if self._running[seq_idx].finish_reason is not None:
                self._release(seq_idx)

    def _release(self, seq_idx: int) -> None:
        """Frees a sequence; as in the cache, the last one takes its index."""
        sequence = self._running[seq_idx]
        for part in self._drafter.parts:
            record = sequence.stats.drafters.setdefault(part.name, DrafterStats())
            record.memory_bytes = part.memory_bytes
        self._drafter.finish(sequence)
        self._pricing.finish(sequence)
        if self._kept is not None:
            self._kept.keep(self._cache, seq_idx, sequence.ids)
        self._cache.remove(seq_idx)
        last = self._running.pop()
        if seq_idx < len(self._running):
            self._running[seq_idx] = last


def _is_alike(sequence: Sequence, read: _Reading) -> bool:
    """Whether its prompt is the one that was read, of which everything is still there."""
    is_there = read.sequence.finish_reason is None  # else its cache is gone
    wants_more = sequence.settings.prompt_logprobs
    return is_there and not wants_more and sequence.ids == read.sequence.ids[: read.num_read]


def _note_prompt(sequence: Sequence, start: int, logits: Tensor) -> None:
    """How likely the prompt's tokens were; `logits` follow those from `start` on."""
    following = sequence.ids[start + 1 : start + 1 + len(logits)]
    num_top = sequence.settings.logprobs or 0
    if start == 0:
        sequence.prompt_logprobs.append(None)
    sequence.prompt_logprobs += token_logprobs(logits[: len(following)], following, num_top)


def _prompt_record(
    reading: _Reading,
    scores: Tensor,
    target_ids: Tensor,
    verdict: Verdict,
    *,
    commit: Commit,
    seconds: StepSeconds,
) -> StepRecord:
    """Reading a prompt, as a step without draft."""
    return StepRecord(
        batch=[reading.sequence],
        trees=[DraftTree()],
        row_lens=[reading.num_read - reading.num_reused],
        logits=scores,
        target_ids=target_ids,
        verdicts=[verdict],
        commits=[commit],
        seconds=seconds,
    )
