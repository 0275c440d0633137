"""What one step costs: passes of transformers and of outdraft over the same rows, in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence as Seq
from dataclasses import dataclass

import torch

from outdraft.engine import Engine
from outdraft.errors import SettingsError
from outdraft.integrations.stock_pass import StockPass
from outdraft.interfaces import Drafter
from outdraft.models.sizes import weight_bytes
from outdraft.models.target import CausalLM
from outdraft.sequence import Sequence
from outdraft.settings import EngineSettings, GenerationSettings
from outdraft.types import Budget, DraftTree, Rows

_WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class StepCost:
    """Medians over all repeats, in seconds.

    Args:
        rows: tokens read in one pass: the root and guesses.
        context: tokens read before.
        stock: a forward call of transformers on the model as it was loaded.
        ours: a target pass of outdraft, masks included.
        outside: the rest of a step: drafting a chain, planning, choosing, verifying, committing.
        read_bytes_per_second: of the target's weights, in outdraft's pass.
    """

    rows: int
    context: int
    stock: float
    ours: float
    outside: float
    read_bytes_per_second: float

    @property
    def ratio(self) -> float:
        return self.stock / self.ours

    @property
    def outside_share(self) -> float:
        return self.outside / (self.ours + self.outside)


def measure_steps(
    stock: CausalLM, target: CausalLM, *, rows: Seq[int], contexts: Seq[int], repeat: int
) -> Iterator[StepCost]:
    """Costs for every context and number of rows, as they are measured.

    Both models read the same tokens behind the same context, one after the other, `repeat` times.

    Raises:
        SettingsError: a number is none, or a context with its rows is longer than the model's.
    """
    if min(*rows, *contexts, repeat, 1) < 1:
        raise SettingsError("rows, contexts and repeats are whole numbers above 0")
    longest = max(contexts) + (repeat + _WARM_UPS) * len(rows) + max(rows)
    if longest > target.max_context:
        raise SettingsError(
            f"context={max(contexts)} and the steps behind it need {longest} positions; the model "
            f"has {target.max_context}"
        )
    for context in contexts:
        yield from _measure_context(stock, target, rows, context, repeat)


def _measure_context(
    stock: CausalLM, target: CausalLM, rows: Seq[int], context: int, repeat: int
) -> Iterator[StepCost]:
    ids = [(7919 * i + 104729) % target.vocab_size for i in range(context + max(rows))]
    of_stock = StockPass(stock, ids[:context])
    of_ours = _OwnPass(target, ids[:context])
    outside = _outside(target, ids[:context], rows, repeat)
    for num_rows in rows:
        token_ids = ids[context : context + num_rows]
        costs = [
            (_timed(lambda: of_stock.read(token_ids)), _timed(lambda: of_ours.read(token_ids)))  # noqa: B023
            for _ in range(_WARM_UPS + repeat)
        ][_WARM_UPS:]
        theirs, own = (statistics.median(column) for column in zip(*costs, strict=True))
        speed = weight_bytes(target) / own
        yield StepCost(num_rows, context, theirs, own, outside[num_rows], speed)


class _OwnPass:
    """Target passes behind one context; none of their rows is committed."""

    def __init__(self, target: CausalLM, context_ids: Seq[int]) -> None:
        self._target = target
        self._cache = target.new_cache()
        self._context = len(context_ids)
        self._cache.add()
        target.forward(Rows.chain(context_ids, 0, target.device), self._cache, logits_to_keep=1)
        self._cache.commit(0, range(self._context))

    def read(self, token_ids: Seq[int]) -> None:
        rows = Rows.chain(token_ids, self._context, self._target.device)
        self._target.forward(rows, self._cache)


class _Chain(Drafter):
    """Always guesses the same chain, whatever the text."""

    name = "chain"

    def __init__(self) -> None:
        self.num_nodes = 0

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        length = min(self.num_nodes, *budget.max_depths)
        return [DraftTree.chain(range(length), drafter=self.name)] * len(batch)


def _outside(
    target: CausalLM, context_ids: Seq[int], rows: Seq[int], repeat: int
) -> dict[int, float]:
    """Per number of rows, what a step takes beside its target pass.

    The steps of one request, which goes on by a few tokens: that moves its context and hardly
    what is measured.
    """
    drafter = _Chain()
    engine = Engine(target, drafter, EngineSettings(max_draft_nodes=max(*rows, 2) - 1))
    settings = GenerationSettings(
        max_new_tokens=(repeat + _WARM_UPS) * len(rows) * 2 + max(rows), ignore_eos=True
    )
    sequence = Sequence(
        0,
        context_ids,
        settings,
        seed=0,
        eos_ids=frozenset(),
        max_context=target.max_context,
        decode=lambda _ids: "",
    )
    engine.add(sequence)
    while not engine.step():
        pass  # the context is read in chunks
    seconds: dict[int, list[float]] = {num_rows: [] for num_rows in rows}
    for _ in range(_WARM_UPS + repeat):
        for num_rows in rows:
            if sequence.finish_reason is not None:
                raise SettingsError(
                    f"the steps behind context={len(context_ids)} came to the end of the model's "
                    f"{target.max_context} positions; measure a shorter context"
                )
            drafter.num_nodes = num_rows - 1
            before = sequence.stats.target_seconds
            whole = _timed(engine.step)
            seconds[num_rows].append(whole - (sequence.stats.target_seconds - before))
    engine.cancel(sequence)
    return {num_rows: statistics.median(times[_WARM_UPS:]) for num_rows, times in seconds.items()}


def _timed(call: Callable[[], object]) -> float:
    started_at = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started_at
