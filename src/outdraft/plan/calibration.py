"""What a drafter's guesses are worth: how likely a node is accepted once its parent was.

Every node states an acceptance of its own, which its drafter made up. Here it is put right twice:

- by a **prior** that ships with outdraft, three numbers for each drafter, fitted to answers of the
  default model: `odds = e^offset × stated odds^slope × depth^deeper`. Deeper nodes are accepted
  more often than their stated acceptance says, since their parents having been accepted speaks for
  the whole path. A drafter that is not in the table is taken at its word.
- by **counts** of judged and accepted nodes on this machine: of all of a drafter's last few hundred
  nodes, which follow what is being written, and of those alike in stated acceptance, depth and
  first score, which forget slowly. Either moves a node's odds by as much as such nodes were
  accepted more or less often than expected, once there were a few dozen of them. Greedy, cool and
  warm requests are kept apart.

Held against greedy answers that were not fitted, 10,848 judged nodes, priors lower the logarithmic
loss by 14 % (prompt lookup, layer skipping), 4 % (suffix) and 1 % (recycling, which states the
target's own probabilities); held against 900 of other prompts than those fitted, that of
lookahead lowers it by 6 % (greedy), and that of prediction by 16 % (predictions with a tenth of
their tokens changed, 160 nodes). Datastores and draft models have none: what they are worth depends
on the corpus, and on the model. Scores beyond the stated acceptance tell a prior nothing more, and
counts a little; they are there for drafters whose acceptance says less than their scores.

A node is judged if its parent was accepted, whether or not the target read it: what the target
wrote there is known. So drafters can be judged that were merely asked, plain steps included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from outdraft.errors import SettingsError
from outdraft.types import DraftTree

# Counts are believed as much as what was expected once they are of so many judged nodes.
_EXPECTED_NODES = 32.0
# How many nodes back counts reach: those of all of a drafter's nodes, and those of nodes alike.
_FORM_NODES = 256.0
_ALIKE_NODES = 1024.0
# Odds beyond these are not told apart: one node in a hundred is right, or wrong.
_MAX_LOG_ODDS = math.log(99.0)
# Nothing is certain either way.
_MAX_ACCEPTANCE = 0.995
_MAX_DEPTH_BUCKET = 3
_WARMTHS = _GREEDY, _COOL, _WARM = range(3)
_WARM_FROM = 0.75
_NUM_BINS = 10


class Prior(NamedTuple):
    """How stated odds become likely ones: `e^offset × odds^slope × depth^deeper`."""

    offset: float = 0.0
    slope: float = 1.0
    deeper: float = 0.0

    def log_odds(self, stated_log_odds: float, depth: int) -> float:
        """The logarithm of a node's odds."""
        return self.offset + self.slope * stated_log_odds + self.deeper * math.log(depth)


AT_ITS_WORD = Prior()

GREEDY_PRIORS = MappingProxyType(
    {
        "suffix": Prior(0.08, 1.48, -0.08),
        "prompt-lookup": Prior(-0.98, 1.26, 1.14),
        "recycling": Prior(-0.19, 1.02, 0.48),
        "layer-skip": Prior(1.35, 1.58),
        "lookahead": Prior(-0.23, 0.80, 0.93),
        "prediction": Prior(0.42, 0.34, 0.29),
    }
)
SAMPLED_PRIORS = MappingProxyType(
    {
        "suffix": Prior(-0.16, 1.29, -0.16),
        "prompt-lookup": Prior(-1.07, 0.69, 1.04),
        "recycling": Prior(-0.36, 0.97, 0.45),
        "layer-skip": Prior(0.67, 1.27),
        "lookahead": Prior(-0.63, 0.93, 0.17),
    }
)
"""Fitted at temperature 0.8."""


@dataclass(slots=True)
class _Bucket:
    """Judged nodes that are alike, older ones counting less.

    Args:
        memory: nodes after which an older one counts e times less.
        expected: sum of the probabilities that were expected of them.
        shift: what is added to the logarithm of a node's odds.
    """

    memory: float
    judged: float = 0.0
    accepted: float = 0.0
    expected: float = 0.0
    shift: float = 0.0

    def count(self, expected: float, is_accepted: bool) -> None:
        kept = 1.0 - 1.0 / self.memory
        self.judged = self.judged * kept + 1.0
        self.accepted = self.accepted * kept + is_accepted
        self.expected = self.expected * kept + expected
        self._shift()

    def to_json(self) -> list[float]:
        return [self.judged, self.accepted, self.expected]

    @classmethod
    def from_json(cls, memory: float, counts: Seq[float]) -> _Bucket:
        """The reverse.

        Raises:
            ValueError: there cannot be such counts.
        """
        judged, accepted, expected = map(float, counts)
        if not (0.0 <= accepted <= judged < math.inf and 0.0 < expected <= judged):
            raise ValueError(f"{accepted} of {judged} nodes accepted, {expected} expected")
        bucket = cls(memory, judged, accepted, expected)
        bucket._shift()
        return bucket

    def _shift(self) -> None:
        mean = self.expected / self.judged
        share = (self.accepted + _EXPECTED_NODES * mean) / (self.judged + _EXPECTED_NODES)
        self.shift = _log_odds(share) - _log_odds(mean)


