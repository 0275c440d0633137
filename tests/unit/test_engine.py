from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import pytest
import torch
from torch import Tensor

from outdraft.draft import make_drafter
from outdraft.draft.suffix import Suffix
from outdraft.engine import Engine
from outdraft.errors import DrafterError, SettingsError
from outdraft.interfaces import Drafter, KVCache
from outdraft.models.table import TableTarget
from outdraft.sequence import Sequence
from outdraft.settings import EngineSettings
from outdraft.trace import StepRecord
from outdraft.types import Budget, Commit, DraftTree, Rows
from support.runs import check_accounts, check_cache, run
from support.tiny_models import tiny_target
from support.toys import TABLE, make_sequence


class Watcher(Drafter):
    """Guesses a little and notes all it hears."""

    name = "watcher"

    def __init__(self) -> None:
        self.proposed_to: list[tuple[int, ...]] = []
        self.seen: dict[int, list[int]] = {}
        self.finished: list[int] = []

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        self.proposed_to.append(tuple(sequence.request_id for sequence in batch))
        return [DraftTree.chain([sequence.root_id], 0.5, self.name) for sequence in batch]

    def observe(self, sequence: Sequence, commit: Commit) -> None:
        assert sequence.request_id not in self.finished
        self.seen.setdefault(sequence.request_id, []).extend(commit.token_ids)

    def finish(self, sequence: Sequence) -> None:
        self.finished.append(sequence.request_id)


def requests(*lengths: int) -> list[Sequence]:
    """Requests with different prompts that write this many tokens."""
    return [
        make_sequence(range(i, i + 3), request_id=i, eos_ids=[], max_new_tokens=length)
        for i, length in enumerate(lengths)
    ]


def engine_of(table: TableTarget, drafter: Drafter | None = None, max_batch: int = 8) -> Engine:
    return Engine(table, drafter or Watcher(), EngineSettings(max_batch=max_batch))


def finish(engine: Engine) -> None:
    while not engine.is_idle:
        engine.step()
        check_cache(engine)


def texts_alone(table: TableTarget, *lengths: int) -> list[list[int]]:
    """What the same requests write if each has the engine to itself."""
    sequences = requests(*lengths)
    for sequence in sequences:
        run(table, make_drafter("none"), [sequence])
    return [sequence.new_ids for sequence in sequences]


def texts(sequences: Seq[Sequence]) -> list[list[int]]:
    return [sequence.new_ids for sequence in sequences]


# --- joining and leaving --------------------------------------------------------------------------


def test_a_new_engine_is_idle_and_a_step_does_nothing(table: TableTarget) -> None:
    engine = engine_of(table)
    assert engine.is_idle
    assert engine.step() == []


def test_the_first_step_brings_first_tokens_before_any_draft_work(table: TableTarget) -> None:
    drafter = Watcher()
    engine = engine_of(table, drafter)
    for sequence in requests(5, 5):
        engine.add(sequence)
    commits = engine.step()
    assert [(commit.request_id, commit.origins) for commit in commits] == [
        (0, ("plain",)),
        (1, ("plain",)),
    ]
    assert drafter.proposed_to == []


def test_requests_of_different_length_share_passes_and_leave_when_done(table: TableTarget) -> None:
    sequences = requests(1, 9, 4, 6)
    run(table, Watcher(), sequences)
    assert texts(sequences) == texts_alone(table, 1, 9, 4, 6)


def test_a_request_joins_while_others_run(table: TableTarget) -> None:
    sequences = requests(9, 9, 3)
    engine = engine_of(table)
    for sequence in sequences:
        engine.add(sequence)
        engine.step()
        engine.step()
        check_cache(engine)
    finish(engine)
    assert texts(sequences) == texts_alone(table, 9, 9, 3)


def test_more_requests_than_places_wait_for_one_to_leave(table: TableTarget) -> None:
    sequences = requests(3, 7, 5, 2, 6)
    drafter = Watcher()
    engine = engine_of(table, drafter, max_batch=2)
    for sequence in sequences:
        engine.add(sequence)
    engine.step()
    assert [len(sequence.new_ids) for sequence in sequences] == [1, 1, 0, 0, 0]
    finish(engine)
    assert max(len(batch) for batch in drafter.proposed_to) == 2
    assert texts(sequences) == texts_alone(table, 3, 7, 5, 2, 6)


