from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
import torch

from outdraft.errors import CacheError
from outdraft.models.piecewise import PiecewiseCache, PiecewiseLM
from outdraft.models.table import TableCache
from outdraft.types import Rows
from support.tiny_models import MODELS, tiny_model

CPU = torch.device("cpu")
CONTEXTS = ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8])
# root ─▶ 1 ─▶ 3 ─▶ 5   and   root ─▶ 2 ─▶ 4
TOKENS = [8, 9, 7, 9, 3, 2]
PARENTS = [-1, 0, 0, 1, 2, 3]
DEPTHS = [0, 1, 1, 2, 2, 3]


def tree_rows(starts: Seq[int], count: int = len(TOKENS)) -> Rows:
    """The first rows of the tree, behind each context."""
    ancestors = torch.eye(count, dtype=torch.bool)
    for row, parent in enumerate(PARENTS[:count]):
        if parent >= 0:
            ancestors[row] |= ancestors[parent]
    return Rows(
        token_ids=torch.tensor([TOKENS[:count]] * len(starts)),
        position_ids=torch.tensor(starts)[:, None] + torch.tensor(DEPTHS[:count]),
        ancestors=ancestors.expand(len(starts), -1, -1),
        row_lens=(count,) * len(starts),
    )


def read(model: PiecewiseLM, cache: PiecewiseCache, seq_idx: int, ids: Seq[int]) -> torch.Tensor:
    """Reads a text and commits it; returns its logits."""
    rows = Rows.chain(ids, cache.committed_lens[seq_idx], CPU)
    logits = model.forward(rows, cache, first_seq=seq_idx)
    cache.commit(seq_idx, range(len(ids)))
    return logits[0]


def with_contexts(model: PiecewiseLM) -> PiecewiseCache:
    cache = model.new_cache()
    for context in CONTEXTS:
        read(model, cache, cache.add(), context)
    return cache


def in_pieces(model: PiecewiseLM, cache: PiecewiseCache, ends: Seq[int]) -> torch.Tensor:
    logits, num_read = [], 0
    for end in ends:
        rows = tree_rows(cache.committed_lens, end)
        logits.append(model.forward(rows, cache, num_read=num_read))
        num_read = end
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_pieces_read_as_one_pass_does(name: str, attention: str) -> None:
    model = PiecewiseLM(tiny_model(name, attention))
    whole = in_pieces(model, with_contexts(model), [6])
    for ends in ([1, 3, 5, 6], [3, 6], [5, 6]):
        pieces = in_pieces(model, with_contexts(model), ends)
        torch.testing.assert_close(pieces, whole, rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_a_commit_chooses_among_the_rows_of_all_pieces(name: str) -> None:
    model = PiecewiseLM(tiny_model(name))
    cache = with_contexts(model)
    in_pieces(model, cache, [1, 3, 5, 6])
    cache.commit(0, [0, 2, 4])
    cache.commit(1, [0, 1, 3, 5])
    for seq_idx, branch in enumerate(([8, 7, 3], [8, 9, 9, 2])):
        alone = model.new_cache()
        alone.add()
        read(model, alone, 0, [*CONTEXTS[seq_idx], *branch])
        expected = read(model, alone, 0, [1, 2])
        found = read(model, cache, seq_idx, [1, 2])
        torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-9)


def test_what_is_given_up_leaves_no_trace() -> None:
    model = PiecewiseLM(tiny_model("llama"))
    cache = with_contexts(model)
    cache.rewind(0, 5)
    assert cache.committed_lens == (5, len(CONTEXTS[1]))
    alone = model.new_cache()
    alone.add()
    read(model, alone, 0, CONTEXTS[0][:5])
    expected = read(model, alone, 0, [7, 7])
    torch.testing.assert_close(read(model, cache, 0, [7, 7]), expected, rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("length", [-1, len(CONTEXTS[1]) + 1])
def test_more_than_there_is_cannot_be_kept(length: int) -> None:
    cache = with_contexts(PiecewiseLM(tiny_model("llama")))
    with pytest.raises(CacheError, match=f"holds 4 positions, not {length}"):
        cache.rewind(1, length)


def test_a_pass_cannot_be_committed_once_something_was_given_up() -> None:
    model = PiecewiseLM(tiny_model("llama"))
    cache = with_contexts(model)
    in_pieces(model, cache, [3])
    cache.rewind(0, 5)
    with pytest.raises(CacheError):
        cache.commit(0, [0])


@pytest.mark.parametrize("between", ["nothing read", "fewer read", "committed", "other sequences"])
def test_a_piece_behind_rows_that_are_not_there_is_refused(between: str) -> None:
    model = PiecewiseLM(tiny_model("llama"))
    cache = with_contexts(model)
    match between:
        case "fewer read":
            in_pieces(model, cache, [2])
        case "committed":
            in_pieces(model, cache, [3])
            cache.commit(0, [0])
        case "other sequences":
            model.forward(tree_rows(cache.committed_lens[1:], 3), cache, first_seq=1)
    with pytest.raises(CacheError, match="behind the first 3"):
        model.forward(tree_rows(cache.committed_lens, 5), cache, num_read=3)
    in_pieces(model, cache, [3, 5])  # the refusal is no lasting damage


def test_another_cache_takes_no_pieces() -> None:
    model = PiecewiseLM(tiny_model("llama"))
    with pytest.raises(CacheError, match="TableCache"):
        model.forward(tree_rows([0], 3), TableCache(), num_read=1)


def test_the_cache_tells_its_memory() -> None:
    model = PiecewiseLM(tiny_model("llama"))
    cache = model.new_cache()
    assert cache.num_bytes == 0
    cache.add()
    read(model, cache, 0, [1, 2, 3])
    layers, heads, head_dim, capacity, float64 = 2, 2, 8, 256, 8
    assert cache.num_bytes == 2 * layers * heads * head_dim * capacity * float64
