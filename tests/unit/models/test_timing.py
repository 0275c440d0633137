"""Which passes are timed, and that timing leaves nothing behind; how long they take is no test."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch import Tensor

from outdraft.interfaces import KVCache
from outdraft.models import timing
from outdraft.models.target import CausalLM
from outdraft.models.timing import time_passes
from outdraft.types import Rows
from support.draft_models import small_llama
from support.tiny_models import MODELS, tiny_target

ROWS = (1, 2, 4, 8, 16)


class Watched(CausalLM):
    """Notes the rows of each pass, and what its cache held by then."""

    def __init__(self, target: CausalLM) -> None:
        super().__init__(target.model)
        self.passes: list[tuple[int, tuple[int, ...]]] = []
        self.last_position = 0

    def forward(self, rows: Rows, cache: KVCache, **options: Any) -> Tensor:
        self.passes.append((rows.num_rows, cache.committed_lens))
        self.last_position = max(self.last_position, int(rows.position_ids.max()))
        assert int(rows.position_ids[0, 0]) == cache.committed_lens[0]
        return super().forward(rows, cache, **options)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No round is left out because the machine is busy."""
    monkeypatch.setattr(timing, "_MAX_SECONDS", float("inf"))


def watched(max_context: int) -> Watched:
    return Watched(small_llama(num_hidden_layers=1, max_position_embeddings=max_context))


def test_every_size_is_timed_as_often() -> None:
    timed = time_passes(watched(2048))
    assert Counter((each.num_rows, each.context) for each in timed) == {
        (rows, context): timing._ROUNDS for rows in ROWS for context in (64, 1024)
    }
    assert all(each.seconds > 0 for each in timed)


def test_the_first_round_warms_up_and_does_not_count() -> None:
    target = watched(2048)
    timed = time_passes(target)
    passes = [(each.num_rows, (each.context,)) for each in timed]
    assert target.passes == [*passes[: len(passes) // timing._ROUNDS], *passes]


def test_contexts_are_reserved_and_never_read() -> None:
    target = watched(2048)
    time_passes(target)
    assert max(num_rows for num_rows, _ in target.passes) == 16
    assert {lens for _, lens in target.passes} == {(64,), (1024,)}


def test_a_reserved_cache_holds_one_sequence_of_that_length() -> None:
    cache = timing._reserved(tiny_target("llama"), 70)
    assert cache.committed_lens == (70,)


@pytest.mark.parametrize(
    ("max_context", "contexts", "rows"),
    [
        (1040, {64, 1024}, ROWS),
        (1039, {64, 1023}, ROWS),
        (80, {64}, ROWS),
        (70, {54}, ROWS),
        (18, {2}, ROWS),
        (17, {1}, ROWS),
        (16, {1}, (1, 2, 4, 8)),
        (3, {1}, (1, 2)),
    ],
)
def test_a_short_context_is_never_left(
    max_context: int, contexts: set[int], rows: tuple[int, ...]
) -> None:
    target = watched(max_context)
    timed = time_passes(target)
    assert {each.context for each in timed} == contexts
    assert {each.num_rows for each in timed} == set(rows)
    assert target.last_position < max_context


def test_a_slow_model_gets_a_round_behind_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_MAX_SECONDS", 0.0)
    target = watched(2048)
    assert len(time_passes(target)) == 10
    assert len(target.passes) == 20


@pytest.mark.parametrize("model", MODELS)
def test_every_model_can_be_timed(model: str) -> None:
    timed = time_passes(tiny_target(model))
    assert {each.context for each in timed} == {64, 80}