def test_waiting_requests_start_in_the_order_they_came(table: TableTarget) -> None:
    commits = run(table, Watcher(), requests(2, 2, 2, 2), max_batch=1)
    started = list(dict.fromkeys(commit.request_id for commit in commits))
    assert started == [0, 1, 2, 3]


def test_a_request_that_ends_with_its_first_token_gives_its_place_on_at_once(
    table: TableTarget,
) -> None:
    engine = engine_of(table, max_batch=1)
    sequences = requests(1, 1, 1)
    for sequence in sequences:
        engine.add(sequence)
    assert [commit.finish_reason for commit in engine.step()] == ["length"] * 3
    assert engine.is_idle


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 512])
def test_a_prompt_read_in_chunks_gives_the_same_text(table: TableTarget, chunk: int) -> None:
    sequences = [make_sequence(range(7), max_new_tokens=6, request_id=i) for i in range(2)]
    run(table, Watcher(), sequences, prompt_chunk=chunk)
    whole = make_sequence(range(7), max_new_tokens=6)
    run(table, make_drafter("none"), [whole])
    assert texts(sequences) == [whole.new_ids] * 2


# --- prompts in between ---------------------------------------------------------------------------


def test_running_requests_move_on_while_a_long_prompt_is_read(table: TableTarget) -> None:
    engine = Engine(table, Watcher(), EngineSettings(prompt_chunk=4))
    short, late = requests(40, 3)
    long = make_sequence(range(10), request_id=7, eos_ids=[], max_new_tokens=5)
    engine.add(short)
    engine.step()
    engine.add(long)
    engine.add(late)
    lengths = []
    for _ in range(4):
        before = len(short.new_ids)
        engine.step()
        check_cache(engine)
        assert len(short.new_ids) > before
        lengths.append((len(long.new_ids), len(late.new_ids)))
    # 4, 4 and 2 tokens; the other prompt has 3, and is begun when all of it is affordable.
    assert [first for first, _ in lengths[:3]] == [0, 0, 1]
    assert [last for _, last in lengths] == [0, 0, 0, 1]
    finish(engine)
    assert [short.new_ids, late.new_ids] == texts_alone(table, 40, 3)
    alone = make_sequence(range(10), eos_ids=[], max_new_tokens=5)
    run(table, make_drafter("none"), [alone])
    assert long.new_ids == alone.new_ids


