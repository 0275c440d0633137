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

from torch import Tensor

from outdraft.errors import DrafterError
from outdraft.interfaces import Drafter
from outdraft.plan.blend import Blend, blend
from outdraft.plan.budget import choose_nodes
from outdraft.plan.calibration import Calibrator
from outdraft.plan.cost_model import CostModel, PassSize
from outdraft.plan.draft_cost import DraftCost
from outdraft.plan.forced import FORCED, add_forced
from outdraft.plan.gate import Gate
from outdraft.plan.offer import Draft, Offer, count, gains_of
from outdraft.plan.plain_check import PlainCheck
from outdraft.sequence import Sequence
from outdraft.types import Budget, Commit, DraftTree, Plan


class Pricing(ABC):
    """How much is drafted."""

    def __init__(self) -> None:
        self._show_seconds: dict[str, float] = {}  # of this step, what drafters took to listen

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

    def show(
        self, drafter: Drafter, offer: Offer, plan: Plan, batch: Seq[Sequence], logits: Tensor
    ) -> None:
        """Lets those drafters that want it hear what the target said, if they are asked at all.

        Args:
            logits: `[seqs, rows, vocab]`.
        """
        self._show_seconds.clear()
        for part, draft in zip(drafter.parts, offer.drafts, strict=False):
            if not part.wants_logits:
                continue
            started_at = time.perf_counter()
            for i, (sequence, tree) in enumerate(zip(batch, plan.trees, strict=True)):
                if draft.trees[i] is not None or self._listens(part.name, sequence):
                    part.observe_logits(sequence, tree, logits[i, : len(tree) + 1])
            self._show_seconds[part.name] = time.perf_counter() - started_at

    def learn(
        self, offer: Offer, plan: Plan, batch: Seq[Sequence], commits: Seq[Commit], seconds: float
    ) -> None:
        """Takes in how a step went.

        Args:
            seconds: that it took, drafting left out.
        """
        for i, (sequence, commit) in enumerate(zip(batch, commits, strict=True)):
            count(offer, plan.trees[i], i, sequence, commit)
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
        some = [batch[i] for i in asked]
        depths = tuple(sequence.max_draft_depth for sequence in some)
        budget = Budget(
            max_nodes,
            depths,
            self._min_level_tokens(drafter.name, some),
            self._min_path_prob(batch),
        )
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
        pruned = (_pruned(tree, each) for tree, each in zip(trees, batch, strict=True))
        return Draft(drafter.name, tuple(pruned), seconds, drafter.levels)

    def _min_level_tokens(self, drafter: str, asked: Seq[Sequence]) -> float:
        """Tokens that another level of this drafter has to bring in for these sequences."""
        del drafter, asked
        return 0.0

    def _min_path_prob(self, batch: Seq[Sequence]) -> float:
        """How likely a guess of one of these sequences has to be for its row to pay."""
        del batch
        return 0.0

    @abstractmethod
    def _wants(self, drafter: str, sequence: Sequence) -> bool:
        """Whether a drafter is asked about a sequence in this step."""

    @abstractmethod
    def _listens(self, drafter: str, sequence: Sequence) -> bool:
        """Whether a drafter that was not asked about a sequence hears what the target said."""

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

    def _listens(self, drafter: str, sequence: Sequence) -> bool:
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


