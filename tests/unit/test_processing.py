"""Row processors: each row is judged by its own path, and requests keep to themselves."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from contract.drafters import ALL
from outdraft.models.table import TableTarget
from outdraft.plan import make_plan
from outdraft.processing import RowProcessor, row_paths
from outdraft.step import choose_tokens, process_rows
from outdraft.types import DraftTree
from support.runs import run
from support.toys import TABLE, make_sequence

CPU = torch.device("cpu")
TARGET = TableTarget(**TABLE)
PROMPT = (5, 6, 7, 8, 9)
#   root ─▶ 4 ─▶ 5    and    root ─▶ 6 ─▶ 7
TREE = DraftTree((4, 5, 6, 7), (-1, 0, -1, 2), (0.9, 0.9, 0.5, 0.5))


class NoneTwice(RowProcessor):
    """Bans every token that stands before the row; notes what it is told."""

    def __init__(self) -> None:
        self.advanced: list[int] = []
        self.passes = 0

    def process(self, ids: Seq[int], tree: DraftTree, logits: Tensor) -> Tensor:
        assert self.advanced == list(ids)[len(ids) - len(self.advanced) :]
        self.passes += 1
        for row, path in enumerate(row_paths(tree)):
            logits[row, [*ids, *path]] = float("-inf")
        return logits

    def advance(self, token_id: int) -> None:
        self.advanced.append(token_id)


def test_row_paths_are_the_guesses_down_to_each_row() -> None:
    assert row_paths(TREE) == [(), (4,), (4, 5), (6,), (6, 7)]
    assert row_paths(DraftTree()) == [()]


def test_each_row_is_processed_by_its_own_path() -> None:
    sequence = make_sequence([1, 2], processors=[NoneTwice()])
    scores = process_rows(torch.zeros(1, 5, 16), [TREE], [sequence])
    banned = [set(row.isneginf().nonzero()[:, 0].tolist()) for row in scores[0]]
    assert banned == [{1, 2}, {1, 2, 4}, {1, 2, 4, 5}, {1, 2, 6}, {1, 2, 6, 7}]


def test_without_processors_the_logits_are_not_even_copied() -> None:
    logits = torch.zeros(1, 1, 16)
    assert process_rows(logits, [DraftTree()], [make_sequence()]) is logits


def test_neighbours_and_the_targets_own_logits_stay_as_they_are() -> None:
    logits = torch.randn(2, 5, 16)
    before = logits.clone()
    batch = [make_sequence([1, 2], processors=[NoneTwice()]), make_sequence([3])]
    scores = process_rows(logits, [TREE, DraftTree()], batch)
    assert torch.equal(logits, before)
    assert torch.equal(scores[1], logits[1])
    assert not torch.equal(scores[0], logits[0])


def test_half_precision_is_raised_before_it_is_processed() -> None:
    logits = torch.zeros(1, 1, 16, dtype=torch.bfloat16)
    sequence = make_sequence([1], processors=[NoneTwice()])
    assert process_rows(logits, [DraftTree()], [sequence]).dtype == torch.float32


def test_the_processed_logits_are_those_that_count() -> None:
    sequence = make_sequence([1, 2], processors=[NoneTwice()])
    plan = make_plan([TREE], [sequence], 9, vocab_size=16, device=CPU)
    logits = torch.zeros(1, 5, 16)
    logits[..., 1] = 9.0
    logits[..., 3] = 1.0
    scores = process_rows(logits, plan.trees, [sequence])
    assert choose_tokens(scores, plan.trees, [sequence]).tolist() == [[3] * 5]


def test_processors_work_in_their_order() -> None:
    class Zero(RowProcessor):
        def process(self, ids: Seq[int], tree: DraftTree, logits: Tensor) -> Tensor:
            return torch.zeros_like(logits)

    logits = torch.ones(1, 1, 16)
    for processors, count in [([NoneTwice(), Zero()], 0), ([Zero(), NoneTwice()], 2)]:
        sequence = make_sequence([1, 2], processors=processors)
        scores = process_rows(logits.clone(), [DraftTree()], [sequence])
        assert int(scores.isneginf().sum()) == count


def test_a_run_tells_of_every_committed_token_and_asks_once_per_pass() -> None:
    plain = make_sequence(PROMPT, eos_ids=[], max_new_tokens=9, processors=[NoneTwice()])
    run(TARGET, ALL["none"](TARGET, {}), [plain])
    assert len(set(plain.new_ids) | set(PROMPT)) == 9 + len(PROMPT)
    for name in ("AlwaysRight", "RightThenWrong", "WrongSibling"):
        watch = NoneTwice()
        sequence = make_sequence(PROMPT, eos_ids=[], max_new_tokens=9, processors=[watch])
        run(TARGET, ALL[name](TARGET, {PROMPT: plain.new_ids}), [sequence], max_draft_nodes=4)
        assert sequence.new_ids == plain.new_ids == watch.advanced
        assert watch.passes == sequence.stats.steps + 1
        assert sequence.stats.accepted > 0


def test_where_drafting_is_off_nothing_is_guessed_and_the_reason_is_told() -> None:
    texts = {PROMPT: [1] * 9, (7,): [1] * 9}
    batch = [
        make_sequence(PROMPT, max_new_tokens=9, drafting_off_reason="because"),
        make_sequence((7,), request_id=1, max_new_tokens=9),
    ]
    run(TARGET, ALL["TooLong"](TARGET, texts), batch)
    assert (batch[0].stats.drafted, batch[0].stats.drafting_off_reason) == (0, "because")
    assert batch[1].stats.drafted > 0
    assert batch[1].stats.drafting_off_reason is None


def test_a_plan_has_no_guesses_for_a_request_without_drafting() -> None:
    batch = [make_sequence(drafting_off_reason="because"), make_sequence()]
    plan = make_plan([TREE, TREE], batch, 9, vocab_size=16, device=CPU)
    assert [len(tree) for tree in plan.trees] == [0, 4]
