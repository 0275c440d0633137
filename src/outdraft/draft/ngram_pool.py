"""A pool of n-grams: which tokens followed which runs of tokens, in a text and in guesses about it.

Probability: how often a token followed a run, older occurrences fading, of longer runs first; what
they leave goes to the next shorter run, the less the longer the run and the oftener it was seen
(the mixture of PPM, Cleary and Witten 1984). Cost: a few dictionary look-ups for each n-gram added
and for each run asked about.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from outdraft.draft.best_first import Guess

Context = tuple[int, ...]
"""The last tokens before a guess, `MAX_CONTEXT` at most."""

MAX_CONTEXT = 3
MAX_CONTEXTS = 1 << 15
BYTES_PER_CONTEXT = 430
"""Of memory, roughly."""

# Different tokens that are kept after one run, the last ones seen.
_WIDTH = 8
# What is left of an older token's count when another one follows the same run.
_FADE = 0.8
# Count of all that was never seen after a run, divided by the run's length.
_ESCAPE = 3.0


class NgramPool:
    """What followed the runs of up to `MAX_CONTEXT` tokens that were seen last.

    Args:
        max_contexts: runs that are kept; those not seen for the longest time go first.
    """

    def __init__(self, max_contexts: int = MAX_CONTEXTS) -> None:
        self._max_contexts = max_contexts
        # Both the runs and what followed each of them stand in the order of their last use.
        self._followers: OrderedDict[Context, dict[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._followers)

    def add(self, context: Context, token_id: int) -> None:
        """Takes in that a token followed a context, and with it each shorter ending of it."""
        for start in range(len(context)):
            run = context[start:]
            followers = self._followers.get(run)
            if followers is None:
                self._followers[run] = {token_id: 1.0}
                continue
            self._followers.move_to_end(run)
            count = followers.pop(token_id, 0.0)
            for other in followers:
                followers[other] *= _FADE
            followers[token_id] = count + 1.0
            if len(followers) > _WIDTH:
                del followers[next(iter(followers))]
        while len(self._followers) > self._max_contexts:
            self._followers.popitem(last=False)

    def guesses(self, context: Context, min_prob: float) -> Iterator[Guess[Context]]:
        """What may follow a context, no token twice, with a probability of at least `min_prob`.

        The score of a guess is the length of the longest run that it is known to have followed.
        """
        probs: dict[int, float] = {}
        lengths: dict[int, int] = {}
        left = 1.0
        for start in range(len(context)):
            followers = self._followers.get(context[start:])
            if followers is None:
                continue
            length = len(context) - start
            escape = _ESCAPE / length
            scale = left / (sum(followers.values()) + escape)
            for token_id, count in followers.items():
                probs[token_id] = probs.get(token_id, 0.0) + scale * count
                lengths.setdefault(token_id, length)
            left = scale * escape
            if left < min_prob:
                break
        for token_id, prob in probs.items():
            if prob >= min_prob:
                after = (*context, token_id)[-MAX_CONTEXT:]
                yield Guess(token_id, min(prob, 1.0), after, (float(lengths[token_id]),))

    def likeliest(self, context: Context) -> int | None:
        """What mostly followed the longest run that is known, if there is one."""
        for start in range(len(context)):
            followers = self._followers.get(context[start:])
            if followers is not None:
                return max(followers, key=followers.__getitem__)
        return None
