"""What passes of a model take here: a first measurement, of a second or less."""

from __future__ import annotations

import time
from dataclasses import dataclass

from outdraft.models.cache import PositionCache
from outdraft.models.target import CausalLM
from outdraft.types import Rows

_ROWS = (1, 2, 4, 8, 16)
_CONTEXTS = (64, 1024)
_ROUNDS = 2
_MAX_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class TimedPass:
    """One pass of a single sequence, and the seconds it took."""

    num_rows: int
    context: int
    seconds: float


def time_passes(target: CausalLM) -> list[TimedPass]:
    """Times passes of several sizes, in rounds after a first one that warms up.

    The contexts cost nothing: their positions are reserved in the cache and never computed, and
    what they hold makes no difference to the time. Models that take long get fewer rounds.
    """
    longest = max(1, target.max_context - max(_ROWS))
    caches = {length: _reserved(target, length) for length in {min(c, longest) for c in _CONTEXTS}}
    started_at = time.perf_counter()
    timed: list[TimedPass] = []
    for round_idx in range(1 + _ROUNDS):
        passes = [
            TimedPass(rows, length, _seconds(target, cache, length, rows))
            for length, cache in caches.items()
            for rows in _ROWS
            if length + rows <= target.max_context
        ]
        if round_idx > 0:
            timed += passes
        if timed and time.perf_counter() - started_at > _MAX_SECONDS:
            break
    return timed


def _reserved(target: CausalLM, length: int) -> PositionCache:
    """A cache with one sequence of this length that nobody wrote."""
    cache = target.new_cache()
    cache.add()
    cache.begin_pass(0, 1, length)
    cache.commit(0, range(length))
    return cache


def _seconds(target: CausalLM, cache: PositionCache, context: int, num_rows: int) -> float:
    rows = Rows.chain([0] * num_rows, context, target.device)
    started_at = time.perf_counter()
    logits = target.forward(rows, cache)
    logits[0, -1, 0].item()  # waits for the device, as a step does
    return time.perf_counter() - started_at
