from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from outdraft.interfaces import Drafter
from outdraft.models.table import TableTarget
from outdraft.plan import make_plan
from outdraft.sampling import draw, keyed_noise, to_probs
from outdraft.sequence import Sequence
from outdraft.step import choose_tokens, step
from outdraft.types import Budget, DraftTree
from plain import reader_of_target
from support.toys import make_sequence

CPU = torch.device("cpu")
VOCAB = 16


def logits_for(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, VOCAB, generator=generator, dtype=torch.float64)


def choose(trees: Seq[DraftTree], batch: Seq[Sequence], logits: Tensor) -> list[list[int]]:
    plan = make_plan(trees, batch, 99, vocab_size=VOCAB, device=CPU)
    chosen = choose_tokens(logits, plan.trees, batch).tolist()
    return [row[: 1 + len(tree)] for row, tree in zip(chosen, trees, strict=True)]


def drawn_alone(logits: Tensor, sequence: Sequence, position: int) -> int:
    probs = to_probs(logits[None], sequence.settings)
    return int(draw(probs, keyed_noise(sequence.seed, [position], VOCAB, CPU)))


def test_greedy_rows_take_their_likeliest_token() -> None:
    logits = logits_for(1, 3)
    chosen = choose([DraftTree.chain([1, 2])], [make_sequence()], logits)
    assert chosen == logits.argmax(dim=-1).tolist()


def test_a_sampled_row_draws_with_the_noise_of_the_position_behind_it() -> None:
    sequence = make_sequence([1, 2, 3], temperature=1.5, seed=5)
    logits = logits_for(1, 4)
    chosen = choose([DraftTree.chain([1, 2, 3])], [sequence], logits)
    assert chosen == [[drawn_alone(logits[0, row], sequence, 3 + row) for row in range(4)]]


def test_rows_of_one_depth_share_their_noise() -> None:
    #   root ─▶ 4 ─▶ 5    and    root ─▶ 6 ─▶ 7
    tree = DraftTree((4, 5, 6, 7), (-1, 0, -1, 2), (0.9, 0.9, 0.5, 0.5))
    sequence = make_sequence([1, 2, 3], temperature=1.5, seed=5)
    logits = logits_for(1, 5)
    chosen = choose([tree], [sequence], logits)
    depths = [0, 1, 2, 1, 2]
    assert chosen == [
        [drawn_alone(logits[0, row], sequence, 3 + depth) for row, depth in enumerate(depths)]
    ]


def test_neighbours_of_any_kind_do_not_shift_a_draw() -> None:
    logits = logits_for(3, 3)
    trees = [DraftTree.chain([1, 2]), DraftTree(), DraftTree.chain([3])]
    batch = [
        make_sequence([1, 2], temperature=1.2, seed=5),
        make_sequence([3], temperature=0.0, seed=5),
        make_sequence([4, 5, 6], temperature=0.8, top_p=0.7, seed=6),
    ]
    together = choose(trees, batch, logits)
    for i in range(3):
        assert [together[i]] == choose([trees[i]], [batch[i]], logits[i : i + 1])


def test_another_seed_or_position_draws_other_tokens() -> None:
    logits = torch.zeros(1, 1, VOCAB)
    flat = [
        choose([DraftTree()], [make_sequence(ids, temperature=1.0, seed=seed)], logits)[0][0]
        for seed in range(20)
        for ids in ([1], [1, 1])
    ]
    assert len(set(flat)) > VOCAB // 2


class Nosy(Drafter):
    """Notes the budgets it was given."""

    name = "nosy"

    def __init__(self) -> None:
        self.budgets: list[Budget] = []

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        self.budgets.append(budget)
        return [DraftTree()] * len(batch)


def test_the_budget_leaves_room_for_the_targets_own_token(table: TableTarget) -> None:
    batch = [make_sequence([1], max_new_tokens=4), make_sequence([2], max_new_tokens=1)]
    cache = table.new_cache()
    for _ in batch:
        cache.add()
    drafter = Nosy()
    commits = step(batch, drafter, table, cache, max_nodes=6)
    assert drafter.budgets == [Budget(6, (3, 0))]
    assert [len(commit.token_ids) for commit in commits] == [1, 1]
    assert cache.committed_lens == (1, 1)


class Listening(Drafter):
    """Guesses a tree and keeps all the target says of it."""

    name = "listening"
    wants_logits = True

    def __init__(self, tree: DraftTree) -> None:
        self.tree = tree
        self.heard: list[tuple[list[int], DraftTree, Tensor]] = []

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        return [self.tree, *[DraftTree()] * (len(batch) - 1)]

    def observe_logits(self, sequence: Sequence, tree: DraftTree, logits: Tensor) -> None:
        self.heard.append((list(sequence.ids), tree, logits.clone()))


def test_a_drafter_that_wants_logits_hears_of_every_row_before_the_commit(
    table: TableTarget,
) -> None:
    #   root ─▶ 4 ─▶ 5    and    root ─▶ 6
    tree = DraftTree((4, 5, 6), (-1, 0, -1), (0.9, 0.9, 0.5), "listening")
    drafter = Listening(tree)
    batch = [make_sequence([1]), make_sequence([2])]
    cache = table.new_cache()
    for _ in batch:
        cache.add()
    step(batch, drafter, table, cache, max_nodes=6)
    read = reader_of_target(table)
    (ids, planned, logits), (other_ids, empty, other_logits) = drafter.heard
    assert (ids, planned) == ([1], tree)
    assert (other_ids, empty) == ([2], DraftTree())
    torch.testing.assert_close(
        logits, torch.cat([read([1]), read([1, 4]), read([1, 4, 5]), read([1, 6])])
    )
    torch.testing.assert_close(other_logits, read([2]))
