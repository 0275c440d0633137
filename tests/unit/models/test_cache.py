"""What is special to `PositionCache`; the contract of all caches is in `tests/contract`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outdraft.errors import CacheError
from outdraft.models.cache import LayerShape, PositionCache

CPU = torch.device("cpu")


def shape(heads: int = 1, key_dim: int = 1, value_dim: int = 1) -> LayerShape:
    return LayerShape(heads, key_dim, value_dim, torch.float32, CPU)


def write(cache: PositionCache, values: Tensor, first_seq: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Writes `values` `[seqs, rows]` in all layers; returns what each layer then reads."""
    cache.begin_pass(first_seq, *values.shape)
    reads = []
    for layer in cache.for_model.layers:
        wide = values[:, None, :, None].float()
        reads.append(layer.update(wide, -wide))
    return reads


def test_every_layer_reads_context_and_rows() -> None:
    cache = PositionCache([shape(), shape(heads=2, key_dim=3, value_dim=5), shape()])
    cache.add()
    write(cache, torch.tensor([[10, 11]]))
    cache.commit(0, [0, 1])
    reads = write(cache, torch.tensor([[12]]))
    assert [tuple(keys.shape) for keys, _ in reads] == [(1, 1, 3, 1), (1, 2, 3, 3), (1, 1, 3, 1)]
    assert [tuple(values.shape) for _, values in reads][1] == (1, 2, 3, 5)
    for keys, values in reads:
        assert keys[0, 0, :, 0].tolist() == [10, 11, 12]
        assert values[0, -1, :, 0].tolist() == [-10, -11, -12]


def test_layers_of_one_shape_do_not_share_entries() -> None:
    cache = PositionCache([shape(), shape()])
    cache.add()
    cache.begin_pass(0, 1, 1)
    first, second = cache.for_model.layers
    first.update(torch.full((1, 1, 1, 1), 3.0), torch.full((1, 1, 1, 1), 4.0))
    second.update(torch.full((1, 1, 1, 1), 5.0), torch.full((1, 1, 1, 1), 6.0))
    cache.commit(0, [0])
    cache.begin_pass(0, 1, 1)
    row = torch.zeros(1, 1, 1, 1)
    assert first.update(row, row)[0].flatten().tolist() == [3.0, 0.0]
    assert second.update(row, row)[1].flatten().tolist() == [6.0, 0.0]


@pytest.mark.parametrize("num_rows", [255, 256, 257, 600])
def test_it_grows_past_its_first_size_and_keeps_what_it_holds(num_rows: int) -> None:
    cache = PositionCache([shape()])
    cache.add()
    write(cache, torch.arange(num_rows)[None])
    cache.commit(0, range(num_rows))
    ((keys, values),) = write(cache, torch.tensor([[7777, 8888]]))
    assert keys.flatten().tolist() == [*range(num_rows), 7777, 8888]
    assert values.flatten().tolist() == [*(-i for i in range(num_rows)), -7777, -8888]


def test_it_grows_between_a_pass_and_its_commit() -> None:
    cache = PositionCache([shape()])
    cache.add()
    write(cache, torch.tensor([[1, 2, 3, 4]]))
    for _ in range(5):
        cache.add()
    cache.commit(0, [0, 2, 3])
    ((keys, _),) = write(cache, torch.tensor([[9]]))
    assert keys[0].flatten().tolist() == [1, 3, 4, 9]


def test_entries_behind_a_shorter_neighbour_are_finite() -> None:
    cache = PositionCache([shape()])
    cache.add()
    write(cache, torch.arange(50)[None])
    cache.commit(0, range(50))
    cache.add()
    ((keys, values),) = write(cache, torch.tensor([[1], [2]]))
    assert bool(keys.isfinite().all())
    assert bool(values.isfinite().all())


def test_the_context_of_a_pass_is_the_longest_sequence_and_its_rows() -> None:
    cache = PositionCache([shape()])
    for length in (3, 7):
        seq_idx = cache.add()
        write(cache, torch.zeros(1, length), first_seq=seq_idx)
        cache.commit(seq_idx, range(length))
    cache.begin_pass(0, 2, 4)
    assert cache.pass_context == 11
    cache.begin_pass(0, 1, 4)
    assert cache.pass_context == 7


def test_without_a_pass_there_is_no_context() -> None:
    cache = PositionCache([shape()])
    with pytest.raises(CacheError, match="no pass"):
        _ = cache.pass_context
    cache.add()
    write(cache, torch.zeros(1, 1))
    cache.remove(0)
    with pytest.raises(CacheError, match="no pass"):
        _ = cache.pass_context


@pytest.mark.parametrize(("first_seq", "num_seqs"), [(0, 3), (1, 2), (2, 1)])
def test_a_pass_over_sequences_it_does_not_hold_is_refused(first_seq: int, num_seqs: int) -> None:
    cache = PositionCache([shape()])
    cache.add()
    cache.add()
    with pytest.raises(CacheError, match="the cache holds 2"):
        cache.begin_pass(first_seq, num_seqs, 1)


def test_the_model_is_told_of_no_length_of_its_own() -> None:
    cache = PositionCache([shape(), shape()])
    cache.add()
    write(cache, torch.zeros(1, 5))
    cache.commit(0, range(5))
    assert cache.for_model.get_seq_length() == 0
    assert not any(layer.is_sliding for layer in cache.for_model.layers)
