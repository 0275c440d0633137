"""Copies on from the place where the answer stands in the text that the caller expects.

Guesses from: the request's `prediction_ids` and its new tokens so far. One place in the prediction
is followed as long as the answer agrees with it. Once they differ, the last new tokens are looked
up anywhere in the prediction: the longest match counts, of equal ones the nearest behind the old
place. Until a match is long enough to be trusted, the tree has a branch for each place where the
answer may go on: the match, each expected token replaced by one other, or something inserted.

Score: how many tokens before a node agree, its ancestors included, and the rank of its place.
After `n` tokens that agree, the next one is taken to agree with probability `n² / (n² + 1)`, which
fits texts with words replaced, inserted and left out at random. Cost: an index to move on while
the answer agrees, a few passes of numpy over the prediction while it does not. Source: the
"predicted outputs" of hosted services (2024), which publish no algorithm.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np

from outdraft.interfaces import Drafter
from outdraft.sequence import Sequence
from outdraft.types import Budget, DraftTree

# A match of this many tokens is trusted: the old place is given up for the one it leads to.
_SURE_MATCH = 4
# Longer matches are not told apart.
_MAX_MATCH = 32
# No agreement is surer than this.
_MAX_AGREEMENT = 0.99
# That the answer goes on at a place which no match speaks for, right after it went astray.
_UNMATCHED_AGREEMENT = 0.1


def agreement_after(match_len: int) -> float:
    """Probability that one more token agrees after this many, at least one."""
    return min(_MAX_AGREEMENT, match_len**2 / (match_len**2 + 1))


class Place(NamedTuple):
    """Where the answer may go on in the prediction.

    Args:
        match_len: tokens before `position` that agree with the end of the answer.
        agreement: estimated probability that the token at `position` comes next.
    """

    position: int
    match_len: int
    agreement: float


class Follower:
    """Follows one answer through its prediction.

        prediction   a  b  c  d  e  f        `position` is 2, where they parted: `c` was
        answer       a  b  x  y              expected; 2 tokens are astray since then

    Attributes:
        position: the token expected next or, where tokens are astray, in place of the first.
        match_len: tokens in a row before it that agree.
        num_astray: new tokens since then.
    """

    def __init__(self, prediction_ids: Seq[int]) -> None:
        self.prediction = np.array(prediction_ids, dtype=np.int64)
        self.position = 0
        self.match_len = 0
        self.num_astray = 0
        self._num_known = 0

    def follow(self, new_ids: Seq[int]) -> list[Place]:
        """Takes in what was added to the answer since the last call.

        Returns:
            Where it may go on, likeliest first; a single place if that is sure.
        """
        for token_id in new_ids[self._num_known :]:
            if self.num_astray == 0 and self._expects(token_id):
                self.position += 1
                self.match_len += 1
            else:
                self.num_astray += 1
        self._num_known = len(new_ids)
        if self.num_astray == 0:
            # Nothing of the answer is known yet at length 0, which speaks for no other place.
            agreement = agreement_after(max(1, self.match_len))
            return self._distinct([Place(self.position, self.match_len, agreement)])
        match = self.longest_match(new_ids)
        if match.match_len >= _SURE_MATCH:
            self.position, self.match_len, self.num_astray = match.position, match.match_len, 0
            return self._distinct([match])
        unmatched = _UNMATCHED_AGREEMENT / self.num_astray
        all_replaced = Place(self.position + self.num_astray, 0, unmatched)
        all_inserted = Place(self.position, 0, unmatched)
        return self._distinct([match, all_replaced, all_inserted])

    def _expects(self, token_id: int) -> bool:
        is_over = self.position == len(self.prediction)
        return not is_over and bool(self.prediction[self.position] == token_id)

    def _distinct(self, places: Seq[Place]) -> list[Place]:
        distinct: dict[int, Place] = {}
        for place in places:
            if place.agreement > 0.0 and place.position < len(self.prediction):
                distinct.setdefault(place.position, place)
        return list(distinct.values())

    def longest_match(self, new_ids: Seq[int]) -> Place:
        """The longest match of the answer's end; of equal ones the nearest behind `position`.

        A length and an agreement of 0 mean that not even the last token is predicted anywhere.
        """
        last_ids = new_ids[: -_MAX_MATCH - 1 : -1]  # the last one first
        ends = np.flatnonzero(self.prediction == last_ids[0]) + 1
        if ends.size == 0:
            return Place(self.position, 0, 0.0)
        match_len = 1
        for token_id in last_ids[1:]:
            longer = ends[ends > match_len]
            longer = longer[self.prediction[longer - 1 - match_len] == token_id]
            if longer.size == 0:
                break
            ends = longer
            match_len += 1
        # Places behind the old one come first, then those from the start of the prediction.
        distance = (ends - self.position) % (len(self.prediction) + 1)
        return Place(int(ends[distance.argmin()]), match_len, agreement_after(match_len))


class Prediction(Drafter):
    """The rest of the prediction, from where the answer stands in it or may stand."""

    name = "prediction"
    score_names = ("match length", "rank of the place")

    def __init__(self) -> None:
        self._followers: dict[int, Follower] = {}

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        trees = []
        for sequence, max_depth in zip(batch, budget.max_depths, strict=True):
            if not sequence.prediction_ids or budget.max_nodes < 1 or max_depth < 1:
                trees.append(DraftTree(drafter=self.name))
                continue
            new_ids = sequence.new_ids
            follower = self._followers.get(sequence.request_id)
            if follower is None:
                follower = Follower(sequence.prediction_ids)
                self._followers[sequence.request_id] = follower
            places = follower.follow(new_ids)
            trees.append(branches(follower.prediction, places, budget.max_nodes, max_depth))
        return trees

    def finish(self, sequence: Sequence) -> None:
        self._followers.pop(sequence.request_id, None)

    @property
    def memory_bytes(self) -> int:
        return sum(follower.prediction.nbytes for follower in self._followers.values())


class _Next(NamedTuple):
    """The next node of one place's branch; the likeliest sorts first."""

    negative_path_prob: float
    rank: int
    depth: int
    parent: int
    place: Place