# Rows over which the price of a further one is taken.
_ROWS_AHEAD = 3
# Of what a guess has to be worth, what it has to be worth by its drafter's own word.
_CAUTION = 0.5
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
    plain_seconds: float = 0.0  # that its tokens would have taken plainly
    promises: dict[str, tuple[float, float]] = field(default_factory=dict)
    is_admitted: dict[str, bool] = field(default_factory=dict)  # whether a drafter is asked at all
    balances: dict[str, tuple[float, float]] = field(default_factory=dict)  # gain and seconds

    def kept(self, drafter: str) -> float:
        """The part of the tokens expected of a drafter here that came, as far as it was noted.

        The calibrator finds that out too, by the dozen of guesses, and dear ones cannot wait.
        """
        expected, accepted = self.promises.get(drafter, (0.0, 0.0))
        return min(1.0, (1.0 + accepted) / (1.0 + expected))

    def pay(self, drafter: str, gain: float, seconds: float) -> None:
        """Adds up what a dear drafter brought here, and what it took."""
        all_gain, all_seconds = self.balances.get(drafter, (0.0, 0.0))
        self.balances[drafter] = all_gain + gain, all_seconds + seconds

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
        super().__init__()
        self.costs = costs
        self.calibrator = calibrator or Calibrator()
        self._is_break = is_break
        self._draft_costs: dict[str, DraftCost] = {}
        self._standing: dict[str, Gate] = {}  # of dear drafters, whose steps are whole requests
        self._check = PlainCheck()
        self._requests: dict[int, _Request] = {}

    def finish(self, sequence: Sequence) -> None:
        request = self._requests.pop(sequence.request_id, None)
        if request is None:
            return
        for drafter, (gain, seconds) in request.balances.items():
            standing = self._standing.setdefault(drafter, Gate())
            standing.observe(gain, seconds, request.plain_seconds)

    def _wants(self, drafter: str, sequence: Sequence) -> bool:
        request = self._request(sequence)
        if drafter not in request.is_admitted:
            standing = self._standing.get(drafter)
            request.is_admitted[drafter] = standing is None or standing.wants()
        if not request.is_admitted[drafter]:
            return False
        return self._gate(drafter, sequence).wants(request.is_break)

    def _listens(self, drafter: str, sequence: Sequence) -> bool:
        return self._gate(drafter, sequence).listens

    def _min_level_tokens(self, drafter: str, asked: Seq[Sequence]) -> float:
        """The rate of tokens now, times what a level takes and the row that reads it.

        Stated acceptances are believed as far as they came true. A drafter whose levels were never
        timed, and one that is merely probed, buys none.
        """
        cost = self._draft_costs.get(drafter)
        gates = [self._gate(drafter, sequence) for sequence in asked]
        if cost is None or not any(gate.is_open for gate in gates):
            return math.inf
        plain, wide = self._plain_and_wide(asked)
        rate = sum(self._request(sequence).speedup for sequence in asked) / plain
        trusts = [self.calibrator.trust(drafter, each.settings.temperature) for each in asked]
        row_seconds = (wide - plain) / _ROWS_AHEAD
        return rate * (cost.per_level + row_seconds) / (sum(trusts) / len(asked))

    def _min_path_prob(self, batch: Seq[Sequence]) -> float:
        """What a further row of all sequences takes, as a share of the plain pass.

        It brings in at most one token for each, and has to bring in as many as a plain pass would
        in that time. Drafters may be righter than they say: half of it will do.
        """
        plain, wide = self._plain_and_wide(batch)
        return max(0.0, _CAUTION * (wide / plain - 1.0) / _ROWS_AHEAD)

    def _plain_and_wide(self, batch: Seq[Sequence]) -> tuple[float, float]:
        """Seconds of a pass without guesses, and of one with a few."""
        num_seqs, context = len(batch), _context(batch)
        plain, wide = (
            self.costs.seconds(PassSize(num_seqs, rows, context)) for rows in (1, 1 + _ROWS_AHEAD)
        )
        return plain, wide

    def _blend(self, trees: list[DraftTree], sequence: Sequence) -> Blend:
        temperature = sequence.settings.temperature
        probs = [
            self._doubted(tree, self.calibrator.acceptance(tree, temperature), sequence)
            for tree in trees
        ]
        return blend(trees, probs)

    def _doubted(self, tree: DraftTree, probs: list[float], sequence: Sequence) -> list[float]:
        """The probabilities, those behind the root as far as the drafter's promises were kept."""
        kept = self._request(sequence).kept(tree.drafter)
        pairs = zip(probs, tree.parents, strict=True)
        return [prob * kept if parent < 0 else prob for prob, parent in pairs]

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
            request = self._request(sequence)
            request.is_drafting = num_nodes > 0
            request.speedup += _SPEEDUP_WEIGHT * (choice.speedup - request.speedup)
        return 0 if self._check.is_running else choice.max_nodes

    def _learn(
        self, offer: Offer, plan: Plan, batch: Seq[Sequence], commits: Seq[Commit], seconds: float
    ) -> None:
        size = size_of_pass(plan, batch, commits)
        self._check.observe(self.costs, size, seconds)
        for draft in offer.drafts:
            self._time_levels(draft, batch)
        plain_pass = self.costs.seconds(PassSize(len(batch), 1, size.context))
        plain_seconds = plain_pass / len(batch)
        seconds_each = [self._seconds_each(draft) for draft in offer.drafts]
        for i, (sequence, commit) in enumerate(zip(batch, commits, strict=True)):
            # As a batch would have gone on: all its sequences by one token for each plain pass.
            sequence.stats.expected_plain_seconds += plain_pass * len(commit.token_ids)
            request = self._request(sequence)
            request.plain_seconds += plain_seconds * len(commit.token_ids)
            request.is_break = any(map(self._is_break, commit.token_ids))
            gains = gains_of(offer.blends[i], plan.trees[i], commit)
            temperature = sequence.settings.temperature
            for draft, own_seconds in zip(offer.drafts, seconds_each, strict=True):
                tree = draft.trees[i]
                if tree is None or draft.drafter == FORCED:
                    continue  # what is forced is certain, and has nothing to learn
                self.calibrator.observe(tree, temperature, commit.token_ids)
                expected, accepted = gains.get(draft.drafter, (0.0, 0))
                gain = expected * plain_seconds
                if draft.levels is not None:  # dear: a promise that did not come true counts less
                    request.note(draft.drafter, expected, accepted)
                    gain *= request.kept(draft.drafter)
                    request.pay(draft.drafter, gain, own_seconds)
                gate = self._gate(draft.drafter, sequence)
                # At first it read the whole prompt, which says little of the next proposals.
                judged_seconds = min(own_seconds, plain_seconds) if gate.is_new else own_seconds
                gate.observe(gain, judged_seconds, plain_seconds)

    def _seconds_each(self, draft: Draft) -> float:
        """What a proposal took, and listening to the target, for each sequence asked about."""
        num_asked = sum(tree is not None for tree in draft.trees)
        seconds = draft.seconds + self._show_seconds.get(draft.drafter, 0.0)
        return seconds / num_asked if num_asked else 0.0

    def _time_levels(self, draft: Draft, batch: Seq[Sequence]) -> None:
        """Of a proposal that had nothing to catch up with."""
        if draft.levels is None:
            return
        gates = [
            self._gate(draft.drafter, sequence)
            for sequence, tree in zip(batch, draft.trees, strict=True)
            if tree is not None
        ]
        if gates and all(gate.is_steady for gate in gates):
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


def _pruned(tree: DraftTree | None, sequence: Sequence) -> DraftTree | None:
    """Without guesses that the sequence's grammar forbids: they would cost rows, and mislead."""
    return tree if tree is None or sequence.matcher is None else sequence.matcher.prune(tree)


def _trees_for(drafts: Seq[Draft], seq_idx: int) -> list[DraftTree]:
    trees = (draft.trees[seq_idx] for draft in drafts)
    return [tree for tree in trees if tree is not None]


def _context(batch: Seq[Sequence]) -> int:
    return max(sequence.root_position for sequence in batch)