Key = tuple[int, int, int]
"""Of nodes that are alike: buckets of stated acceptance, depth and first score."""


class _Record:
    """What is known of one method at similar temperatures."""

    def __init__(self, prior: Prior) -> None:
        self._prior = prior
        self._form = _Bucket(_FORM_NODES)
        self._alike: dict[Key, _Bucket] = {}

    @property
    def trust(self) -> float:
        return (self._form.accepted + 1.0) / (self._form.expected + 2.0)

    @property
    def is_counted(self) -> bool:
        return self._form.judged > 0.0

    def probability(self, stated: float, depth: int, score: tuple[float, ...]) -> float:
        stated_log_odds = _log_odds(stated)
        bucket = self._alike.get(_key(stated_log_odds, depth, score))
        log_odds = self._prior.log_odds(stated_log_odds, depth) + self._form.shift
        return _probability(log_odds if bucket is None else log_odds + bucket.shift)

    def count(self, stated: float, depth: int, score: tuple[float, ...], is_accepted: bool) -> None:
        stated_log_odds = _log_odds(stated)
        log_odds = self._prior.log_odds(stated_log_odds, depth)
        key = _key(stated_log_odds, depth, score)
        bucket = self._alike.setdefault(key, _Bucket(_ALIKE_NODES))
        bucket.count(_probability(log_odds + self._form.shift), is_accepted)
        self._form.count(_probability(log_odds), is_accepted)

    def to_json(self) -> dict[str, Any]:
        alike = [[*key, *bucket.to_json()] for key, bucket in self._alike.items()]
        return {"form": self._form.to_json(), "alike": alike}

    def load(self, values: dict[str, Any]) -> None:
        """Takes over counts of an earlier run."""
        self._form = _Bucket.from_json(_FORM_NODES, values["form"])
        for stated, depth, score, *counts in values["alike"]:
            key = (int(stated), int(depth), int(score))
            self._alike[key] = _Bucket.from_json(_ALIKE_NODES, counts)


