"""Which drafters are asked in a step, and how many of their guesses are read.

        ask ──▶ trees of each drafter ──▶ merge ──▶ one tree per sequence, and a width ──▶ make_plan
         ▲                                                                                    │
         └── learn ◀── the tokens that were written, and what the step took ◀── verify ◀──────┘

`Unpriced` asks everybody and reads as much as it may: what tests of drafters and exactness want.
`Priced` reads as many guesses as bring the most tokens per second on this machine, none if none
does, and asks a drafter whose guesses do not bring in its own time less and less. Drafters that pay
level by level, as a draft model does, are told what another level has to bring in.

Nothing here can change a text: it decides what is read, and never what is written.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass, field, replace

from outdraft.errors import DrafterError
from outdraft.interfaces import Drafter
from outdraft.plan.blend import Blend, blend
from outdraft.plan.budget import Choice, choose_nodes
from outdraft.plan.calibration import Calibrator, judged_nodes
from outdraft.plan.cost_model import CostModel, PassSize
from outdraft.plan.draft_cost import DraftCost
from outdraft.plan.gate import Gate
from outdraft.plan.plain_check import PlainCheck
from outdraft.sequence import Sequence
from outdraft.stats import DrafterStats
from outdraft.types import Budget, Commit, DraftTree, Plan


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


class Pricing(ABC):
    """How much is drafted."""

    def ask(self, drafter: Drafter, batch: Seq[Sequence], max_nodes: int) -> Offer:
        """The guesses of a drafter, or of all its parts, and how many of them to read."""
        drafts = tuple(self._ask_one(part, batch, max_nodes) for part in drafter.parts)
        return self._offer(drafts, batch, max_nodes)

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
        asked = [i for i, sequence in enumerate(batch) if self._wants(drafter.name, sequence)]
        trees: list[DraftTree | None] = [None] * len(batch)
        if not asked:
            return Draft(drafter.name, tuple(trees), 0.0)
        some = [batch[i] for i in asked]
        depths = tuple(sequence.remaining - 1 for sequence in some)
        budget = Budget(max_nodes, depths, self._min_level_tokens(drafter.name, some))
        started_at = time.perf_counter()
        proposed = drafter.propose(some, budget)
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
        return Draft(drafter.name, tuple(trees), seconds, drafter.levels)

    def _min_level_tokens(self, drafter: str, asked: Seq[Sequence]) -> float:
        """Tokens that another level of this drafter has to bring in for these sequences."""
        del drafter, asked
        return 0.0

    @abstractmethod
    def _wants(self, drafter: str, sequence: Sequence) -> bool:
        """Whether a drafter is asked about a sequence in this step."""

    @abstractmethod
    def _offer(self, drafts: tuple[Draft, ...], batch: Seq[Sequence], max_nodes: int) -> Offer:
        """Merges drafts and decides how many guesses are read."""

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

    def _offer(self, drafts: tuple[Draft, ...], batch: Seq[Sequence], max_nodes: int) -> Offer:
        blends = tuple(_as_stated(_trees_for(drafts, i)) for i in range(len(batch)))
        return Offer(drafts, blends, max_nodes)

    def _learn(
        self, offer: Offer, plan: Plan, batch: Seq[Sequence], commits: Seq[Commit], seconds: float
    ) -> None:
        del offer, plan, batch, commits, seconds


# Rows over which the price of a further one is taken.
_ROWS_AHEAD = 3
# How much the last step weighs in what a request's steps are worth.
_SPEEDUP_WEIGHT = 0.25
# By this, what was promised counts less with each proposal.
_PROMISES_KEPT = 1.0 - 1.0 / 32.0


@dataclass
class _Request:
    """What is remembered of a request between its steps."""

    gates: dict[str, Gate] = field(default_factory=dict)
    is_drafting: bool = False
    is_break: bool = False  # whether the text has just begun a line or the like
    speedup: float = 1.0  # of its steps, as they were planned
    promises: dict[str, tuple[float, float]] = field(default_factory=dict)

    def kept(self, drafter: str) -> float:
        """The part of the tokens expected of a drafter here that came, as far as it was noted.

        The calibrator finds that out too, by the dozen of guesses, and dear ones cannot wait.
        """
        expected, accepted = self.promises.get(drafter, (0.0, 0.0))
        return min(1.0, (1.0 + accepted) / (1.0 + expected))

    def note(self, drafter: str, expected: float, accepted: int) -> None:
        """Takes in the tokens that were expected in a step, and that came."""
        all_expected, all_accepted = self.promises.get(drafter, (0.0, 0.0))
        all_expected = _PROMISES_KEPT * all_expected + expected
        all_accepted = _PROMISES_KEPT * all_accepted + accepted
        self.promises[drafter] = all_expected, all_accepted


class Priced(Pricing):
    """As many guesses are read as bring the most tokens per second.

    Args:
        costs: of the target's passes on this machine; kept up to date from every step.
        calibrator: what guesses are worth; kept up to date too.
        is_break: whether a token ends a line or the like; drafters are asked again sooner there.
    """

    def __init__(
        self,
        costs: CostModel,
        calibrator: Calibrator | None = None,
        *,
        is_break: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self.costs = costs
        self.calibrator = calibrator or Calibrator()
        self._is_break = is_break
        self._draft_costs: dict[str, DraftCost] = {}
        self._check = PlainCheck()
        self._requests: dict[int, _Request] = {}

    def finish(self, sequence: Sequence) -> None:
        self._requests.pop(sequence.request_id, None)

    def _wants(self, drafter: str, sequence: Sequence) -> bool:
        return self._gate(drafter, sequence).wants(self._request(sequence).is_break)

    def _min_level_tokens(self, drafter: str, asked: Seq[Sequence]) -> float:
        """The rate of tokens now, times what a level takes and the row that reads it.

        Stated acceptances are believed as far as they came true. A drafter whose levels were never
        timed, and one that is merely probed, buys none.
        """
        cost = self._draft_costs.get(drafter)
        gates = [self._gate(drafter, sequence) for sequence in asked]
        if cost is None or not any(gate.is_open for gate in gates):
            return math.inf
        num_seqs, context = len(asked), _context(asked)
        plain, wide = (
            self.costs.seconds(PassSize(num_seqs, rows, context)) for rows in (1, 1 + _ROWS_AHEAD)
        )
        rate = sum(self._request(sequence).speedup for sequence in asked) / plain
        trusts = [self.calibrator.trust(drafter, each.settings.temperature) for each in asked]
        row_seconds = (wide - plain) / _ROWS_AHEAD
        return rate * (cost.per_level + row_seconds) / (sum(trusts) / num_seqs)

    def _offer(self, drafts: tuple[Draft, ...], batch: Seq[Sequence], max_nodes: int) -> Offer:
        blends = []
        for i, sequence in enumerate(batch):
            trees = _trees_for(drafts, i)
            temperature = sequence.settings.temperature
            probs = [
                self._doubted(tree, self.calibrator.acceptance(tree, temperature), sequence)
                for tree in trees
            ]
            blends.append(blend(trees, probs))
        choice = self._choose(drafts, [each.tree for each in blends], batch, max_nodes)
        return Offer(drafts, tuple(blends), 0 if self._check.is_running else choice.max_nodes)

    def _doubted(self, tree: DraftTree, probs: list[float], sequence: Sequence) -> list[float]:
        """The probabilities, those behind the root as far as the drafter's promises were kept."""
        kept = self._request(sequence).kept(tree.drafter)
        pairs = zip(probs, tree.parents, strict=True)
        return [prob * kept if parent < 0 else prob for prob, parent in pairs]

    def _choose(
        self,
        drafts: tuple[Draft, ...],
        trees: list[DraftTree],
        batch: Seq[Sequence],
        max_nodes: int,
    ) -> Choice:
        num_seqs, context = len(batch), _context(batch)
        choice = choose_nodes(
            trees,
            [sequence.remaining - 1 for sequence in batch],
            max_nodes,
            pass_seconds=lambda rows: self.costs.seconds(PassSize(num_seqs, rows, context)),
            draft_seconds=sum(draft.seconds for draft in drafts),
            is_drafting=any(self._request(sequence).is_drafting for sequence in batch),
        )
        for sequence, num_nodes in zip(batch, choice.num_nodes, strict=True):
            request = self._request(sequence)
            request.is_drafting = num_nodes > 0
            request.speedup += _SPEEDUP_WEIGHT * (choice.speedup - request.speedup)
        return choice

    def _learn(
        self, offer: Offer, plan: Plan, batch: Seq[Sequence], commits: Seq[Commit], seconds: float
    ) -> None:
        size = size_of_pass(plan, batch, commits)
        self._check.observe(self.costs, size, seconds)
        for draft in offer.drafts:
            self._time_levels(draft, batch)
        plain_seconds = self.costs.seconds(PassSize(len(batch), 1, size.context)) / len(batch)
        for i, (sequence, commit) in enumerate(zip(batch, commits, strict=True)):
            # As a batch would have gone on: all its sequences by one token for each plain pass.
            plain_pass = plain_seconds * len(batch)
            sequence.stats.expected_plain_seconds += plain_pass * len(commit.token_ids)
            self._request(sequence).is_break = any(map(self._is_break, commit.token_ids))
            gains = _gains(offer.blends[i], plan.trees[i], commit)
            temperature = sequence.settings.temperature
            for draft in offer.drafts:
                tree = draft.trees[i]
                if tree is None:
                    continue
                self.calibrator.observe(tree, temperature, commit.token_ids)
                expected, accepted = gains.get(draft.drafter, (0.0, 0))
                gain = expected * plain_seconds
                if draft.levels is not None:  # dear: a promise that did not come true counts less
                    request = self._request(sequence)
                    request.note(draft.drafter, expected, accepted)
                    gain *= request.kept(draft.drafter)
                num_asked = sum(other is not None for other in draft.trees)
                gate, own_seconds = self._gate(draft.drafter, sequence), draft.seconds / num_asked
                if gate.is_new:  # it read the whole prompt, which says little of the next proposals
                    own_seconds = min(own_seconds, plain_seconds)
                gate.observe(gain, own_seconds, plain_seconds)

    def _time_levels(self, draft: Draft, batch: Seq[Sequence]) -> None:
        """Of a proposal that had nothing to catch up with."""
        gates = [
            self._gate(draft.drafter, sequence)
            for sequence, tree in zip(batch, draft.trees, strict=True)
            if tree is not None
        ]
        if draft.levels is not None and gates and all(gate.is_steady for gate in gates):
            cost = self._draft_costs.setdefault(draft.drafter, DraftCost())
            cost.observe(draft.levels, draft.seconds)

    def _gate(self, drafter: str, sequence: Sequence) -> Gate:
        return self._request(sequence).gates.setdefault(drafter, Gate())

    def _request(self, sequence: Sequence) -> _Request:
        return self._requests.setdefault(sequence.request_id, _Request())


def size_of_pass(plan: Plan, batch: Seq[Sequence], commits: Seq[Commit]) -> PassSize:
    """What the target read in a step that has been committed."""
    context = max(
        sequence.root_position - len(commit.token_ids)
        for sequence, commit in zip(batch, commits, strict=True)
    )
    return PassSize(len(batch), plan.rows.num_rows, context)


def _as_stated(trees: list[DraftTree]) -> Blend:
    """The guesses with the probabilities that they came with; a single tree stays as it is."""
    some = [tree for tree in trees if tree]
    if len(some) > 1:
        return blend(some)
    tree = some[0] if some else DraftTree()
    return Blend(tree, ((tree.drafter,),) * len(tree))


def _trees_for(drafts: Seq[Draft], seq_idx: int) -> list[DraftTree]:
    trees = (draft.trees[seq_idx] for draft in drafts)
    return [tree for tree in trees if tree is not None]


def _context(batch: Seq[Sequence]) -> int:
    return max(sequence.root_position for sequence in batch)


def _gains(merged: Blend, planned: DraftTree, commit: Commit) -> dict[str, tuple[float, int]]:
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