class Passes(TableTarget):
    """Notes how many rows were read of prompts, pass by pass."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**TABLE, **settings})
        self.prompt_rows: list[int] = []

    def forward(
        self, rows: Rows, cache: KVCache, *, first_seq: int = 0, logits_to_keep: int = 0
    ) -> Tensor:
        if logits_to_keep:
            self.prompt_rows.append(rows.num_rows)
        return super().forward(rows, cache, first_seq=first_seq, logits_to_keep=logits_to_keep)


@pytest.mark.parametrize("num_others", [0, 1, 3])
def test_a_prompt_is_cut_at_the_same_places_in_any_company(num_others: int) -> None:
    target = Passes()
    engine = Engine(target, Watcher(), EngineSettings(prompt_chunk=4))
    for sequence in requests(*[9] * num_others):
        engine.add(sequence)
    engine.add(make_sequence(range(11), request_id=9, max_new_tokens=3))
    finish(engine)
    assert target.prompt_rows == [*[3] * num_others, 4, 4, 3]


def test_no_step_reads_more_of_prompts_than_a_chunk() -> None:
    target = Passes()
    engine = Engine(target, Watcher(), EngineSettings(prompt_chunk=7))
    for sequence in requests(2, 2, 2, 2, 2):
        engine.add(sequence)
    while not engine.is_idle:
        target.prompt_rows.clear()
        engine.step()
        assert sum(target.prompt_rows) in (0, 3, 6)


def alike(*lengths: int, **settings: Any) -> list[Sequence]:
    """Requests with one prompt of 11 tokens, drawn with a seed each."""
    return [
        make_sequence(
            range(11),
            request_id=i,
            eos_ids=[],
            seed=i,
            **{"temperature": 9.0, "max_new_tokens": length, **settings},
        )
        for i, length in enumerate(lengths)
    ]


def check_alike(target: TableTarget, sequences: Seq[Sequence], **settings: Any) -> None:
    """Each has written what it writes with the engine to itself."""
    lengths = [len(sequence.new_ids) for sequence in sequences]
    for sequence, alone in zip(sequences, alike(*lengths, **settings), strict=True):
        run(target, make_drafter("none"), [alone])
        assert sequence.new_ids == alone.new_ids
        assert sequence.prompt_logprobs == alone.prompt_logprobs


@pytest.mark.parametrize("num_before", [0, 1])
def test_one_prompt_of_several_requests_is_read_once(num_before: int) -> None:
    target, told = Passes(), list[int]()

    def watch(record: StepRecord) -> None:
        if record.batch[0].stats.steps == 0:  # a prompt was read
            told.extend(record.row_lens)

    engine = Engine(target, Watcher(), EngineSettings(prompt_chunk=4, max_batch=6), on_step=watch)
    for _ in range(num_before):
        engine.add(make_sequence((3, 1), request_id=9, eos_ids=[], max_new_tokens=30))
        engine.step()
    target.prompt_rows.clear()
    sequences = alike(9, 4, 7, 5)
    for sequence in sequences:
        engine.add(sequence)
    finish(engine)
    assert target.prompt_rows == [4, 4, 3]
    assert told == [2] * num_before + [11, 0, 0, 0]
    assert [each.stats.reused_prompt_tokens for each in sequences] == [0, 11, 11, 11]
    assert len({tuple(each.new_ids[:4]) for each in sequences}) > 1
    check_alike(target, sequences)


def test_a_prompt_is_read_again_once_nothing_is_left_of_it() -> None:
    """The first has ended, there was no room, or its log-probabilities are wanted."""
    for lengths, settings, num_reads in [
        ((1, 1, 1), {}, 3),
        ((2, 2, 2, 2), {}, 2),
        ((2, 2), {"prompt_logprobs": True}, 2),
    ]:
        target = Passes()
        engine = Engine(target, Watcher(), EngineSettings(max_batch=3))
        sequences = alike(*lengths, **settings)
        for sequence in sequences:
            engine.add(sequence)
        finish(engine)
        rows = 11 * num_reads
        assert sum(target.prompt_rows) == (0 if settings else rows)  # else all rows are judged
        check_alike(target, sequences, **settings)


def test_requests_wait_for_room_in_the_cache(table: TableTarget) -> None:
    """Three of 8 + 3 tokens have room together, or one of 20 + 3 and another."""
    engine = Engine(table, Watcher(), EngineSettings(max_cached_tokens=46))
    sequences = requests(8, 8, 8, 20, 8)
    for sequence in sequences:
        engine.add(sequence)
    together: list[int] = []
    while not engine.is_idle:
        engine.step()
        running = engine._running
        together.append(len(running))
        assert len(running) * max((each.max_len for each in running), default=0) <= 46
    assert max(together) == 3
    assert together[-2] == 1
    assert texts(sequences) == texts_alone(table, 8, 8, 8, 20, 8)


def test_what_never_has_room_is_refused(table: TableTarget) -> None:
    engine = Engine(table, Watcher(), EngineSettings(max_cached_tokens=20))
    engine.add(requests(17)[0])
    message = "prompt of 3 tokens and up to 18 new ones.*max_cached_tokens=20"
    with pytest.raises(SettingsError, match=message):
        engine.add(requests(18)[0])


@pytest.mark.parametrize("num_steps", [1, 2])
def test_cancelling_a_request_whose_prompt_is_being_read_frees_its_place(
    table: TableTarget, num_steps: int
) -> None:
    drafter = Watcher()
    engine = Engine(table, drafter, EngineSettings(prompt_chunk=4, max_batch=2))
    sequences = requests(20, 6)
    long = make_sequence(range(12), request_id=7, max_new_tokens=5)
    engine.add(sequences[0])
    engine.step()
    engine.add(long)
    engine.add(sequences[1])
    for _ in range(num_steps):
        engine.step()
    engine.cancel(long)
    finish(engine)
    assert (long.finish_reason, long.new_ids) == ("cancelled", [])
    assert texts(sequences) == texts_alone(table, 20, 6)
    assert sorted(drafter.finished) == [0, 1]


@pytest.mark.parametrize("leaving", [0, 1, 2])
def test_a_request_of_a_real_cache_is_cancelled_from_anywhere(leaving: int) -> None:
    target = tiny_target("llama")
    engine = Engine(target, Suffix(), EngineSettings())
    sequences = requests(9, 9, 9)
    for sequence in sequences:
        engine.add(sequence)
    engine.step()
    engine.step()
    engine.cancel(sequences[leaving])
    finish(engine)
    alone = requests(9, 9, 9)
    for sequence, expected in zip(sequences, alone, strict=True):
        run(target, make_drafter("none"), [expected])
        assert sequence.new_ids == expected.new_ids[: len(sequence.new_ids)]
        assert (sequence.finish_reason == "cancelled") == (sequence is sequences[leaving])


# --- what the drafter hears -----------------------------------------------------------------------


def test_the_drafter_hears_of_every_token_and_of_every_end(table: TableTarget) -> None:
    drafter = Watcher()
    sequences = requests(1, 6, 3)
    run(table, drafter, sequences)
    assert drafter.seen == {sequence.request_id: sequence.new_ids for sequence in sequences}
    assert sorted(drafter.finished) == [0, 1, 2]


# --- cancelling -----------------------------------------------------------------------------------


def test_cancelling_a_waiting_request_takes_it_out_of_the_queue(table: TableTarget) -> None:
    sequences = requests(3, 3, 3)
    engine = engine_of(table, max_batch=1)
    for sequence in sequences:
        engine.add(sequence)
    engine.cancel(sequences[1])
    finish(engine)
    assert [sequence.finish_reason for sequence in sequences] == ["length", "cancelled", "length"]
    assert sequences[1].new_ids == []


@pytest.mark.parametrize("leaving", [0, 1, 2])
@pytest.mark.parametrize("after_steps", [1, 2, 4])
def test_cancelling_a_running_request_touches_no_other(
    table: TableTarget, leaving: int, after_steps: int
) -> None:
    drafter = Watcher()
    engine = engine_of(table, drafter)
    sequences = requests(9, 9, 9)
    for sequence in sequences:
        engine.add(sequence)
    for _ in range(after_steps):
        engine.step()
    so_far = list(sequences[leaving].new_ids)
    engine.cancel(sequences[leaving])
    check_cache(engine)
    assert drafter.finished == [leaving]
    finish(engine)
    alone = texts_alone(table, 9, 9, 9)
    assert sequences[leaving].finish_reason == "cancelled"
    assert sequences[leaving].new_ids == so_far == alone[leaving][: len(so_far)]
    for other in {0, 1, 2} - {leaving}:
        assert sequences[other].new_ids == alone[other]
    assert sorted(drafter.finished) == [0, 1, 2]


def test_cancelling_twice_or_too_late_changes_nothing(table: TableTarget) -> None:
    drafter = Watcher()
    engine = engine_of(table, drafter)
    (sequence,) = requests(3)
    engine.add(sequence)
    finish(engine)
    engine.cancel(sequence)
    engine.cancel(sequence)
    assert sequence.finish_reason == "length"
    assert drafter.finished == [0]


def test_a_cancelled_place_is_taken_by_the_next_request(table: TableTarget) -> None:
    engine = engine_of(table, max_batch=1)
    sequences = requests(50, 3)
    for sequence in sequences:
        engine.add(sequence)
    engine.step()
    engine.cancel(sequences[0])
    finish(engine)
    assert sequences[1].new_ids == texts_alone(table, 50, 3)[1]


# --- errors ---------------------------------------------------------------------------------------


def test_an_empty_prompt_is_refused(table: TableTarget) -> None:
    with pytest.raises(SettingsError, match="no tokens"):
        engine_of(table).add(make_sequence([]))


@pytest.mark.parametrize(("prompt_len", "too_many"), [(20, 1), (21, 2), (30, 11)])
def test_a_prompt_that_fills_the_context_is_refused(prompt_len: int, too_many: int) -> None:
    target = TableTarget(max_context=20)
    sequence = make_sequence([1] * prompt_len, max_context=20)
    with pytest.raises(SettingsError, match=f"{prompt_len} tokens.* 20; .* {too_many}$"):
        engine_of(target).add(sequence)
    assert engine_of(target).is_idle


def test_the_longest_prompt_that_fits_gets_one_token() -> None:
    target = TableTarget(max_context=20)
    sequence = make_sequence([1] * 19, max_context=20)
    run(target, Watcher(), [sequence])
    assert (len(sequence.new_ids), sequence.finish_reason) == (1, "length")


class Broken(Watcher):
    """Breaks its contract after a few steps."""

    def __init__(self, answer: list[DraftTree] | Exception) -> None:
        super().__init__()
        self.answer: list[DraftTree] | Exception | None = answer

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        trees = super().propose(batch, budget)
        if len(self.proposed_to) < 3 or self.answer is None:
            return trees
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ([DraftTree()], DrafterError, "made 1 drafts for 2 sequences"),
        ([DraftTree.chain([16], drafter="broken"), DraftTree()], DrafterError, "vocabulary has 16"),
        (RuntimeError("no idea"), RuntimeError, "no idea"),
    ],
)
def test_a_drafters_error_reaches_the_caller_and_leaves_the_texts_consistent(
    table: TableTarget,
    answer: list[DraftTree] | Exception,
    error: type[Exception],
    message: str,
) -> None:
    drafter = Broken(answer)
    engine = engine_of(table, drafter)
    sequences = requests(9, 9)
    for sequence in sequences:
        engine.add(sequence)
    with pytest.raises(error, match=message):
        finish(engine)
    check_cache(engine)
    drafter.answer = None
    finish(engine)
    assert texts(sequences) == texts_alone(table, 9, 9)


class BrokenEar(Watcher):
    """Cannot stand the end of a request."""

    def observe(self, sequence: Sequence, commit: Commit) -> None:
        super().observe(sequence, commit)
        if commit.finish_reason is not None:
            raise RuntimeError("no more")


def test_an_error_while_a_request_ends_does_not_carry_it_past_its_end(table: TableTarget) -> None:
    engine = engine_of(table, BrokenEar())
    sequences = requests(3, 6)
    for sequence in sequences:
        engine.add(sequence)
    for _ in sequences:
        with pytest.raises(RuntimeError, match="no more"):
            finish(engine)
    finish(engine)
    assert texts(sequences) == texts_alone(table, 3, 6)


class BrokenTarget(TableTarget):
    """Fails in one of its passes."""

    def __init__(self, failing_pass: int) -> None:
        super().__init__(**TABLE)
        self.passes_left = failing_pass

    def forward(
        self, rows: Rows, cache: KVCache, *, first_seq: int = 0, logits_to_keep: int = 0
    ) -> Tensor:
        self.passes_left -= 1
        if self.passes_left == 0:
            raise RuntimeError("out of memory")
        return super().forward(rows, cache, first_seq=first_seq, logits_to_keep=logits_to_keep)


@pytest.mark.parametrize("failing_pass", range(1, 8))
def test_after_a_failed_pass_no_request_runs_on_with_a_hole_in_its_cache(
    table: TableTarget, failing_pass: int
) -> None:
    engine = Engine(BrokenTarget(failing_pass), Watcher(), EngineSettings(prompt_chunk=2))
    sequences = requests(5, 5)
    for sequence in sequences:
        engine.add(sequence)
    with pytest.raises(RuntimeError, match="out of memory"):
        finish(engine)
    check_cache(engine)
    finish(engine)
    for sequence, alone in zip(sequences, texts_alone(table, 5, 5), strict=True):
        assert sequence.new_ids == alone[: len(sequence.new_ids)]


def test_a_failed_prompt_loses_no_token_of_the_requests_admitted_before_it() -> None:
    engine = Engine(BrokenTarget(2), Watcher(), EngineSettings())
    sequences = requests(4, 4)
    for sequence in sequences:
        engine.add(sequence)
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.step()
    commits = []
    while not engine.is_idle:
        commits += engine.step()
    first = [commit for commit in commits if commit.request_id == sequences[0].request_id]
    told = [token for commit in first for token in commit.token_ids]
    assert told == sequences[0].new_ids
    assert len(told) == 4


class DeafAt(Watcher):
    """Fails at a request's third commit, once."""

    def __init__(self, request_id: int) -> None:
        super().__init__()
        self.request_id = request_id
        self.heard: list[int] = []

    def observe(self, sequence: Sequence, commit: Commit) -> None:
        super().observe(sequence, commit)
        self.heard.append(sequence.request_id)
        if sequence.request_id == self.request_id and self.heard.count(self.request_id) == 3:
            raise RuntimeError("what?")


