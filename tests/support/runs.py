"""Runs requests through the engine and checks, after every step, what must hold in between."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from outdraft.engine import Engine
from outdraft.interfaces import Drafter, TargetModel
from outdraft.plan import Pricing
from outdraft.sequence import Sequence
from outdraft.settings import EngineSettings
from outdraft.stats import Stats
from outdraft.types import Commit


def run(
    target: TargetModel,
    drafter: Drafter,
    sequences: Seq[Sequence],
    *,
    pricing: Pricing | None = None,
    **engine_settings: int,
) -> list[Commit]:
    """Runs all requests to their end; returns every commit, in order."""
    engine = Engine(target, drafter, EngineSettings(**engine_settings), pricing=pricing)
    for sequence in sequences:
        engine.add(sequence)
    commits: list[Commit] = []
    while not engine.is_idle:
        commits += engine.step()
        check_cache(engine)
    check_accounts(sequences, commits)
    return commits


def check_cache(engine: Engine) -> None:
    """The cache holds each running sequence's tokens but the last, and nobody else's."""
    held = engine._cache.committed_lens
    assert held == tuple(len(sequence.ids) - 1 for sequence in engine._running)


def check_accounts(sequences: Seq[Sequence], commits: Seq[Commit]) -> None:
    """The commits of each request are its tokens and its text; the counters add up."""
    for sequence in sequences:
        own = [commit for commit in commits if commit.request_id == sequence.request_id]
        origins = [origin for commit in own for origin in commit.origins]
        stats = sequence.stats
        assert [token for commit in own for token in commit.token_ids] == sequence.new_ids
        assert "".join(commit.text for commit in own) == sequence.text
        assert [commit.finish_reason for commit in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].finish_reason == sequence.finish_reason
        assert stats.tokens == len(sequence.new_ids) == len(origins)
        assert stats.accepted == origins.count("drafted") <= stats.drafted
        assert stats.own_tokens == stats.tokens - stats.accepted
        assert stats.steps == len(own) - 1
        assert stats.accepted <= sum(stats.accepted_by_depth) <= stats.drafted
        assert sum(stats.judged_by_depth) <= stats.drafted
        check_drafters(stats)


def check_drafters(stats: Stats) -> None:
    """What each drafter did by itself; nodes that several guessed count for each of them."""
    records = stats.drafters.values()
    for record in records:
        assert record.accepted <= record.judged <= record.drafted
        assert record.asked <= stats.steps
        assert (record.drafted == 0) or record.asked
    for name in ("drafted", "accepted"):
        total = getattr(stats, name)
        counts = [getattr(record, name) for record in records]
        assert max(counts, default=0) <= total <= sum(counts)
    assert stats.plain_steps <= stats.steps
    assert stats.steps <= stats.expected_tokens <= (stats.steps + stats.drafted) * (1 + 1e-9)
