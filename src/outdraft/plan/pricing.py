"""Which drafters are asked in a step, and how many of their guesses are read.

        ask ──▶ trees of each drafter ──▶ merge ──▶ one tree per sequence, and a width ──▶ make_plan
         ▲                                                                                    │
         └── learn ◀── the tokens that were written, and what the step took ◀── verify ◀──────┘

`Unpriced` asks everybody and reads as much as it may: what tests of drafters and exactness want.
`Priced` reads as many guesses as bring the most tokens per second on this machine, none if none
does, and asks a drafter whose guesses do not bring in its own time less and less.

Nothing here can change a text: it decides what is read, and never what is written.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from outdraft.errors import DrafterError
from outdraft.interfaces import Drafter
from outdraft.plan.blend import Blend, blend
from outdraft.plan.budget import choose_nodes
from outdraft.plan.calibration import Calibrator, judged_nodes
from outdraft.plan.cost_model import CostModel, PassSize
from outdraft.plan.forced import FORCED, add_forced
from outdraft.plan.gate import Gate
from outdraft.sequence import Sequence
from outdraft.stats import DrafterStats
from outdraft.types import Budget, Commit, DraftTree, Plan


@dataclass(frozen=True, slots=True)
class Draft:
    """What one drafter said in a step.

    Args:
        trees: one for each sequence of the batch; `None` where it was not asked.
    """

    drafter: str
    trees: tuple[DraftTree | None, ...]
    seconds: float


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


class Pricing(ABC):
    """How much is drafted."""

    def ask(self, drafter: Drafter, batch: Seq[Sequence], max_nodes: int) -> Offer:
        """The guesses of a drafter, or of all its parts, and how many of them to read."""
        drafts = tuple(self._ask_one(part, batch, max_nodes) for part in drafter.parts)
        blends = [self._blend(_trees_for(drafts, i), each) for i, each in enumerate(batch)]
        if not drafter.is_plain and any(sequence.matcher is not None for sequence in batch):
            started_at = time.perf_counter()
            blends = [add_forced(*each, max_nodes) for each in zip(blends, batch, strict=True)]
            trees = (
                None if sequence.matcher is None else each.tree
                for each, sequence in zip(blends, batch, strict=True)
            )
            drafts += (Draft(FORCED, tuple(trees), time.perf_counter() - started_at),)
        return Offer(drafts, tuple(blends), self._width(drafts, blends, batch, max_nodes))

    def learn(
        self, offer: Offer, plan: Plan, batch: Seq[Sequence], commits: Seq[Commit], seconds: float
    ) -> None:
        """Takes in how a step went.

        Args:
            seconds: that it took, drafting left out.
        """
        for i, (sequence, commit) in enumerate(zip(batch, commits, strict=True)):
            _count(offer, plan.trees[i], i, sequence, commit)
        self._learn(offer, plan, batch, commits, seconds)

    def finish(self, sequence: Sequence) -> None:
        """Forgets a request that ended."""
        del sequence

    def _ask_one(self, drafter: Drafter, batch: Seq[Sequence], max_nodes: int) -> Draft:
        asked = [
            i
            for i, sequence in enumerate(batch)
            if sequence.stats.drafting_off_reason is None and self._wants(drafter.name, sequence)
        ]
        trees: list[DraftTree | None] = [None] * len(batch)
        if not asked:
            return Draft(drafter.name, tuple(trees), 0.0)
        started_at = time.perf_counter()
        depths = tuple(batch[i].max_draft_depth for i in asked)
        proposed = drafter.propose([batch[i] for i in asked], Budget(max_nodes, depths))
        if len(proposed) != len(asked):
            raise DrafterError(
                f"drafter {drafter.name!r} made {len(proposed)} drafts for {len(asked)} sequences; "
                "it has to make one for each"
            )
        for i, tree in zip(asked, proposed, strict=True):
            # Whoever was asked answers for a tree, and is paid for it, whatever name it bears.
            is_named = tree.drafter == drafter.name
            trees[i] = tree if is_named else replace(tree, drafter=drafter.name)
        seconds = time.perf_counter() - started_at
        pruned = (_pruned(tree, each) for tree, each in zip(trees, batch, strict=True))
        return Draft(drafter.name, tuple(pruned), seconds)

    @abstractmethod
    def _wants(self, drafter: str, sequence: Sequence) -> bool:
        """Whether a drafter is asked about a sequence in this step."""

    @abstractmethod
    def _blend(self, trees: list[DraftTree], sequence: Sequence) -> Blend:
        """Merges the drafts for one sequence."""

    @abstractmethod
    def _width(
        self, drafts: Seq[Draft], blends: Seq[Blend], batch: Seq[Sequence], max_nodes: int
    ) -> int:
        """How many guesses of each sequence are worth reading, at most."""

    @abstractmethod
    def _learn(
        self, offer: Offer, plan: Plan, batch: Seq[Sequence], commits: Seq[Commit], seconds: float
    ) -> None:
        """What this way of pricing learns beyond the statistics."""


class Unpriced(Pricing):
    """Everybody is asked, and as many guesses are read as may be."""

    def _wants(self, drafter: str, sequence: Sequence) -> bool:
        del drafter, sequence
        return True

    def _blend(self, trees: list[DraftTree], sequence: Sequence) -> Blend:
        del sequence
        return _as_stated(trees)

    def _width(
        self, drafts: Seq[Draft], blends: Seq[Blend], batch: Seq[Sequence], max_nodes: int
    ) -> int:
        del drafts, blends, batch
        return max_nodes

    def _learn(
        self, offer: Offer, plan: Plan, batch: Seq[Sequence], commits: Seq[Commit], seconds: float
    ) -> None:
        del offer, plan, batch, commits, seconds


@dataclass
class _Request:
    """What is remembered of a request between its steps."""

    gates: dict[str, Gate] = field(default_factory=dict)
    is_drafting: bool = False


class Priced(Pricing):
    """As many guesses are read as bring the most tokens per second.

    Args:
        costs: of the target's passes on this machine; kept up to date from every step.
        calibrator: what guesses are worth; kept up to date too.
    """

    def __init__(self, costs: CostModel, calibrator: Calibrator | None = None) -> None:
        self.costs = costs
        self.calibrator = calibrator or Calibrator()
        self._requests: dict[int, _Request] = {}

    def finish(self, sequence: Sequence) -> None:
        self._requests.pop(sequence.request_id, None)

    def _wants(self, drafter: str, sequence: Sequence) -> bool:
        return self._gate(drafter, sequence).wants()

    def _blend(self, trees: list[DraftTree], sequence: Sequence) -> Blend:
        temperature = sequence.settings.temperature
        return blend(trees, [self.calibrator.acceptance(tree, temperature) for tree in trees])

    def _width(
        self, drafts: Seq[Draft], blends: Seq[Blend], batch: Seq[Sequence], max_nodes: int
    ) -> int:
        num_seqs, context = len(batch), _context(batch)
        choice = choose_nodes(
            [each.tree for each in blends],
            [sequence.max_draft_depth for sequence in batch],
            max_nodes,
            pass_seconds=lambda rows: self.costs.seconds(PassSize(num_seqs, rows, context)),
            draft_seconds=sum(draft.seconds for draft in drafts),
            is_drafting=any(self._request(sequence).is_drafting for sequence in batch),
        )
        for sequence, num_nodes in zip(batch, choice.num_nodes, strict=True):
            self._request(sequence).is_drafting = num_nodes > 0
        return choice.max_nodes

    def _learn(
        self, offer: Offer, plan: Plan, batch: Seq[Sequence], commits: Seq[Commit], seconds: float
    ) -> None:
        # The batch was read before its sequences moved on.
        context = max(
            sequence.root_position - len(commit.token_ids)
            for sequence, commit in zip(batch, commits, strict=True)
        )
        size = PassSize(len(batch), plan.rows.num_rows, context)
        self.costs.observe(size, seconds)
        plain_seconds = self.costs.seconds(PassSize(len(batch), 1, context)) / len(batch)
        for i, (sequence, commit) in enumerate(zip(batch, commits, strict=True)):
            # As a batch would have gone on: all its sequences by one token for each plain pass.
            plain_pass = plain_seconds * len(batch)
            sequence.stats.expected_plain_seconds += plain_pass * len(commit.token_ids)
            gains = _expected_gains(offer.blends[i], plan.trees[i])
            temperature = sequence.settings.temperature
            for draft in offer.drafts:
                tree = draft.trees[i]
                if tree is None or draft.drafter == FORCED:
                    continue  # what is forced is certain, and has nothing to learn
                self.calibrator.observe(tree, temperature, commit.token_ids)
                gain = gains.get(draft.drafter, 0.0) * plain_seconds
                num_asked = sum(other is not None for other in draft.trees)
                self._gate(draft.drafter, sequence).observe(gain, draft.seconds / num_asked)

    def _gate(self, drafter: str, sequence: Sequence) -> Gate:
        return self._request(sequence).gates.setdefault(drafter, Gate())

    def _request(self, sequence: Sequence) -> _Request:
        return self._requests.setdefault(sequence.request_id, _Request())


def _as_stated(trees: list[DraftTree]) -> Blend:
    """The guesses with the probabilities that they came with; a single tree stays as it is."""
    some = [tree for tree in trees if tree]
    if len(some) > 1:
        return blend(some)
    tree = some[0] if some else DraftTree()
    return Blend(tree, ((tree.drafter,),) * len(tree))


def _pruned(tree: DraftTree | None, sequence: Sequence) -> DraftTree | None:
    """Without guesses that the sequence's grammar forbids: they would cost rows, and mislead."""
    return tree if tree is None or sequence.matcher is None else sequence.matcher.prune(tree)


def _trees_for(drafts: Seq[Draft], seq_idx: int) -> list[DraftTree]:
    trees = (draft.trees[seq_idx] for draft in drafts)
    return [tree for tree in trees if tree is not None]


def _context(batch: Seq[Sequence]) -> int:
    return max(sequence.root_position for sequence in batch)


def _expected_gains(merged: Blend, planned: DraftTree) -> dict[str, float]:
    """Per drafter, the tokens that were expected of its nodes among those planned.

    A node that several guessed counts for the first that was asked: the others added nothing.
    """
    gains: dict[str, float] = {}
    for sources, prob in zip(merged.sources_of(planned), planned.path_probs(), strict=True):
        gains[sources[0]] = gains.get(sources[0], 0.0) + prob
    return gains


def _count(
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
