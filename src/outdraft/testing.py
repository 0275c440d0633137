"""For tests of drafters: one call puts a drafter through all that the engine may do to it.

    from outdraft.testing import drafter_contract

    def test_it_keeps_the_contract() -> None:
        drafter_contract(MyDrafter)

What does not hold is an AssertionError that says so in a sentence.
"""

from __future__ import annotations

import gc
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from outdraft.draft.plain import NoDrafter
from outdraft.engine import Engine
from outdraft.interfaces import Drafter, TargetModel
from outdraft.models.table import TableTarget
from outdraft.sequence import Sequence
from outdraft.settings import EngineSettings, GenerationSettings
from outdraft.types import Budget, Commit, DraftTree

__all__ = ["drafter_contract"]

PROMPTS = (
    (1, 2, 3),
    (5, 6, 7, 5, 6, 7, 5, 6),
    (4,),
    (1, 2, 3, 4, 9, 1, 2, 3, 4),
    (8, 8, 8, 8),
    (2, 11, 13, 2, 11),
)
_NEW_TOKENS = (24, 9, 17, 20, 1, 36)
_NUM_WAVES = 3
# What a store may grow by when it sees the same requests once more: rounding of hash tables.
_SLACK_BYTES = 4096


def drafter_contract(
    make_drafter: Callable[[], Drafter],
    *,
    target: TargetModel | None = None,
    eos_id: int | None = None,
    prompts: Seq[Seq[int]] = PROMPTS,
    max_memory_bytes: int = 0,
    must_guess: bool = True,
) -> None:
    """Raises unless a drafter keeps what `Drafter` promises, and changes no token.

    Its trees are well-formed and made of the target's tokens; whatever they are, the text is that
    of plain decoding, at temperature 0 and 1, alone and in batches that requests join, finish in
    and are cancelled in, with any budget, and when it is asked in some steps only. It leaves
    requests as they are, forgets them when they finish, and takes calls about requests that it
    does not know.

    Args:
        make_drafter: makes a fresh one in each call.
        target: what it guesses for; a small fake with 16 tokens unless given. A model must be in
            float64, or ties may look like faults.
        eos_id: a token that ends texts; that of the fake unless a target is given.
        prompts: token ids. Each text is also passed as its request's `prediction_ids`, with a
            token changed.
        max_memory_bytes: what the drafter may hold between requests; with 0, no more after many
            requests than after the first few.
        must_guess: whether it is an error if the drafter never guesses anything, since then
            hardly anything was tested.

    Raises:
        AssertionError: the drafter breaks the contract; the message says where.
    """
    if target is None:
        target = TableTarget(vocab_size=16, fade=0.9, seed=56)
        eos_id = 15
    bench = _Bench(target, eos_id, prompts)
    _check_declarations(make_drafter())
    _check_strangers(make_drafter(), bench)
    num_guesses = 0
    for case in _CASES:
        num_guesses += _check_texts(make_drafter(), bench, case)
    _require(
        num_guesses > 0 or not must_guess,
        f"drafter {make_drafter().name!r} never guessed anything, so nothing was tested; pass "
        "prompts it knows something about, or must_guess=False",
    )
    _check_forgets(make_drafter(), bench, max_memory_bytes)


@dataclass(frozen=True, slots=True)
class _Case:
    """How requests are run.

    Args:
        asks_every: in how many steps the drafter is asked once; others go before it in between.
    """

    temperature: float
    max_batch: int
    max_nodes: int
    asks_every: int = 1

    def __str__(self) -> str:
        asked = "" if self.asks_every == 1 else f", asked in one step of {self.asks_every}"
        return (
            f"temperature {self.temperature}, batches of {self.max_batch}, "
            f"{self.max_nodes} guesses{asked}"
        )


_CASES = (
    *(_Case(temperature, *sizes) for temperature in (0.0, 1.0) for sizes in ((1, 15), (3, 5))),
    _Case(0.0, max_batch=2, max_nodes=1),
    _Case(0.0, max_batch=4, max_nodes=64),
    _Case(1.0, max_batch=3, max_nodes=8, asks_every=3),
    _Case(0.0, max_batch=3, max_nodes=0),
)