@pytest.mark.parametrize("deaf_at", [0, 1, 2])
def test_a_drafter_that_fails_to_hear_loses_nobodys_tokens(
    table: TableTarget, deaf_at: int
) -> None:
    engine = engine_of(table, DeafAt(deaf_at))
    sequences = requests(9, 9, 9)
    for sequence in sequences:
        engine.add(sequence)
    commits: list[Commit] = []
    num_failures = 0
    while not engine.is_idle:
        try:
            commits += engine.step()
        except RuntimeError:
            num_failures += 1
        check_cache(engine)
    assert num_failures == 1
    for sequence in sequences:
        own = [commit for commit in commits if commit.request_id == sequence.request_id]
        assert [token for commit in own for token in commit.token_ids] == sequence.new_ids
        assert "".join(commit.text for commit in own) == sequence.text
        assert own[-1].finish_reason == "length"
    assert texts(sequences) == texts_alone(table, 9, 9, 9)


def test_an_observer_that_fails_loses_nobodys_tokens(table: TableTarget) -> None:
    def refuse(record: StepRecord) -> None:
        if len(record.batch) == 2 and not failed:
            failed.append(True)
            raise RuntimeError("disk full")

    failed: list[bool] = []
    engine = Engine(table, Watcher(), EngineSettings(), on_step=refuse)
    sequences = requests(6, 6)
    for sequence in sequences:
        engine.add(sequence)
    commits = engine.step()
    with pytest.raises(RuntimeError, match="disk full"):
        engine.step()
    while not engine.is_idle:
        commits += engine.step()
    check_accounts(sequences, commits)


