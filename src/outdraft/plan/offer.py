"""What drafters said in a step, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from outdraft.plan.blend import Blend
from outdraft.plan.calibration import judged_nodes
from outdraft.sequence import Sequence
from outdraft.stats import DrafterStats
from outdraft.types import Commit, DraftTree


@dataclass(frozen=True, slots=True)
class Draft:
    """What one drafter said in a step.

    Args:
        trees: one for each sequence of the batch; `None` where it was not asked.
        levels: that it bought one after the other; `None` where they cost nothing.
    """

    drafter: str
    trees: tuple[DraftTree | None, ...]
    seconds: float
    levels: int | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """All guesses of a step.

    Args:
        blends: for each sequence, the merged guesses of all drafters.
        width: guesses of each sequence that are worth reading, at most.
    """

    drafts: tuple[Draft, ...]
    blends: tuple[Blend, ...]
    width: int

    @property
    def trees(self) -> list[DraftTree]:
        return [blend.tree for blend in self.blends]


def gains_of(merged: Blend, planned: DraftTree, commit: Commit) -> dict[str, tuple[float, int]]:
    """Per drafter, the tokens that were expected of its nodes among those planned, and that came.

    A node that several guessed counts for the first that was asked: the others added nothing.
    """
    gains: dict[str, tuple[float, int]] = {}
    accepted = {node for node, _, is_right in judged_nodes(planned, commit.token_ids) if is_right}
    probs = planned.path_probs()
    for node, sources in enumerate(merged.sources_of(planned)):
        expected, num_accepted = gains.get(sources[0], (0.0, 0))
        gains[sources[0]] = expected + probs[node], num_accepted + (node in accepted)
    return gains


def count(
    offer: Offer, planned: DraftTree, seq_idx: int, sequence: Sequence, commit: Commit
) -> None:
    """Statistics of each drafter, and of what was expected of the plan."""
    stats = sequence.stats
    stats.expected_tokens += 1.0 + sum(planned.path_probs())
    sources = offer.blends[seq_idx].sources_of(planned)
    judged = {each.node: each.is_accepted for each in judged_nodes(planned, commit.token_ids)}
    for draft in offer.drafts:
        record = stats.drafters.setdefault(draft.drafter, DrafterStats())
        if draft.trees[seq_idx] is None:
            continue
        own = [node for node, names in enumerate(sources) if draft.drafter in names]
        record.asked += 1
        record.drafted += len(own)
        record.judged += sum(node in judged for node in own)
        record.accepted += sum(judged.get(node, False) for node in own)
        record.seconds += draft.seconds
