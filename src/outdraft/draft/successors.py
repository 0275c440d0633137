"""What a target said may follow a context: tables of fixed size, filled from its logits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Odd, near 2^64 divided by the golden ratio: products spread neighbouring keys over all slots.
_GOLDEN = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1
# What is new counts at least this much against the average of what was seen before.
_MIN_WEIGHT = 0.2
# Logits are searched for their largest block by block.
_BLOCK = 64


class Successors(NamedTuple):
    """The likeliest tokens after one context, by falling probability.

    Args:
        probs: 0 where fewer tokens than fit are known.
        times: how often the context was seen.
    """

    token_ids: list[int]
    probs: list[float]
    times: int


class SuccessorTable:
    """The likeliest next tokens of contexts of several lengths, in a fixed number of slots.

    Every context has one slot among those of its length, which it may share with others: the one
    seen last has it. Seen again, its probabilities are averaged with those known, older ones
    fading.

    Args:
        num_slots: for each length; a power of two.
        width: tokens kept for each context.
    """

    def __init__(self, num_lengths: int, num_slots: int, width: int) -> None:
        size = num_lengths * num_slots
        self._num_slots = num_slots
        self._shift = 64 - (num_slots - 1).bit_length()
        self._first_slots = np.arange(num_lengths, dtype=np.uint64)[:, None] * np.uint64(num_slots)
        self._keys = np.zeros(size, dtype=np.uint64)
        self._times = np.zeros(size, dtype=np.int32)  # 0 where a slot is empty
        self._token_ids = np.zeros((size, width), dtype=np.int32)
        self._probs = np.zeros((size, width), dtype=np.float32)

    @property
    def num_bytes(self) -> int:
        parts = (self._keys, self._times, self._token_ids, self._probs)
        return sum(part.nbytes for part in parts)

    def look_up(self, length_idx: int, key: int) -> Successors | None:
        """What followed the context, if its slot has not been taken by another."""
        slot = length_idx * self._num_slots + ((key * _GOLDEN & _MASK64) >> self._shift)
        if self._keys[slot] != key or self._times[slot] == 0:
            return None
        token_ids, probs = self._token_ids[slot].tolist(), self._probs[slot].tolist()
        return Successors(token_ids, probs, int(self._times[slot]))

    def learn(self, keys: np.ndarray, token_ids: np.ndarray, probs: np.ndarray) -> None:
        """Takes in what followed some contexts; of a context that comes twice, the last counts.

        Args:
            keys: `[lengths, contexts]`, uint64: of each context's last token, last two, ...
            token_ids: `[contexts, width]` or fewer columns, all of a row different.
            probs: of these, float32.
        """
        slots = (keys * np.uint64(_GOLDEN)) >> np.uint64(self._shift)
        slots = (slots + self._first_slots).ravel()  # [lengths * contexts], as all below
        keys = keys.ravel()
        times = self._times[slots] * (self._keys[slots] == keys) + np.int32(1)
        weight = np.maximum(1.0 / times, _MIN_WEIGHT).astype(np.float32)[:, None]
        old_ids, old_probs = self._token_ids[slots], self._probs[slots] * (1.0 - weight)
        new_ids = np.concatenate([token_ids] * len(self._first_slots))
        new_probs = np.concatenate([probs] * len(self._first_slots)) * weight
        is_same = new_ids[:, :, None] == old_ids[:, None, :]  # [..., new, old]
        new_probs += np.matmul(is_same, old_probs[:, :, None])[:, :, 0]
        old_probs[is_same.any(axis=1)] = 0.0  # they are among the new ones
        all_probs = np.concatenate([new_probs, old_probs], axis=1)
        best = np.argsort(-all_probs, axis=1)[:, : old_ids.shape[1]]
        rows = np.arange(len(slots))[:, None]
        self._keys[slots] = keys
        self._times[slots] = times
        self._token_ids[slots] = np.concatenate([new_ids, old_ids], axis=1)[rows, best]
        self._probs[slots] = all_probs[rows, best]


def top_tokens(logits: Tensor, count: int) -> Tensor:
    """The likeliest tokens of each row and their probabilities, without reading the device.

    A vocabulary is searched in blocks: the `count` largest logits stand in the `count` blocks with
    the largest maxima. Of all other blocks only the maxima enter the sum that makes probabilities
    of them, which therefore come out a little high where very many tokens are possible.

    Returns:
        `[rows, 2 * count]`, int32: ids, then probabilities as the bits of float32 numbers.
    """
    vocab = logits.shape[-1]
    num_blocks = vocab // _BLOCK
    if num_blocks <= count:
        candidates = logits.float()
        candidate_ids = torch.arange(vocab, device=logits.device).expand_as(logits)
        others = candidates[:, :0]
    else:
        blocks = logits[:, : num_blocks * _BLOCK].unflatten(-1, (num_blocks, _BLOCK))
        maxima = blocks.amax(dim=-1).float()
        best = maxima.topk(count, dim=-1).indices  # [rows, count]
        others = maxima.scatter(-1, best, float("-inf"))
        in_best = blocks.gather(1, best[:, :, None].expand(-1, -1, _BLOCK)).flatten(1)
        candidates = torch.cat([in_best, logits[:, num_blocks * _BLOCK :]], dim=-1).float()
        inside = torch.arange(_BLOCK, device=logits.device)
        best_ids = (best[:, :, None] * _BLOCK + inside).flatten(1)
        rest = torch.arange(num_blocks * _BLOCK, vocab, device=logits.device)
        candidate_ids = torch.cat([best_ids, rest.expand(len(logits), -1)], dim=-1)
    total = torch.cat([candidates, others], dim=-1).logsumexp(dim=-1, keepdim=True)
    values, places = candidates.topk(min(count, vocab), dim=-1)
    probs = (values - total).exp()
    return torch.cat([candidate_ids.gather(-1, places).int(), probs.view(torch.int32)], dim=-1)
