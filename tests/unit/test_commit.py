from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import pytest
import torch

from outdraft.commit import append_tokens, commit
from outdraft.interfaces import Drafter, KVCache
from outdraft.plan import make_plan
from outdraft.sequence import Sequence
from outdraft.types import Budget, Commit, DraftTree, Verdict
from support.toys import EOS, make_sequence

A, B, C, D, E = range(5)
CPU = torch.device("cpu")


class Journal(KVCache, Drafter):
    """A cache and a drafter that write down what they are told, in order."""

    name = "journal"
    committed_lens = ()

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []

    def add(self) -> int:
        raise NotImplementedError

    def add_from(self, source: KVCache, seq_idx: int, length: int) -> int:
        raise NotImplementedError

    def remove(self, seq_idx: int) -> None:
        raise NotImplementedError

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        raise NotImplementedError

    def commit(self, seq_idx: int, path: Seq[int]) -> None:
        self.lines.append(("cache", seq_idx, tuple(path)))

    def observe(self, sequence: Sequence, commit: Commit) -> None:
        assert sequence.new_ids[-len(commit.token_ids) :] == list(commit.token_ids)
        self.lines.append(("drafter", sequence.request_id, commit.token_ids))


def commit_one(
    sequence: Sequence, tree: DraftTree, verdict: Verdict
) -> tuple[Commit, list[tuple[Any, ...]]]:
    plan = make_plan([tree], [sequence], 99, vocab_size=16, device=CPU)
    journal = Journal()
    (done,) = commit([verdict], plan, [sequence], journal, journal)
    return done, journal.lines


CHAIN = DraftTree.chain([A, B, C])
ALL_RIGHT = Verdict((0, 1, 2, 3), (A, B, C, D), "bonus", (1, 1, 1))


def test_accepted_tokens_and_the_targets_own_become_text() -> None:
    sequence = make_sequence([9])
    done, lines = commit_one(sequence, CHAIN, ALL_RIGHT)
    assert done == Commit(
        request_id=0,
        token_ids=(A, B, C, D),
        origins=("drafted", "drafted", "drafted", "bonus"),
        text="abcd",
        finish_reason=None,
    )
    assert sequence.ids == [9, A, B, C, D]
    assert lines == [("cache", 0, (0, 1, 2, 3)), ("drafter", 0, (A, B, C, D))]


def test_a_correction_leaves_the_rejected_rows_behind() -> None:
    sequence = make_sequence([9])
    done, lines = commit_one(sequence, CHAIN, Verdict((0, 1), (A, E), "corrected", (1, 1)))
    assert (done.token_ids, done.origins) == ((A, E), ("drafted", "corrected"))
    assert lines[0] == ("cache", 0, (0, 1))


def test_a_plain_step_commits_the_root_row_and_one_token() -> None:
    sequence = make_sequence([9])
    done, lines = commit_one(sequence, DraftTree(), Verdict((0,), (E,), "plain", ()))
    assert (done.token_ids, done.origins) == ((E,), ("plain",))
    assert lines[0] == ("cache", 0, (0,))


def test_rows_of_a_tree_keep_their_numbers() -> None:
    tree = DraftTree((A, B, C), (-1, -1, 1), (0.9, 0.5, 0.5))
    verdict = Verdict((0, 2, 3), (B, C, D), "bonus", (2, 1))
    _, lines = commit_one(make_sequence([9]), tree, verdict)
    assert lines[0] == ("cache", 0, (0, 2, 3))


@pytest.mark.parametrize("end_at", range(4))
def test_an_end_token_anywhere_in_the_run_is_the_last_token(end_at: int) -> None:
    token_ids = [A, B, C, D]
    token_ids[end_at] = EOS
    sequence = make_sequence([9])
    done, lines = commit_one(
        sequence,
        DraftTree.chain(token_ids[:3]),
        Verdict((0, 1, 2, 3), tuple(token_ids), "bonus", (1, 1, 1)),
    )
    assert done.token_ids == tuple(token_ids[: end_at + 1])
    assert done.text == "abc"[:end_at]
    assert done.finish_reason == sequence.finish_reason == "stop"
    assert lines == [
        ("cache", 0, tuple(range(end_at + 1))),
        ("drafter", 0, done.token_ids),
    ]


@pytest.mark.parametrize(
    ("stop", "num_kept", "text"),
    [("a", 1, ""), ("ab", 2, ""), ("bc", 3, "a"), ("cd", 4, "ab"), ("d", 4, "abc")],
)
def test_a_stop_string_anywhere_in_the_run_cuts_it(stop: str, num_kept: int, text: str) -> None:
    sequence = make_sequence([9], stop=stop)
    done, _ = commit_one(sequence, CHAIN, ALL_RIGHT)
    assert done.token_ids == (A, B, C, D)[:num_kept]
    assert (done.text, done.finish_reason) == (text, "stop")


def test_the_earliest_stop_wins() -> None:
    sequence = make_sequence([9], stop=("d", "b"), max_new_tokens=3)
    done, _ = commit_one(sequence, DraftTree.chain([A, B]), ALL_RIGHT)
    assert (done.token_ids, done.finish_reason) == ((A, B), "stop")


def test_the_cap_cuts_a_run() -> None:
    sequence = make_sequence([9], max_new_tokens=4)
    sequence.append(E)
    done, _ = commit_one(sequence, DraftTree.chain([A, B]), ALL_RIGHT)
    assert (done.token_ids, done.finish_reason) == ((A, B, C), "length")


def test_counters_see_kept_tokens_alone() -> None:
    sequence = make_sequence([9], stop="b")
    commit_one(sequence, CHAIN, ALL_RIGHT)
    stats = sequence.stats
    assert (stats.steps, stats.drafted) == (1, 3)
    assert (stats.tokens, stats.accepted, stats.own_tokens) == (2, 2, 0)
    assert stats.judged_by_depth == stats.accepted_by_depth == [1, 1, 1]


def test_each_sequence_of_a_batch_moves_by_its_own_verdict() -> None:
    batch = [make_sequence([9], request_id=7), make_sequence([8], request_id=3)]
    plan = make_plan([CHAIN, DraftTree()], batch, 9, vocab_size=16, device=CPU)
    journal = Journal()
    commit([ALL_RIGHT, Verdict((0,), (E,), "plain", ())], plan, batch, journal, journal)
    assert [sequence.new_ids for sequence in batch] == [[A, B, C, D], [E]]
    assert journal.lines == [
        ("cache", 0, (0, 1, 2, 3)),
        ("drafter", 7, (A, B, C, D)),
        ("cache", 1, (0,)),
        ("drafter", 3, (E,)),
    ]


def test_append_tokens_stops_behind_the_first_end() -> None:
    sequence = make_sequence([9])
    done = append_tokens(sequence, [A, EOS, B], ("drafted", "drafted", "bonus"))
    assert (done.token_ids, done.origins) == ((A, EOS), ("drafted", "drafted"))
    assert sequence.new_ids == [A, EOS]
