"""What every cache has to hold: after any passes and commits, exactly the committed rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq

import pytest
import torch
from hypothesis import given, strategies as st

from outdraft.errors import CacheError
from outdraft.interfaces import KVCache
from outdraft.models.cache import LayerShape, PositionCache
from outdraft.models.table import TableCache, TableTarget
from outdraft.types import Rows

CPU = torch.device("cpu")


class Bench(ABC):
    """A cache with somebody who writes passes into it and looks at what it holds."""

    cache: KVCache

    @abstractmethod
    def read_pass(self, values: Seq[Seq[int]], first_seq: int = 0) -> None:
        """A pass whose rows are these numbers, `[seqs][rows]`."""

    @abstractmethod
    def held(self) -> list[list[int]]:
        """The numbers each sequence owns; looking ends the pass in flight."""


class TableBench(Bench):
    TARGET = TableTarget(vocab_size=1000)

    def __init__(self) -> None:
        self.cache = TableCache()

    def read_pass(self, values: Seq[Seq[int]], first_seq: int = 0) -> None:
        num_seqs, num_rows = len(values), len(values[0])
        rows = Rows(
            token_ids=torch.tensor(values),
            position_ids=torch.zeros(num_seqs, num_rows, dtype=torch.long),
            ancestors=torch.zeros(num_seqs, num_rows, num_rows, dtype=torch.bool),
            row_lens=(num_rows,) * num_seqs,
        )
        self.TARGET.forward(rows, self.cache, first_seq=first_seq)

    def held(self) -> list[list[int]]:
        return [[value for value, _ in entries] for entries in self.cache.entries]


class PositionBench(Bench):
    """Layers of two shapes; each writes the numbers in a form of its own."""

    SHAPES = (
        LayerShape(heads=1, key_dim=2, value_dim=2, dtype=torch.float32, device=CPU),
        LayerShape(heads=2, key_dim=3, value_dim=1, dtype=torch.float64, device=CPU),
        LayerShape(heads=1, key_dim=2, value_dim=2, dtype=torch.float32, device=CPU),
    )

    def __init__(self) -> None:
        self.cache = PositionCache(self.SHAPES)

    def read_pass(self, values: Seq[Seq[int]], first_seq: int = 0) -> None:
        self._write(torch.tensor(values), first_seq)

    def _write(self, values: torch.Tensor, first_seq: int) -> list[list[list[int]]]:
        """Per layer and sequence, what the layer reads."""
        num_seqs, num_rows = values.shape
        self.cache.begin_pass(first_seq, num_seqs, num_rows)
        reads = []
        for i, layer in enumerate(self.cache.for_model.layers):
            shape = self.SHAPES[i]
            wide = (values + 1000 * i)[:, None, :, None].to(shape.dtype)
            keys, stored = layer.update(
                wide.expand(-1, shape.heads, -1, shape.key_dim),
                -wide.expand(-1, shape.heads, -1, shape.value_dim),
            )
            assert keys.shape[2] == stored.shape[2] == self.cache.pass_context
            assert bool((keys == keys[:, :1, :, :1]).all())  # in all heads and channels alike
            assert torch.equal(keys[:, 0, :, 0], -stored[:, 0, :, 0])
            reads.append((keys[:, 0, :, 0].long() - 1000 * i).tolist())
        return reads

    def held(self) -> list[list[int]]:
        lens = self.cache.committed_lens
        if not lens:
            return []
        by_layer = self._write(torch.full((len(lens), 1), 999), first_seq=0)
        cut = [
            [values[:length] for values, length in zip(layer, lens, strict=True)]
            for layer in by_layer
        ]
        assert cut[0] == cut[1] == cut[2]
        return cut[0]


BENCHES = {"TableCache": TableBench, "PositionCache": PositionBench}


@pytest.fixture(params=BENCHES)
def bench(request: pytest.FixtureRequest) -> Bench:
    return BENCHES[request.param]()


# --- growing --------------------------------------------------------------------------------------


def test_a_new_cache_holds_no_sequence(bench: Bench) -> None:
    assert bench.cache.committed_lens == ()


def test_a_new_sequence_is_the_last_and_empty(bench: Bench) -> None:
    assert [bench.cache.add(), bench.cache.add()] == [0, 1]
    assert bench.cache.committed_lens == (0, 0)


def test_rows_of_a_pass_are_nobodys_until_they_are_committed(bench: Bench) -> None:
    bench.cache.add()
    bench.read_pass([[1, 2, 3]])
    assert bench.cache.committed_lens == (0,)
    assert bench.held() == [[]]


@pytest.mark.parametrize("path", [[0], [0, 1, 2], [0, 2], [0, 3], [0, 1, 3], [2, 3], [1]])
def test_a_commit_keeps_the_rows_of_the_path_in_their_order(bench: Bench, path: list[int]) -> None:
    bench.cache.add()
    bench.read_pass([[10, 11, 12, 13]])
    bench.cache.commit(0, path)
    assert bench.cache.committed_lens == (len(path),)
    assert bench.held() == [[10 + row for row in path]]


def test_commits_line_up_behind_each_other(bench: Bench) -> None:
    bench.cache.add()
    for values, path in [([1, 2, 3], [0, 2]), ([4], [0]), ([5, 6, 7, 8], [0, 3]), ([9, 10], [0])]:
        bench.read_pass([values])
        bench.cache.commit(0, path)
    assert bench.held() == [[1, 3, 4, 5, 8, 9]]


def test_a_path_may_move_rows_over_their_own_places(bench: Bench) -> None:
    bench.cache.add()
    bench.read_pass([list(range(40))])
    path = [0, *range(2, 40)]
    bench.cache.commit(0, path)
    assert bench.held() == [path]


def test_a_pass_without_a_commit_leaves_no_trace(bench: Bench) -> None:
    bench.cache.add()
    bench.read_pass([[1, 2]])
    bench.cache.commit(0, [0, 1])
    bench.read_pass([[7, 8, 9]])
    bench.read_pass([[3]])
    bench.cache.commit(0, [0])
    assert bench.held() == [[1, 2, 3]]


def test_ragged_sequences_share_a_pass(bench: Bench) -> None:
    for values in ([1], [2, 3, 4], [5, 6]):
        seq_idx = bench.cache.add()
        bench.read_pass([values], first_seq=seq_idx)
        bench.cache.commit(seq_idx, range(len(values)))
    bench.read_pass([[10, 11, 12], [20, 21, 22], [30, 31, 32]])
    bench.cache.commit(0, [0, 1, 2])
    bench.cache.commit(2, [0])
    bench.cache.commit(1, [0, 2])
    assert bench.held() == [[1, 10, 11, 12], [2, 3, 4, 20, 22], [5, 6, 30]]


def test_a_pass_may_read_some_of_the_sequences(bench: Bench) -> None:
    for _ in range(3):
        bench.cache.add()
    bench.read_pass([[1, 2], [3, 4]], first_seq=1)
    bench.cache.commit(1, [1])
    bench.cache.commit(2, [0, 1])
    assert bench.held() == [[], [2], [3, 4]]


def test_long_texts_are_kept_whole(bench: Bench) -> None:
    texts = [list(range(300)), list(range(300, 400))]
    for text in texts:
        seq_idx = bench.cache.add()
        for start in range(0, len(text), 97):
            chunk = text[start : start + 97]
            bench.read_pass([chunk], first_seq=seq_idx)
            bench.cache.commit(seq_idx, range(len(chunk)))
    assert bench.held() == texts


# --- copying --------------------------------------------------------------------------------------


def bench_with(bench: Bench, *texts: list[int]) -> Bench:
    """A bench of the same kind whose cache holds these numbers."""
    other = type(bench)()
    for text in texts:
        seq_idx = other.cache.add()
        other.read_pass([text], first_seq=seq_idx)
        other.cache.commit(seq_idx, range(len(text)))
    return other


@pytest.mark.parametrize("length", [0, 1, 3, 300])
def test_a_sequence_begins_as_that_of_another_cache(bench: Bench, length: int) -> None:
    long = list(range(10, 310))
    source = bench_with(bench, [1, 2], long)
    bench = bench_with(bench, [7, 8, 9])
    assert bench.cache.add_from(source.cache, 1, length) == 1
    assert bench.held() == [[7, 8, 9], long[:length]]
    bench.read_pass([[5], [6]])
    bench.cache.commit(0, [0])
    bench.cache.commit(1, [0])
    assert bench.held() == [[7, 8, 9, 5], [*long[:length], 6]]
    assert source.held() == [[1, 2], long]


def test_a_sequence_may_begin_as_one_of_the_same_cache(bench: Bench) -> None:
    bench = bench_with(bench, [1, 2, 3], [4])
    assert bench.cache.add_from(bench.cache, 0, 2) == 2
    assert bench.held() == [[1, 2, 3], [4], [1, 2]]


@pytest.mark.parametrize(("seq_idx", "length"), [(0, 4), (0, -1), (1, 0), (-1, 1)])
def test_what_another_cache_does_not_hold_cannot_be_copied(
    bench: Bench, seq_idx: int, length: int
) -> None:
    source = bench_with(bench, [1, 2, 3])
    with pytest.raises(CacheError):
        bench.cache.add_from(source.cache, seq_idx, length)
    assert bench.cache.committed_lens == ()


def test_caches_of_different_models_do_not_mix() -> None:
    source = bench_with(PositionBench(), [1, 2, 3])
    other = PositionCache(PositionBench.SHAPES[:1])
    with pytest.raises(CacheError, match="different shapes"):
        other.add_from(source.cache, 0, 2)


# --- leaving --------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaving", [0, 1, 2, 3])
def test_the_last_sequence_takes_the_place_of_one_that_leaves(bench: Bench, leaving: int) -> None:
    texts = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10, 11]]
    for text in texts:
        seq_idx = bench.cache.add()
        bench.read_pass([text], first_seq=seq_idx)
        bench.cache.commit(seq_idx, range(len(text)))
    bench.cache.remove(leaving)
    last = texts.pop()
    if leaving < len(texts):
        texts[leaving] = last
    assert bench.cache.committed_lens == tuple(map(len, texts))
    assert bench.held() == texts


def test_a_place_that_was_left_is_empty_for_the_next(bench: Bench) -> None:
    bench.cache.add()
    bench.read_pass([[1, 2, 3]])
    bench.cache.commit(0, [0, 1, 2])
    bench.cache.remove(0)
    assert bench.cache.add() == 0
    assert bench.cache.committed_lens == (0,)
    bench.read_pass([[4]])
    bench.cache.commit(0, [0])
    assert bench.held() == [[4]]


# --- misuse ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [[], [1, 0], [0, 0], [0, 2, 1], [-1], [-1, 0], [3], [0, 1, 3]])
def test_a_path_that_is_no_rising_choice_of_rows_is_refused(bench: Bench, path: list[int]) -> None:
    bench.cache.add()
    bench.read_pass([[1, 2, 3]])
    with pytest.raises(CacheError, match="not a rising choice of the pass's 3 rows"):
        bench.cache.commit(0, path)
    bench.cache.commit(0, [0, 1])  # and nothing has happened
    assert bench.held() == [[1, 2]]


def test_a_commit_without_a_pass_is_refused(bench: Bench) -> None:
    bench.cache.add()
    with pytest.raises(CacheError, match="did not read it"):
        bench.cache.commit(0, [0])


def test_a_second_commit_after_one_pass_is_refused(bench: Bench) -> None:
    bench.cache.add()
    bench.read_pass([[1, 2]])
    bench.cache.commit(0, [0])
    with pytest.raises(CacheError):
        bench.cache.commit(0, [1])
    assert bench.held() == [[1]]


@pytest.mark.parametrize("seq_idx", [0, 2, 3, -1])
def test_a_commit_of_a_sequence_the_pass_did_not_read_is_refused(
    bench: Bench, seq_idx: int
) -> None:
    for _ in range(3):
        bench.cache.add()
    bench.read_pass([[1, 2]], first_seq=1)
    with pytest.raises(CacheError, match="did not read it"):
        bench.cache.commit(seq_idx, [0])


def test_a_commit_of_a_sequence_only_an_earlier_pass_read_is_refused(bench: Bench) -> None:
    for _ in range(2):
        bench.cache.add()
    bench.read_pass([[1, 2], [3, 4]])
    bench.read_pass([[5]], first_seq=1)
    with pytest.raises(CacheError, match="did not read it"):
        bench.cache.commit(0, [0])


def test_a_commit_after_a_sequence_left_is_refused(bench: Bench) -> None:
    for _ in range(2):
        bench.cache.add()
    bench.read_pass([[1, 2], [3, 4]])
    bench.cache.remove(0)
    with pytest.raises(CacheError, match="did not read it"):
        bench.cache.commit(0, [0])


# --- anything at all ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BENCHES)
@given(data=st.data())
def test_any_life_of_a_cache_ends_with_what_was_committed(name: str, data: st.DataObject) -> None:
    bench = BENCHES[name]()
    texts: list[list[int]] = []
    written = 0
    for _ in range(data.draw(st.integers(1, 12))):
        act = data.draw(st.sampled_from(["add", "remove", "pass", "pass", "pass"]))
        if act == "add" or not texts:
            assert bench.cache.add() == len(texts)
            texts.append([])
        elif act == "remove":
            seq_idx = data.draw(st.integers(0, len(texts) - 1))
            bench.cache.remove(seq_idx)
            last = texts.pop()
            if seq_idx < len(texts):
                texts[seq_idx] = last
        else:
            first = data.draw(st.integers(0, len(texts) - 1))
            num_seqs = data.draw(st.integers(1, len(texts) - first))
            num_rows = data.draw(st.integers(1, 6))
            values = [
                [(written + i * num_rows + row) % 900 for row in range(num_rows)]
                for i in range(num_seqs)
            ]
            written += num_seqs * num_rows
            bench.read_pass(values, first_seq=first)
            for i in data.draw(st.permutations(range(num_seqs))):
                rows = data.draw(st.sets(st.integers(0, num_rows - 1)))
                if rows:
                    bench.cache.commit(first + i, sorted(rows))
                    texts[first + i] += [values[i][row] for row in sorted(rows)]
        assert bench.cache.committed_lens == tuple(map(len, texts))
    assert bench.held() == texts
