"""What a request would draw if a draft model were its target: the same settings, the same noise.

The target draws the winner of a race, `argmax probs / noise`, whose noise belongs to seed and
position alone. A draft model with similar probabilities and the same noise has mostly the same
winner (drafter-invariant coupling, Daliri et al. 2024), and its runners-up are the likeliest to win
instead. A token's share of the race, `probs / noise` over the sum of it, is near 1 for a clear
winner, however improbable its win was beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from outdraft.draft.guess_tree import Guess
from outdraft.draft.token_map import TokenMap
from outdraft.sampling import keyed_noise, to_probs
from outdraft.sequence import Sequence
from outdraft.settings import GenerationSettings

# Guesses behind each row that was read.
_MAX_GUESSES = 4
# A greedy request takes the likeliest token; how likely, is what the model says at temperature 1.
_AS_IT_IS = GenerationSettings(temperature=1.0)


class Runners:
    """Which tokens of a draft model may be guessed, and whose noise each of them has.

    A token that the target does not have runs with the noise of the one that its text begins with.

    Args:
        device: of the draft model.
    """

    def __init__(self, tokens: TokenMap, device: torch.device) -> None:
        target_ids = torch.tensor(tokens.to_target, device=device)
        self._target_rows = tokens.target_rows
        self._is_dead = target_ids < 0
        self._noise_of = target_ids.clamp(min=0)
        self._has_dead = bool(self._is_dead.any())
        rows = torch.arange(len(target_ids), device=device)
        self._has_own_ids = bool(((target_ids == rows) | self._is_dead).all())

    def race(self, sequence: Sequence, logits: Tensor, depths: Seq[int]) -> list[list[Guess]]:
        """The likeliest winners at each row, a clear one first.

        Args:
            logits: `[rows, vocab]`, of the draft model.
            depths: of the tokens to be drawn: 1 follows the text.
        """
        settings = sequence.settings
        if self._has_dead:
            logits = logits.masked_fill(self._is_dead, float("-inf"))
        probs = to_probs(logits, _AS_IT_IS if settings.is_greedy else settings)
        shares = probs
        if not settings.is_greedy:
            positions = [sequence.root_position + depth for depth in depths]
            shares = probs / self._noise(sequence.seed, positions)
            shares = (shares / shares.sum(dim=-1, keepdim=True)).clamp(max=1.0)
        best = shares.topk(min(_MAX_GUESSES, shares.shape[-1]), dim=-1)
        found = zip(
            best.indices.tolist(),
            best.values.tolist(),
            probs.gather(-1, best.indices).tolist(),
            strict=True,
        )
        return [[Guess(*guess) for guess in zip(*row, strict=True)] for row in found]

    def _noise(self, seed: int, positions: Seq[int]) -> Tensor:
        """Noise of the draft model's tokens, a row for each position."""
        distinct = sorted(set(positions))
        device = self._noise_of.device
        if self._has_own_ids:  # noise depends on the id, not on how many there are
            noise = keyed_noise(seed, distinct, len(self._noise_of), device)
        else:
            noise = keyed_noise(seed, distinct, self._target_rows, device)[:, self._noise_of]
        index = [distinct.index(position) for position in positions]
        return noise[torch.tensor(index, device=device)]