class Calibrator:
    """Turns what drafters say of their nodes into probabilities that mean the same for all."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, int], _Record] = {}
        self._reliability: dict[str, Reliability] = {}

    def acceptance(self, tree: DraftTree, temperature: float) -> list[float]:
        """Of each node, the probability that it is accepted given that its parent was.

        Siblings are judged one by one; `blend` sees to it that they do not sum up to more than 1.

        Args:
            tree: as its drafter made it.
            temperature: of the request; 0 is greedy.
        """
        probability = self._record(tree, temperature).probability
        scores = tree.scores or ((),) * len(tree)
        nodes = zip(tree.acceptance, tree.depths(), scores, strict=True)
        return [probability(stated, depth, score) for stated, depth, score in nodes]

    def trust(self, drafter: str, temperature: float) -> float:
        """How many of a drafter's guesses are accepted for each that was expected to be.

        Careful with those of whom little is known: it begins at a half.
        """
        return self._record_of(_method(drafter), _warmth(temperature)).trust

    def observe(self, tree: DraftTree, temperature: float, token_ids: Seq[int]) -> None:
        """Learns from what the target wrote in the place of a draft.

        Args:
            tree: as its drafter made it, nodes included that were not planned.
            token_ids: the step's new tokens, the target's own last one included.
        """
        record = self._record(tree, temperature)
        reliability = self._reliability.setdefault(_method(tree.drafter), Reliability())
        for node, depth, is_accepted in judged_nodes(tree, token_ids):
            stated = tree.acceptance[node]
            score = tree.scores[node] if tree.scores else ()
            reliability.count(record.probability(stated, depth, score), is_accepted)
            record.count(stated, depth, score, is_accepted)

    def reliability(self) -> dict[str, Reliability]:
        """Of each method, how its probabilities came true; each was given before its verdict."""
        return dict(self._reliability)

    def to_json(self) -> list[dict[str, Any]]:
        """All counts, for a later run to start from."""
        return [
            {"method": method, "warmth": warmth, **record.to_json()}
            for (method, warmth), record in self._records.items()
            if record.is_counted
        ]

    @classmethod
    def from_json(cls, values: Seq[dict[str, Any]]) -> Calibrator:
        """The reverse; how well probabilities came true is counted anew.

        Raises:
            SettingsError: that was not written by `to_json`.
        """
        calibrator = cls()
        try:
            for each in values:
                method, warmth = each["method"], each["warmth"]
                if not isinstance(method, str) or warmth not in _WARMTHS:
                    raise ValueError(f"method {method!r} at warmth {warmth!r}")
                calibrator._record_of(method, warmth).load(each)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise SettingsError(
                f"these are no counts of judged guesses ({error!r}); collect them anew"
            ) from error
        return calibrator

    def _record(self, tree: DraftTree, temperature: float) -> _Record:
        return self._record_of(_method(tree.drafter), _warmth(temperature))

    def _record_of(self, method: str, warmth: int) -> _Record:
        record = self._records.get((method, warmth))
        if record is None:
            priors = GREEDY_PRIORS if warmth == _GREEDY else SAMPLED_PRIORS
            prior = priors.get(method, AT_ITS_WORD)
            record = self._records[method, warmth] = _Record(prior)
        return record


class Judged(NamedTuple):
    """A node whose parent was accepted."""

    node: int
    depth: int
    is_accepted: bool


def judged_nodes(tree: DraftTree, token_ids: Seq[int]) -> list[Judged]:
    """The nodes of a draft on which the tokens that were written pass a verdict.

    At each depth these are the children of the node that the text ran through:

        written   a  b  x           judged   a: accepted, its sibling not; b: accepted; c: not
        draft     a ─▶ b ─▶ c
                  d ─▶ e            not      e, whose parent was not accepted
    """
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(node)
    judged = []
    last = -1
    for depth, token_id in enumerate(token_ids, start=1):
        accepted = None
        for node in children.get(last, ()):
            is_accepted = tree.token_ids[node] == token_id
            judged.append(Judged(node, depth, is_accepted))
            if is_accepted:
                accepted = node
        if accepted is None:
            break
        last = accepted
    return judged


@dataclass(slots=True)
class Bin:
    """Nodes of similar probability.

    Args:
        low, high: the bounds of their probabilities.
        expected: sum of their probabilities: how many should have been accepted.
    """

    low: float
    high: float
    judged: int = 0
    expected: float = 0.0
    accepted: int = 0


class Reliability:
    """Whether probabilities come true: of nodes given 0.7, seven in ten should be accepted."""

    def __init__(self) -> None:
        width = 1.0 / _NUM_BINS
        self.bins = [Bin(i * width, (i + 1) * width) for i in range(_NUM_BINS)]

    def count(self, predicted: float, is_accepted: bool) -> None:
        """Takes in a judged node."""
        found = self.bins[min(int(predicted * _NUM_BINS), _NUM_BINS - 1)]
        found.judged += 1
        found.expected += predicted
        found.accepted += is_accepted

    @property
    def judged(self) -> int:
        return sum(part.judged for part in self.bins)

    @property
    def accepted(self) -> int:
        return sum(part.accepted for part in self.bins)

    @property
    def expected(self) -> float:
        """How many should have been accepted."""
        return sum(part.expected for part in self.bins)

    @property
    def gap(self) -> float:
        """Expected calibration error: mean distance of a node's bin from coming true, 0 at best."""
        if self.judged == 0:
            return 0.0
        return sum(abs(part.expected - part.accepted) for part in self.bins) / self.judged


def _method(drafter: str) -> str:
    """The drafter's name without its argument: `datastore` for all datastores."""
    return drafter.partition(":")[0]


def _warmth(temperature: float) -> int:
    """The same guesses are accepted less often the warmer a request is."""
    if temperature == 0.0:
        return _GREEDY
    return _COOL if temperature < _WARM_FROM else _WARM


def _key(stated_log_odds: float, depth: int, score: tuple[float, ...]) -> Key:
    # depths 1, 2 and 3, 4 to 7, and all beyond
    depth_bucket = min(depth.bit_length() - 1, _MAX_DEPTH_BUCKET)
    score_bucket = _score_bucket(score[0]) if score else 0
    return round(stated_log_odds), depth_bucket, score_bucket


def _score_bucket(score: float) -> int:
    """Two for each doubling of a length or a count; of a probability, one for each e-fold of odds.

    What a score means is not asked: above 1 it cannot be a probability.
    """
    if score > 1.0:
        return 1 + round(2.0 * math.log2(score))
    return round(_log_odds(score)) - 10  # apart from the others


def _log_odds(probability: float) -> float:
    if probability <= 0.01:
        return -_MAX_LOG_ODDS
    if probability >= 0.99:
        return _MAX_LOG_ODDS
    return math.log(probability / (1.0 - probability))


def _probability(log_odds: float) -> float:
    probability = 1.0 / (1.0 + math.exp(-log_odds))
    return min(_MAX_ACCEPTANCE, max(1.0 - _MAX_ACCEPTANCE, probability))