class _Bench:
    """The requests, and the texts that plain decoding writes for them."""

    def __init__(self, target: TargetModel, eos_id: int | None, prompts: Seq[Seq[int]]) -> None:
        self.target = target
        self._eos_ids = frozenset(() if eos_id is None else (eos_id,))
        self._prompts = prompts
        self._plain = {
            temperature: self._run_plainly(temperature)
            for temperature in {case.temperature for case in _CASES}
        }

    def requests(self, temperature: float) -> list[Sequence]:
        return self._requests(temperature, self._plain[temperature])

    def plain_ids(self, temperature: float) -> list[list[int]]:
        return self._plain[temperature]

    def _run_plainly(self, temperature: float) -> list[list[int]]:
        requests = self._requests(temperature, [[]] * len(self._prompts))
        _run(self.target, NoDrafter(), requests, _Case(temperature, max_batch=1, max_nodes=0))
        return [request.new_ids for request in requests]

    def _requests(self, temperature: float, expected: Seq[Seq[int]]) -> list[Sequence]:
        return [
            Sequence(
                request_id,
                prompt_ids,
                GenerationSettings(temperature=temperature, max_new_tokens=num_new),
                seed=request_id,
                eos_ids=self._eos_ids,
                max_context=self.target.max_context,
                decode=lambda _: "",
                prediction_ids=_with_one_changed(ids),
            )
            for request_id, (prompt_ids, num_new, ids) in enumerate(
                zip(self._prompts, itertools.cycle(_NEW_TOKENS), expected, strict=False)
            )
        ]


