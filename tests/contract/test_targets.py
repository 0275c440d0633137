"""What every target has to hold: however rows are put into passes, they read the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence as Seq

import pytest
import torch
from torch import Tensor

from outdraft.errors import CacheError
from outdraft.interfaces import KVCache, TargetModel
from outdraft.models.table import TableTarget
from outdraft.plan import make_plan
from outdraft.types import DraftTree, Rows
from plain import Read, reader_of_model, reader_of_target
from support.tiny_models import ATTENTION, MODELS, tiny_model, tiny_target
from support.toys import TABLE, make_sequence

CPU = torch.device("cpu")
Make = Callable[[], tuple[TargetModel, Read]]


def _table() -> tuple[TargetModel, Read]:
    target = TableTarget(**TABLE)
    return target, reader_of_target(target)


def _model(name: str, attention: str) -> Make:
    return lambda: (tiny_target(name, attention), reader_of_model(tiny_model(name, attention)))


TARGETS: dict[str, Make] = {"table": _table} | {
    f"{name}-{attention}": _model(name, attention) for name in MODELS for attention in ATTENTION
}


@pytest.fixture(autouse=True)
def as_in_the_engine() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(params=TARGETS)
def made(request: pytest.FixtureRequest) -> tuple[TargetModel, Read]:
    return TARGETS[request.param]()


@pytest.fixture
def target(made: tuple[TargetModel, Read]) -> TargetModel:
    return made[0]


@pytest.fixture
def read(made: tuple[TargetModel, Read]) -> Read:
    """Reads a whole text without a cache: what the target has to agree with."""
    return made[1]


IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]  # longer than the windows
OTHER_IDS = [2, 7, 1]


def close(actual: Tensor, expected: Tensor) -> None:
    # eager attention takes its softmax in fp32, whatever the model's precision
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0, atol=1e-4)


def read_each(read: Read, texts: Seq[Seq[int]]) -> Tensor:
    return torch.cat([read(text) for text in texts])


def feed(target: TargetModel, cache: KVCache, ids: Seq[int], seq_idx: int) -> Tensor:
    """Reads and commits a chain behind what the sequence has; its logits `[rows, vocab]`."""
    start = cache.committed_lens[seq_idx]
    logits = target.forward(Rows.chain(ids, start, CPU), cache, first_seq=seq_idx)
    cache.commit(seq_idx, range(len(ids)))
    return logits[0]


def cache_with(target: TargetModel, *texts: Seq[int]) -> KVCache:
    cache = target.new_cache()
    for ids in texts:
        feed(target, cache, ids, cache.add())
    return cache


def rows_behind(contexts: Seq[Seq[int]], root: int, trees: Seq[DraftTree]) -> Rows:
    """A root and a tree of guesses behind each context."""
    batch = [make_sequence([*context, root]) for context in contexts]
    return make_plan(trees, batch, 99, vocab_size=16, device=CPU).rows


def test_a_pass_reads_a_text_as_the_model_itself_does(target: TargetModel, read: Read) -> None:
    cache = target.new_cache()
    logits = feed(target, cache, IDS, cache.add())
    close(logits, read_each(read, [IDS[: end + 1] for end in range(len(IDS))]))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_chunks_of_any_size_read_the_same(target: TargetModel, read: Read, size: int) -> None:
    cache = target.new_cache()
    seq_idx = cache.add()
    chunks = [IDS[start : start + size] for start in range(0, len(IDS), size)]
    logits = [feed(target, cache, chunk, seq_idx)[-1:] for chunk in chunks]
    ends = [min(start + size, len(IDS)) for start in range(0, len(IDS), size)]
    close(torch.cat(logits), read_each(read, [IDS[:end] for end in ends]))


def test_each_branch_of_a_tree_reads_as_if_it_were_the_text(
    target: TargetModel, read: Read
) -> None:
    #   root ─▶ 1 ─▶ 2 ─▶ 3    and    root ─▶ 4 ─▶ 5    and    1 ─▶ 6
    tree = DraftTree((1, 2, 3, 4, 5, 6), (-1, 0, 1, -1, 3, 0), (0.9, 0.9, 0.9, 0.5, 0.5, 0.1))
    paths = [[], [1], [1, 2], [1, 2, 3], [1, 6], [4], [4, 5]]  # by path probability, deep first
    rows = rows_behind([IDS], 7, [tree])
    logits = target.forward(rows, cache_with(target, IDS))
    texts = [[*IDS, *tree_path(rows, row)] for row in range(7)]
    assert sorted(text[len(IDS) + 1 :] for text in texts) == sorted(paths)
    close(logits[0], read_each(read, texts))


def tree_path(rows: Rows, row: int, seq_idx: int = 0) -> list[int]:
    """The tokens a row sees among the rows of its pass, itself included."""
    seen = rows.ancestors[seq_idx, row].nonzero()[:, 0]
    return rows.token_ids[seq_idx, seen].tolist()


def test_ragged_sequences_share_a_pass_without_noticing(target: TargetModel, read: Read) -> None:
    contexts = [IDS, OTHER_IDS, IDS[:9]]
    trees = [DraftTree.chain([1, 2]), DraftTree((3, 4, 5), (-1, -1, 1), (0.9, 0.5, 0.5))]
    trees.append(DraftTree())
    rows = rows_behind(contexts, 6, trees)
    logits = target.forward(rows, cache_with(target, *contexts))
    for i, context in enumerate(contexts):
        texts = [[*context, *tree_path(rows, row, i)] for row in range(rows.row_lens[i])]
        close(logits[i, : rows.row_lens[i]], read_each(read, texts))


def test_rejected_rows_leave_no_trace(target: TargetModel, read: Read) -> None:
    cache = cache_with(target, IDS[:6])
    tree = DraftTree((1, 2, 3, 4), (-1, 0, -1, 2), (0.9, 0.9, 0.5, 0.5))
    rows = rows_behind([IDS[:6]], 7, [tree])
    target.forward(rows, cache)
    cache.commit(0, [0, 3, 4])  # the second branch
    accepted = [*IDS[:6], 7, 3, 4]
    close(feed(target, cache, [8], 0), read_each(read, [[*accepted, 8]]))


def test_a_long_life_of_tree_steps_reads_as_the_text_it_wrote(
    target: TargetModel, read: Read
) -> None:
    texts = [[3, 1], [2, 7]]
    cache = cache_with(target, [3], [2])
    for turn in range(6):
        trees = [
            DraftTree((1, 2 + turn, 3, 9), (-1, -1, 1, 0), (0.9, 0.5, 0.5, 0.9)),
            DraftTree.chain([4, 5, turn]),
        ]
        batch = [make_sequence(text) for text in texts]
        plan = make_plan(trees, batch, 99, vocab_size=16, device=CPU)
        logits = target.forward(plan.rows, cache)
        paths = [[0, 3, 4] if turn % 2 else [0, 3], list(range(1 + turn % 4))]
        for i, path in enumerate(paths):
            cache.commit(i, path)
            seen = [*texts[i], *plan.rows.token_ids[i, path[1:]].tolist()]
            close(logits[i, path[-1:]], read_each(read, [seen]))
            texts[i] = [*seen, 10 + turn % 3]


def test_later_sequences_can_be_read_alone(target: TargetModel, read: Read) -> None:
    cache = cache_with(target, OTHER_IDS, IDS[:5], OTHER_IDS)
    rows = Rows.chain(IDS[5:8], 5, CPU)
    logits = target.forward(rows, cache, first_seq=1)
    close(logits[0], read_each(read, [IDS[:6], IDS[:7], IDS[:8]]))


def test_a_sequence_that_took_over_a_place_reads_on(target: TargetModel, read: Read) -> None:
    cache = cache_with(target, OTHER_IDS, [1], IDS)
    cache.remove(0)
    close(feed(target, cache, [8, 7], 0), read_each(read, [[*IDS, 8], [*IDS, 8, 7]]))
    close(feed(target, cache, [5], 1), read_each(read, [[1, 5]]))


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_last_rows_can_be_judged_alone(target: TargetModel, keep: int) -> None:
    def read_five(logits_to_keep: int) -> Tensor:
        cache = target.new_cache()
        cache.add()
        return target.forward(Rows.chain(IDS[:5], 0, CPU), cache, logits_to_keep=logits_to_keep)

    everything = read_five(0)
    assert everything.shape == (1, 5, target.vocab_size)
    close(read_five(keep), everything[:, -keep:])


def test_a_cache_of_another_kind_is_refused(target: TargetModel) -> None:
    class Other(KVCache):
        committed_lens = (0,)

        def add(self) -> int:
            return 0

        def add_from(self, source: KVCache, seq_idx: int, length: int) -> int:
            return 0

        def remove(self, seq_idx: int) -> None: ...

        def commit(self, seq_idx: int, path: Seq[int]) -> None: ...

    with pytest.raises(CacheError, match="Other"):
        target.forward(Rows.chain([1], 0, CPU), Other())


def test_sequences_the_cache_does_not_hold_are_refused(target: TargetModel) -> None:
    cache = cache_with(target, [1, 2])
    with pytest.raises(CacheError, match="the cache holds 1"):
        target.forward(Rows.chain([1], 0, CPU), cache, first_seq=1)