def branches(
    prediction: np.ndarray, places: Seq[Place], max_nodes: int, max_depth: int
) -> DraftTree:
    """The prediction from each place on, joined where they begin alike, likeliest nodes first."""
    nodes: dict[tuple[int, int], int] = {}  # from (parent, token)
    path_probs: list[float] = []
    acceptance: list[float] = []
    scores: list[tuple[float, float]] = []
    waiting: list[_Next] = []
    left = 1.0
    for rank, place in enumerate(places):
        waiting.append(_Next(-left * place.agreement, rank, 1, -1, place))
        left *= 1.0 - place.agreement
    heapq.heapify(waiting)
    while waiting and len(nodes) < max_nodes:
        negative_path_prob, rank, depth, parent, place = heapq.heappop(waiting)
        key = (parent, int(prediction[place.position + depth - 1]))
        if key not in nodes:
            nodes[key] = len(nodes)
            path_probs.append(-negative_path_prob)
            acceptance.append(-negative_path_prob / (path_probs[parent] if parent >= 0 else 1.0))
            scores.append((float(place.match_len + depth - 1), float(rank)))
        if depth < max_depth and place.position + depth < len(prediction):
            negative_path_prob *= agreement_after(place.match_len + depth)
            heapq.heappush(waiting, _Next(negative_path_prob, rank, depth + 1, nodes[key], place))
    return DraftTree(
        token_ids=tuple(token_id for _, token_id in nodes),
        parents=tuple(parent for parent, _ in nodes),
        acceptance=tuple(acceptance),
        drafter=Prediction.name,
        scores=tuple(scores),
    )