def test_commits_are_ordinary_tensors_no_graph_is_kept(table: TableTarget) -> None:
    engine = engine_of(table)
    (sequence,) = requests(3)
    engine.add(sequence)
    with torch.enable_grad():
        finish(engine)
        assert torch.is_grad_enabled()
    assert len(sequence.new_ids) == 3


def test_the_reading_of_a_prompt_is_told_piece_by_piece(table: TableTarget) -> None:
    told: list[tuple[int, int]] = []
    engine = Engine(
        table,
        Watcher(),
        EngineSettings(prompt_chunk=4),
        on_prompt=lambda *progress: told.append(progress),
    )
    engine.add(make_sequence(range(1, 11), max_new_tokens=2))
    commits = [engine.step() for _ in range(3)]
    assert told == [(4, 10), (8, 10), (10, 10)]
    assert [len(each) for each in commits] == [0, 0, 1]


def test_what_a_drafters_stores_took_is_in_the_statistics(table: TableTarget) -> None:
    engine = Engine(table, Suffix(), EngineSettings())
    sequence = make_sequence((1, 2, 1, 2, 1), max_new_tokens=6)
    engine.add(sequence)
    while not engine.is_idle:
        engine.step()
    assert sequence.stats.drafters["suffix"].memory_bytes > 0
