"""Requests in, commits out: admit, read prompts, step, let go."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from outdraft.commit import append_tokens
from outdraft.errors import SettingsError
from outdraft.interfaces import Drafter, TargetModel
from outdraft.logprobs import token_logprobs, with_logprobs
from outdraft.plan import Pricing, Unpriced
from outdraft.sampling import choose
from outdraft.sequence import Sequence
from outdraft.settings import EngineSettings
from outdraft.stats import DrafterStats
from outdraft.step import process_rows, step
from outdraft.trace import OnStep, StepRecord, StepSeconds
from outdraft.types import Commit, DraftTree, Rows, Verdict

OnPrompt = Callable[[int, int], None]


class Engine:
    """Runs requests over one target, sharing its passes.

    Sequences join and leave the batch between any two steps; none waits for another. After each
    call, every running sequence's cache holds exactly its tokens but the last.

    Args:
        pricing: decides how many guesses are read; without it, as many as the settings allow.
        on_step: is told of every step, prompts that were read included, once it is committed.
        on_prompt: is told, after each piece of a prompt, how many tokens of how many were read.
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
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._settings = settings
        self._pricing = pricing or Unpriced()
        self._on_step = on_step
        self._on_prompt = on_prompt
        self._cache = target.new_cache()
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # in the order of the cache's sequences
        self._unreturned: list[Commit] = []  # of admissions, should a later one fail

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._running and not self._unreturned

    def add(self, sequence: Sequence) -> None:
        """Queues a request.

        Raises:
            SettingsError: its prompt is empty or leaves no room for a single new token.
        """
        if sequence.prompt_len == 0:
            raise SettingsError("the prompt has no tokens; give at least one")
        if sequence.remaining < 1:
            raise SettingsError(
                f"the prompt has {sequence.prompt_len} tokens and the target reads "
                f"{self._target.max_context}; shorten the prompt by at least "
                f"{sequence.prompt_len - self._target.max_context + 1}"
            )
        self._waiting.append(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Ends a request at once and frees all it held; the others do not notice."""
        if sequence.finish_reason is not None:
            return
        sequence.cancel()
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        elif sequence in self._running:
            self._release(self._running.index(sequence))

    @torch.inference_mode()
    def step(self) -> list[Commit]:
        """Admits what fits, then moves every running sequence on; returns what was committed."""
        while self._waiting and len(self._running) < self._settings.max_batch:
            self._unreturned.append(self._admit(self._waiting.popleft()))
        if self._unreturned:
            commits, self._unreturned = self._unreturned, []
            return commits  # first tokens go out before any draft work
        if not self._running:
            return []
        try:
            return step(
                self._running,
                self._drafter,
                self._target,
                self._cache,
                self._settings.max_draft_nodes,
                pricing=self._pricing,
                on_step=self._on_step,
            )
        finally:
            self._release_finished()

    def _admit(self, sequence: Sequence) -> Commit:
        """Reads a prompt and commits the token that follows it; a prompt half read is dropped."""
        started_at = time.perf_counter()
        seq_idx = self._cache.add()
        self._running.append(sequence)
        try:
            logits = self._read_prompt(sequence, seq_idx)
            read_at = time.perf_counter()
            scores = process_rows(logits[None], [DraftTree()], [sequence])[0]
            drawn = choose(scores, [sequence.prompt_len], sequence.settings, sequence.seed)
            verdict = Verdict((0,), (int(drawn),), "plain", ())
            (verdict,) = with_logprobs([verdict], logits[None], scores[None], [sequence])
            commit = append_tokens(sequence, verdict.token_ids, ("plain",), verdict.logprobs)
            self._drafter.observe(sequence, commit)
            if self._on_step is not None:
                seconds = StepSeconds.up_to_now(started_at, started_at, started_at, read_at)
                self._on_step(_prompt_record(sequence, scores, drawn, commit, seconds))
        except BaseException:
            self.cancel(sequence)
            raise
        finally:
            self._release_finished()
        return commit

    def _read_prompt(self, sequence: Sequence, seq_idx: int) -> Tensor:
        """Reads it in chunks; returns the logits after its last token, `[1, vocab]`."""
        chunk = self._settings.prompt_chunk
        for start in range(0, sequence.prompt_len, chunk):
            token_ids = sequence.ids[start : start + chunk]
            rows = Rows.chain(token_ids, start, self._target.device)
            with sequence.stats.time_target():
                logits = self._target.forward(
                    rows,
                    self._cache,
                    first_seq=seq_idx,
                    logits_to_keep=0 if sequence.settings.prompt_logprobs else 1,
                )[0]
            if sequence.settings.prompt_logprobs:
                _note_prompt(sequence, start, logits)
            self._cache.commit(seq_idx, range(len(token_ids)))
            if self._on_prompt is not None:
                self._on_prompt(start + len(token_ids), sequence.prompt_len)
        return logits[-1:]

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
        self._cache.remove(seq_idx)
        last = self._running.pop()
        if seq_idx < len(self._running):
            self._running[seq_idx] = last


def _note_prompt(sequence: Sequence, start: int, logits: Tensor) -> None:
    """How likely the prompt's tokens were; `logits` follow those from `start` on."""
    following = sequence.ids[start + 1 : start + 1 + len(logits)]
    num_top = sequence.settings.logprobs or 0
    if start == 0:
        sequence.prompt_logprobs.append(None)
    sequence.prompt_logprobs += token_logprobs(logits[: len(following)], following, num_top)


def _prompt_record(
    sequence: Sequence, logits: Tensor, drawn: Tensor, commit: Commit, seconds: StepSeconds
) -> StepRecord:
    """Reading a prompt, as a step without draft."""
    return StepRecord(
        batch=[sequence],
        trees=[DraftTree()],
        row_lens=[sequence.prompt_len],
        logits=logits[None],
        target_ids=drawn[None],
        verdicts=[Verdict((0,), commit.token_ids, "plain", ())],
        commits=[commit],
        seconds=seconds,
    )
