"""The nouns: one frozen type per stage of draft → plan → verify → commit.

Dimension key, used in every shape of the package:

    seqs      sequences that share a target pass
    rows      tokens one sequence reads in the pass: its root, then planned nodes, then padding
    nodes     guessed tokens of one draft tree
    vocab     rows of the output head
    heads, head_dim, context   attention heads, their width, cached positions
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from outdraft.errors import DrafterError

Origin = Literal["drafted", "corrected", "bonus", "plain"]
"""Where a committed token came from: an accepted guess, the target's token in place of a wrong
guess, the extra token after a fully accepted path, or a step in which nothing was drafted."""

FinishReason = Literal["stop", "length", "cancelled", "blocked", "error"]
"""Why a request ended: an end token, a stop string or rule, a length, the user's wish, settings
that together ruled out every token, such as a ban on all that a grammar allows, or an error in what
it brought along, such as a processor of its own."""

NO_TOKEN = -1
"""What the target writes where nothing is allowed."""


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Guesses for the tokens that follow one sequence's root.

    Node `i` guesses `token_ids[i]` after its parent `parents[i]`; `-1` is the root. Parents stand
    before their children, and siblings carry different tokens:

            root ──▶ 0 ──▶ 1 ──▶ 2        token_ids = (a, b, c, x)
              └────▶ 3                    parents   = (-1, 0, 1, -1)

    Args:
        acceptance: for each node, the estimated probability in (0, 1] that it is accepted given
            that its parent was.
        drafter: name of the method that guessed.
        scores: for each node, what the method knows of it, as the drafter's `score_names` say;
            empty if it knows nothing.

    Raises:
        DrafterError: lengths differ, a parent does not stand before its child, siblings repeat
            a token, or an acceptance lies outside (0, 1].
    """

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    acceptance: tuple[float, ...] = ()
    drafter: str = "none"
    scores: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        sizes = (len(self.token_ids), len(self.parents), len(self.acceptance))
        if self.scores and len(self.scores) != sizes[0]:
            raise DrafterError(
                f"drafter {self.drafter!r}: {len(self.scores)} scores for {sizes[0]} tokens; "
                "give one per node, or none at all"
            )
        if len(set(sizes)) != 1:
            raise DrafterError(
                f"drafter {self.drafter!r}: {sizes[0]} tokens, {sizes[1]} parents, "
                f"{sizes[2]} acceptances; a tree needs one of each per node"
            )
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise DrafterError(
                    f"drafter {self.drafter!r}: node {node} has parent {parent}; "
                    "a parent stands before its child, and the root is -1"
                )
        if len(set(zip(self.parents, self.token_ids, strict=True))) != len(self.parents):
            raise DrafterError(
                f"drafter {self.drafter!r}: two siblings guess the same token; merge them"
            )
        for node, acceptance in enumerate(self.acceptance):
            if not 0.0 < acceptance <= 1.0:
                raise DrafterError(
                    f"drafter {self.drafter!r}: node {node} has acceptance {acceptance}; "
                    "it must lie in (0, 1]"
                )

    @classmethod
    def chain(
        cls, token_ids: Seq[int], acceptance: float | Seq[float] = 0.8, drafter: str = "none"
    ) -> DraftTree:
        """A tree without branches: each node is the only child of the one before it."""
        if isinstance(acceptance, int | float):
            acceptance = (float(acceptance),) * len(token_ids)
        parents = range(-1, len(token_ids) - 1)
        return cls(tuple(token_ids), tuple(parents), tuple(acceptance), drafter)

    def __len__(self) -> int:
        return len(self.token_ids)

    def depths(self) -> list[int]:
        """Distance of each node from the root: 1 for the root's children."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    def path_probs(self) -> list[float]:
        """Estimated probability that each node is accepted: the product down to it."""
        probs: list[float] = []
        for parent, acceptance in zip(self.parents, self.acceptance, strict=True):
            probs.append(acceptance if parent < 0 else probs[parent] * acceptance)
        return probs


@dataclass(frozen=True, slots=True)
class Rows:
    """What the target reads in one pass.

    Row `i` of a sequence sees the committed context and, among the pass's own rows, exactly those
    `j` with `ancestors[seq, i, j]` (itself included).

    Args:
        row_lens: real rows of each sequence; rows behind them are padding nobody looks at.
    """

    token_ids: Int[Tensor, "seqs rows"]
    position_ids: Int[Tensor, "seqs rows"]
    ancestors: Bool[Tensor, "seqs rows rows"]
    row_lens: tuple[int, ...]

    @property
    def num_seqs(self) -> int:
        return self.token_ids.shape[0]

    @property
    def num_rows(self) -> int:
        """Rows per sequence, padding included."""
        return self.token_ids.shape[1]

    @classmethod
    def chain(cls, token_ids: Seq[int], start: int, device: torch.device) -> Rows:
        """One sequence's consecutive tokens from position `start` on, each seeing those before."""
        num_rows = len(token_ids)
        return cls(
            token_ids=torch.tensor([list(token_ids)], device=device),
            position_ids=torch.arange(start, start + num_rows, device=device)[None],
            ancestors=torch.ones(1, num_rows, num_rows, dtype=torch.bool, device=device).tril_(),
            row_lens=(num_rows,),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows found worth their time.

    Args:
        trees: per sequence, the nodes that survived the cut; node `i` is row `i + 1`, row 0 is
            the root.
        rows: the same as the tensors of one target pass.
    """

    trees: tuple[DraftTree, ...]
    rows: Rows


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the target found a token (natural logarithms).

    Args:
        logprob: as the model says, before any processing.
        processed_logprob: after all processing, in what the token was drawn from; at temperature
            0, after the processors. A prompt's tokens have none.
        top: the likeliest tokens before processing and their log-probabilities, likeliest first.
    """

    token_id: int
    logprob: float
    processed_logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target says of one sequence's draft.

    Args:
        path: rows the target agrees with, from the root (always row 0) downwards.
        token_ids: the tokens of `path` after the root, then the target's own next token; as many
            as `path` has rows, one less where nothing is allowed next.
        origin: of that last token: it replaced a wrong guess, came on top of a fully accepted
            path, or nothing had been drafted.
        judged: for depth 1, 2, ...: how many guesses had an accepted parent.
        logprobs: of `token_ids`, where the request wants them.
    """

    path: tuple[int, ...]
    token_ids: tuple[int, ...]
    origin: Origin
    judged: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def is_blocked(self) -> bool:
        """Whether nothing is allowed behind its tokens."""
        return len(self.token_ids) < len(self.path)


@dataclass(frozen=True, slots=True)
class Commit:
    """What one step added to one sequence, for good.

    Args:
        request_id: whose.
        token_ids: the new tokens, cut behind the first one that ended the request; none where the
            step found that nothing is allowed any more.
        origins: where each came from.
        text: the piece of text that these tokens complete; may be empty.
        finish_reason: set by the step that ended the request.
        logprobs: of the tokens, where the request wants them.
    """

    request_id: int
    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    text: str = ""
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a drafter may guess in this step.

    Args:
        max_nodes: per sequence; a drafter may return fewer, and what is over is cut.
        max_depths: per sequence, the longest path that could still be committed.
        min_level_tokens: tokens that another level of drafting has to bring in, by the acceptances
            that the drafter states and for all sequences together: the tokens per second that are
            written now, times what a level was measured to take. For drafters that pay level by
            level, such as a draft model's passes; 0 where nothing is priced, and infinite for a
            mere probe.
        min_path_prob: that a guess and all before it are accepted; less likely ones would not be
            worth their rows here, and need not be made.
    """

    max_nodes: int
    max_depths: tuple[int, ...] = field(default=())
    min_level_tokens: float = 0.0
    min_path_prob: float = 0.0
