"""How many guesses are worth their time in the next pass; none is an answer too."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass

from outdraft.errors import DrafterError
from outdraft.types import DraftTree

# Drafting has to promise so much more tokens per second than plain decoding before it begins, and
# so much to go on. Estimates are off by as much, and the plain path is the one without risk.
MARGIN_TO_BEGIN = 0.05
MARGIN_TO_GO_ON = 0.02


@dataclass(frozen=True, slots=True)
class Choice:
    """The best plan found.

    Args:
        max_nodes: guesses of each sequence; what `make_plan` takes. 0 is the plain path.
        num_nodes: guesses of each sequence that has fewer or as many.
        expected_tokens: of the whole batch, in the next step.
        seconds: of that step, with what is spent outside the pass.
        plain_seconds: of a step without any drafting.
    """

    max_nodes: int
    num_nodes: tuple[int, ...]
    expected_tokens: float
    seconds: float
    plain_seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second: what a second spent on further guesses has to bring in."""
        return self.expected_tokens / self.seconds

    @property
    def speedup(self) -> float:
        """Expected, over plain decoding, the time for drafting included."""
        return self.rate * self.plain_seconds / len(self.num_nodes)


def choose_nodes(
    trees: Seq[DraftTree],
    max_depths: Seq[int],
    max_nodes: int,
    *,
    pass_seconds: Callable[[int], float],
    draft_seconds: float = 0.0,
    other_seconds: float = 0.0,
    is_drafting: bool = False,
) -> Choice:
    """The number of guesses per sequence that brings the most tokens per second.

    Maximises `(seqs + sum of the path probabilities read) / seconds of the step`. A pass is padded
    to its widest sequence, so what counts is the width: within it every sequence reads its
    likeliest nodes at no further cost. All widths are tried, whatever shape the costs have.

    The drafts are there when this is asked, so that their time is spent whatever is chosen: the
    margin is against a pass without guesses in this very step. Whether drafting pays at all is what
    `Choice.speedup` says.

    Args:
        trees: of each sequence; acceptances are probabilities of being accepted after the parent.
        max_depths: of each sequence, the longest path that could still be committed.
        max_nodes: guesses of each sequence at most.
        pass_seconds: of a pass by its rows per sequence, padding included: 1 is the plain pass.
        draft_seconds: that the drafts took.
        other_seconds: of a step, neither for drafts nor in the pass.
        is_drafting: whether guesses were read in the last step.

    Raises:
        DrafterError: there is not one depth per tree, or no tree at all.
    """
    if len(trees) != len(max_depths) or not trees:
        raise DrafterError(
            f"{len(trees)} drafts and {len(max_depths)} depths; need one of each for every sequence"
        )
    likeliest = [
        _likeliest_first(tree, max_depth)[:max_nodes]
        for tree, max_depth in zip(trees, max_depths, strict=True)
    ]
    plain_pass = pass_seconds(1)
    plain_rate = len(trees) / (plain_pass + draft_seconds + other_seconds)
    margin = MARGIN_TO_GO_ON if is_drafting else MARGIN_TO_BEGIN
    best_width, best_tokens, best_seconds = 0, float(len(trees)), plain_pass
    best_rate = plain_rate * (1.0 + margin)
    tokens = best_tokens
    for width in range(1, max(map(len, likeliest)) + 1):
        tokens += sum(probs[width - 1] for probs in likeliest if len(probs) >= width)
        seconds = pass_seconds(1 + width)
        rate = tokens / (seconds + draft_seconds + other_seconds)
        if rate > best_rate:
            best_width, best_tokens, best_seconds, best_rate = width, tokens, seconds, rate
    return Choice(
        max_nodes=best_width,
        num_nodes=tuple(min(best_width, len(probs)) for probs in likeliest),
        expected_tokens=best_tokens,
        seconds=best_seconds + draft_seconds + other_seconds,
        plain_seconds=plain_pass + other_seconds,
    )


def _likeliest_first(tree: DraftTree, max_depth: int) -> list[float]:
    """Path probabilities of the nodes that may be committed, falling."""
    if not tree:
        return []
    pairs = zip(tree.path_probs(), tree.depths(), strict=True)
    return sorted((prob for prob, depth in pairs if depth <= max_depth), reverse=True)