def _with_one_changed(token_ids: Seq[int]) -> list[int]:
    changed = list(token_ids)
    if len(changed) > 1:
        changed[len(changed) // 2] = changed[0]
    return changed


class _Watched(Drafter):
    """Passes calls on and checks what comes back."""

    def __init__(self, drafter: Drafter, vocab_size: int, asks_every: int) -> None:
        self.name = drafter.name
        self.score_names = drafter.score_names
        self.wants_logits = drafter.wants_logits
        self.num_guesses = 0
        self._drafter = drafter
        self._vocab_size = vocab_size
        self._asks_every = asks_every
        self._num_steps = 0
        self._left_out: set[int] = set()  # request ids

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        self._num_steps += 1
        asked = [i for i in range(len(batch)) if (self._num_steps + i) % self._asks_every == 0]
        self._left_out = {batch[i].request_id for i in set(range(len(batch))) - set(asked)}
        trees = [DraftTree(drafter=self.name)] * len(batch)
        if asked:
            depths = tuple(budget.max_depths[i] for i in asked)
            proposed = _propose(
                self._drafter,
                [batch[i] for i in asked],
                Budget(budget.max_nodes, depths),
                self._vocab_size,
            )
            for i, tree in zip(asked, proposed, strict=True):
                trees[i] = tree
        self.num_guesses += sum(len(tree) for tree in trees)
        return trees

    def observe(self, sequence: Sequence, commit: Commit) -> None:
        with _untouched(f"drafter {self.name!r}: observe", [sequence]):
            self._drafter.observe(sequence, commit)

    def observe_logits(self, sequence: Sequence, tree: DraftTree, logits: Tensor) -> None:
        if sequence.request_id in self._left_out and self._num_steps % 2:
            return  # who is left out does not hear of all steps
        with _untouched(f"drafter {self.name!r}: observe_logits", [sequence]):
            self._drafter.observe_logits(sequence, tree, logits)

    def finish(self, sequence: Sequence) -> None:
        with _untouched(f"drafter {self.name!r}: finish", [sequence]):
            self._drafter.finish(sequence)


@contextmanager
def _untouched(what: str, requests: Seq[Sequence]) -> Iterator[None]:
    """Within, requests must stay as they are."""
    before = [list(request.ids) for request in requests]
    yield
    after = [request.ids for request in requests]
    _require(after == before, f"{what} changed the tokens of a request")


def _propose(
    drafter: Drafter, batch: Seq[Sequence], budget: Budget, vocab_size: int
) -> list[DraftTree]:
    """What the drafter proposes, checked. That a tree is one is checked where it is made."""
    what = f"drafter {drafter.name!r}: propose"
    with _untouched(what, batch):
        trees = drafter.propose(batch, budget)
    for tree in trees:
        kind = type(tree).__name__
        _require(kind == "DraftTree", f"{what} returned a {kind}; it returns a list of DraftTree")
    _require(
        len(trees) == len(batch), f"{what} returned {len(trees)} trees for {len(batch)} sequences"
    )
    for tree in trees:
        _require(
            all(0 <= token_id < vocab_size for token_id in tree.token_ids),
            f"{what} guessed {tree.token_ids}; the target has the tokens 0 to {vocab_size - 1}",
        )
        sizes = {len(score) for score in tree.scores}
        _require(
            tree.drafter != drafter.name or sizes <= {len(drafter.score_names)},
            f"{what} returned scores of length {sorted(sizes)}; score_names: {drafter.score_names}",
        )
    return trees


# --- the parts of the contract --------------------------------------------------------------------


def _check_declarations(drafter: Drafter) -> None:
    _require(isinstance(drafter, Drafter), f"{drafter!r} is no outdraft.Drafter")
    name: object = drafter.name
    _require(isinstance(name, str) and bool(name), f"a drafter's name is a string, not {name!r}")
    score_names: object = drafter.score_names
    _require(
        isinstance(score_names, tuple) and all(isinstance(part, str) for part in score_names),
        f"drafter {name!r}: score_names is a tuple of strings, not {score_names!r}",
    )
    _require(
        drafter.memory_bytes >= 0,
        f"drafter {name!r}: memory_bytes is {drafter.memory_bytes}",
    )


def _check_strangers(drafter: Drafter, bench: _Bench) -> None:
    """Calls about requests it was never asked about, and budgets that leave no room."""
    first, second, third = (bench.requests(0.0) * 3)[:3]
    vocab_size = bench.target.vocab_size
    drafter.finish(first)
    for request, budget in ((second, Budget(0, (5,))), (third, Budget(5, (0,)))):
        _propose(drafter, [request], budget, vocab_size)
        request.append(request.ids[0])
        drafter.observe(request, Commit(request.request_id, (request.ids[0],), ("plain",)))
        if drafter.wants_logits:
            logits = torch.zeros(1, vocab_size)
            drafter.observe_logits(request, DraftTree(drafter=drafter.name), logits)
        drafter.finish(request)
        drafter.finish(request)
    _require(
        drafter.propose([], Budget(5, ())) == [],
        f"drafter {drafter.name!r}: propose returned trees for an empty batch",
    )


def _check_texts(drafter: Drafter, bench: _Bench, case: _Case) -> int:
    """The texts are those of plain decoding; returns how many guesses were made."""
    watched = _Watched(drafter, bench.target.vocab_size, case.asks_every)
    requests = bench.requests(case.temperature)
    cancelled = requests[len(requests) // 2]
    _run(bench.target, watched, requests, case, cancelled=cancelled)
    for request, plain_ids in zip(requests, bench.plain_ids(case.temperature), strict=True):
        expected = plain_ids[: len(request.new_ids)] if request is cancelled else plain_ids
        prompt_ids = request.ids[: request.prompt_len]
        _require(
            request.new_ids == expected,
            f"drafter {drafter.name!r} changed the text of the prompt {prompt_ids} ({case}): "
            f"{request.new_ids} instead of {expected}",
        )
    return watched.num_guesses


def _check_forgets(drafter: Drafter, bench: _Bench, max_memory_bytes: int) -> None:
    """After requests have finished, it holds none of them, and no more than it may."""
    case = _Case(0.0, max_batch=3, max_nodes=15)
    held: list[int] = []
    for _ in range(_NUM_WAVES):
        requests = bench.requests(case.temperature)
        _run(bench.target, drafter, requests, case)
        alive = [weakref.ref(request) for request in requests]
        del requests
        gc.collect()
        num_alive = sum(request() is not None for request in alive)
        _require(
            num_alive == 0,
            f"drafter {drafter.name!r} still holds {num_alive} requests that have finished; "
            "drop them in finish()",
        )
        held.append(max(drafter.memory_bytes, sum(_reachable_bytes(drafter))))
    limit = max(held[0] + _SLACK_BYTES, max_memory_bytes)
    _require(
        held[-1] <= limit,
        f"drafter {drafter.name!r} holds {' then '.join(map(str, held))} bytes as requests finish; "
        f"it may hold {limit} (pass max_memory_bytes if it remembers something on purpose)",
    )


def _run(
    target: TargetModel,
    drafter: Drafter,
    requests: Seq[Sequence],
    case: _Case,
    cancelled: Sequence | None = None,
) -> None:
    """Runs all requests to their end; one joins every other step, one may be cancelled early."""
    settings = EngineSettings(max_batch=case.max_batch, max_draft_nodes=case.max_nodes)
    engine = Engine(target, drafter, settings)
    waiting = list(requests)
    num_steps = 0
    while waiting or not engine.is_idle:
        if waiting and (num_steps % 2 == 0 or engine.is_idle):
            engine.add(waiting.pop(0))
        engine.step()
        num_steps += 1
        if cancelled is not None and len(cancelled.new_ids) > 4:
            engine.cancel(cancelled)


def _reachable_bytes(root: object) -> Iterator[int]:
    """Sizes of all objects that only data leads to; not of code, nor of a target."""
    code = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, TargetModel)
    seen = {id(root)}
    waiting = [root]
    while waiting:
        found = waiting.pop()
        yield sys.getsizeof(found)
        if isinstance(found, Tensor):
            yield found.untyped_storage().nbytes()
        for other in gc.get_referents(found):
            if id(other) not in seen and not isinstance(other, code):
                seen.add(id(other))
                waiting.append(other)


def _require(is_met: bool, message: str) -> None:
    if not is_met:
        raise AssertionError(message)
