"""The numbers outdraft reports, each defined once, and the identities that tie them together."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, field

from outdraft.types import Origin


@dataclass(slots=True)
class DrafterStats:
    """Counters of one drafter in one request; a node that several guessed counts for each.

    Attributes:
        asked: steps in which it was asked for guesses.
        drafted, judged, accepted: its guesses that were planned; of these, those whose parent was
            accepted; and those that were accepted themselves.
        seconds: that its proposals took. Sequences in a batch share them.
        memory_bytes: that its stores took when the request ended, those of other requests included.
    """

    asked: int = 0
    drafted: int = 0
    judged: int = 0
    accepted: int = 0
    seconds: float = 0.0
    memory_bytes: int = 0


@dataclass(slots=True)
class Stats:
    """Counters of one request.

    Attributes:
        steps: target passes after the prompt was read.
        drafted: rows planned beyond roots.
        accepted: drafted rows that became part of the text.
        tokens: tokens returned to the user.
        own_tokens: those of them the target itself chose: corrections, bonuses, plain steps.
        judged_by_depth: at depth 1, 2, ...: drafted rows whose parent was accepted.
        accepted_by_depth: and how many of these were accepted.
        seconds: wall time from admission to the last token.
        first_token_seconds: wall time from admission to the first token.
        plain_steps: steps in which nothing was drafted.
        expected_tokens: what the plans of all steps expected of them, own tokens included.
        expected_plain_seconds: what plain decoding would have taken for the tokens of all steps, by
            what passes cost here; 0 where guesses are not priced.
        drafters: the same counters for each drafter by itself.
        drafting_off_reason: why nothing was guessed for this request, whatever the drafter; `None`
            where guessing was allowed.
        draft_seconds, target_seconds: wall time of the request's steps spent guessing, and in
            the target passes (prompt included). Sequences in a batch share both.
        reused_prompt_tokens: of the prompt, that were known from another text and not read.

    Identities: `tokens == accepted + own_tokens`, `accepted <= drafted`,
    `accepted == sum(accepted_by_depth)` unless the last step was cut by a stop rule, and without
    drafts `tokens == steps + 1` (the prompt pass gives the first token), or one less if blocked.
    """

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    own_tokens: int = 0
    judged_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    seconds: float = 0.0
    first_token_seconds: float = 0.0
    plain_steps: int = 0
    expected_tokens: float = 0.0
    expected_plain_seconds: float = 0.0
    drafters: dict[str, DrafterStats] = field(default_factory=dict)
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    drafting_off_reason: str | None = None
    reused_prompt_tokens: int = 0

    @property
    def tokens_per_step(self) -> float:
        """Tokens per target pass that produced them, the prompt pass included; plain is 1.0."""
        return self.tokens / (self.steps + 1)

    @property
    def rows_per_step(self) -> float:
        """Rows of a target pass, the prompt's left out; plain is 1.0."""
        return 1.0 + self.drafted / max(1, self.steps)

    @property
    def plain_share(self) -> float:
        """The part of the steps in which nothing was drafted."""
        return self.plain_steps / max(1, self.steps)

    @property
    def estimated_speedup(self) -> float | None:
        """Over plain decoding, the prompt left out; `None` where guesses are not priced."""
        seconds = self.seconds - self.first_token_seconds
        if self.expected_plain_seconds == 0.0 or seconds <= 0.0:
            return None
        return self.expected_plain_seconds / seconds

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Accepted / judged at depth 1, 2, ..."""
        pairs = zip(self.accepted_by_depth, self.judged_by_depth, strict=True)
        return [accepted / judged for accepted, judged in pairs]

    @contextmanager
    def time_target(self) -> Iterator[None]:
        """Adds the time of a target pass that served this request alone."""
        started_at = time.perf_counter()
        yield
        self.target_seconds += time.perf_counter() - started_at

    def count_step(self, num_drafted: int, judged: Seq[int], num_matched: int) -> None:
        """One target pass that planned, judged per depth and matched this many guesses."""
        self.steps += 1
        self.drafted += num_drafted
        self.plain_steps += num_drafted == 0
        missing = len(judged) - len(self.judged_by_depth)
        self.judged_by_depth.extend([0] * missing)
        self.accepted_by_depth.extend([0] * missing)
        for depth, count in enumerate(judged):
            self.judged_by_depth[depth] += count
            self.accepted_by_depth[depth] += depth < num_matched

    def count_tokens(self, origins: Seq[Origin]) -> None:
        """Tokens that became part of the text, by where they came from."""
        num_drafted = sum(origin == "drafted" for origin in origins)
        self.accepted += num_drafted
        self.own_tokens += len(origins) - num_drafted
        self.tokens += len(origins)
