from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from outdraft.draft.successors import _BLOCK, _MIN_WEIGHT, SuccessorTable, top_tokens

WIDTH = 3


def table(num_slots: int = 64, num_lengths: int = 1) -> SuccessorTable:
    return SuccessorTable(num_lengths, num_slots, WIDTH)


def learn(known: SuccessorTable, key: int, probs: Mapping[int, float], length_idx: int = 0) -> None:
    """Takes in one context of one length; the other lengths hear of a context of their own."""
    keys = np.full((len(known._first_slots), 1), key, dtype=np.uint64)
    ids = np.array([list(probs)], dtype=np.int32)
    known.learn(keys, ids, np.array([list(probs.values())], dtype=np.float32))


def known_probs(known: SuccessorTable, key: int) -> dict[int, float]:
    found = known.look_up(0, key)
    assert found is not None
    return dict(zip(found.token_ids, found.probs, strict=True))


# --- the table ------------------------------------------------------------------------------------


def test_what_was_never_seen_is_not_known() -> None:
    assert table().look_up(0, 0) is None
    assert table().look_up(0, 5) is None


def test_what_was_seen_once_is_known_as_it_was() -> None:
    known = table()
    learn(known, 5, {7: 0.5, 8: 0.25, 9: 0.125})
    assert known.look_up(0, 5) == ([7, 8, 9], [0.5, 0.25, 0.125], 1)
    assert known.look_up(0, 6) is None


def test_what_was_seen_often_is_the_average() -> None:
    known = table()
    for prob in (0.9, 0.6, 0.3):
        learn(known, 5, {7: prob, 8: 0.05, 9: 0.01})
    assert known_probs(known, 5) == pytest.approx({7: 0.6, 8: 0.05, 9: 0.01})
    assert known.look_up(0, 5).times == 3  # type: ignore[union-attr]


def test_what_was_seen_long_ago_fades() -> None:
    known = table()
    for _ in range(200):
        learn(known, 5, {7: 0.9, 8: 0.05, 9: 0.01})
    learn(known, 5, {1: 0.9, 2: 0.05, 3: 0.01})
    assert known_probs(known, 5)[7] == pytest.approx(0.9 * (1 - _MIN_WEIGHT))
    for _ in range(30):
        learn(known, 5, {1: 0.9, 2: 0.05, 3: 0.01})
    assert known_probs(known, 5) == pytest.approx({1: 0.9, 2: 0.05, 3: 0.01}, abs=0.01)


def test_of_all_tokens_seen_the_likeliest_stay_in_order() -> None:
    known = table()
    learn(known, 5, {7: 0.6, 8: 0.3, 9: 0.1})
    learn(known, 5, {9: 0.5, 4: 0.4, 7: 0.2})
    found = known.look_up(0, 5)
    assert found is not None
    assert found.token_ids == [7, 9, 4]
    assert found.probs == pytest.approx([0.4, 0.3, 0.2])


def test_fewer_tokens_than_fit_leave_the_rest_without_probability() -> None:
    known = table()
    for _ in range(3):
        learn(known, 5, {7: 0.75, 8: 0.25})
    found = known.look_up(0, 5)
    assert found is not None
    assert found.token_ids[:2] == [7, 8]
    assert found.probs == pytest.approx([0.75, 0.25, 0.0])


Step = tuple[int, dict[int, float]]
STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.dictionaries(
            st.integers(0, 5), st.sampled_from([0.1, 0.2, 0.3]), min_size=WIDTH, max_size=WIDTH
        ),
    ),
    max_size=12,
)


@given(STEPS)
def test_the_table_is_a_mapping_of_running_averages(steps: list[Step]) -> None:
    known, slow = table(), dict[int, tuple[dict[int, float], int]]()
    for key, probs in steps:
        learn(known, key, probs)
        old, times = slow.get(key, ({}, 0))
        weight = max(1 / (times + 1), _MIN_WEIGHT)
        mixed = {
            token_id: weight * probs.get(token_id, 0.0) + (1 - weight) * old.get(token_id, 0.0)
            for token_id in {*probs, *old}
        }
        slow[key] = (mixed, times + 1)
        found = known.look_up(0, key)
        assert found is not None
        assert found.times == times + 1
        assert len(set(found.token_ids)) == WIDTH
        best = sorted(mixed.values(), reverse=True)[:WIDTH]
        assert found.probs == pytest.approx(best)
        for token_id, prob in zip(found.token_ids, found.probs, strict=True):
            assert mixed[token_id] == pytest.approx(prob)
        slow[key] = (dict(zip(found.token_ids, found.probs, strict=True)), times + 1)


def test_many_contexts_are_taken_in_at_once_and_of_equal_ones_the_last_counts() -> None:
    known = table()
    keys = np.array([[3, 4, 3]], dtype=np.uint64)
    ids = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], dtype=np.int32)
    probs = np.array([[0.5, 0.3, 0.1]] * 3, dtype=np.float32)
    known.learn(keys, ids, probs)
    assert known.look_up(0, 3) == ([7, 8, 9], pytest.approx([0.5, 0.3, 0.1]), 1)
    assert known.look_up(0, 4) == ([4, 5, 6], pytest.approx([0.5, 0.3, 0.1]), 1)


def test_lengths_do_not_mix() -> None:
    known = table(num_lengths=2)
    keys = np.array([[3], [99]], dtype=np.uint64)
    ids, probs = np.array([[1, 2, 3]], dtype=np.int32), np.array([[0.5, 0.3, 0.1]], np.float32)
    known.learn(keys, ids, probs)
    assert known.look_up(0, 3) == known.look_up(1, 99) != None  # noqa: E711
    assert known.look_up(1, 3) is known.look_up(0, 99) is None


def test_the_size_stays_what_it_was_and_new_contexts_push_out_old_ones() -> None:
    known = table(num_slots=8)
    size = known.num_bytes
    for key in range(1000):
        learn(known, key, {key: 0.5, 1001: 0.25, 1002: 0.125})
        assert known_probs(known, key)[key] == 0.5
    assert known.num_bytes == size == 8 * (8 + 4 + WIDTH * 8)
    kept = [key for key in range(1000) if known.look_up(0, key)]
    assert len(kept) == 8
    assert all(known_probs(known, key)[key] == 0.5 for key in kept)


def test_neighbouring_keys_spread_over_the_slots() -> None:
    known = table(num_slots=1024)
    for key in range(512):
        learn(known, key, {1: 0.5, 2: 0.25, 3: 0.125})
    assert sum(known.look_up(0, key) is not None for key in range(512)) > 500


# --- the largest logits ---------------------------------------------------------------------------


def unpacked(logits: torch.Tensor, count: int) -> tuple[Seq[Seq[int]], torch.Tensor]:
    ids, bits = top_tokens(logits, count).chunk(2, dim=-1)
    return ids.tolist(), bits.contiguous().view(torch.float32)


@pytest.mark.parametrize("vocab", [8, 40, 8 * _BLOCK, 9 * _BLOCK, 13 * _BLOCK + 17, 3001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_likeliest_tokens_are_found_wherever_they_stand(vocab: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(vocab)
    order = torch.stack([torch.randperm(vocab, generator=generator) for _ in range(5)])
    logits = (order / vocab * 60).to(dtype)
    logits[:, 3] = logits.max() + torch.arange(1, 6, dtype=dtype)  # and one that stands out
    ids, _ = unpacked(logits, 8)
    values = logits.gather(-1, torch.tensor(ids))
    assert torch.equal(values, logits.topk(8, dim=-1).values)
    assert all(len(set(row)) == 8 for row in ids)


def test_the_probabilities_are_the_softmax_where_few_tokens_are_likely() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 20 * _BLOCK + 5, generator=generator)
    logits[:, 70:75] += 12
    ids, probs = unpacked(logits, 8)
    exact = logits.softmax(dim=-1).gather(-1, torch.tensor(ids))
    assert torch.allclose(probs, exact, rtol=0.02, atol=0)
    assert bool((probs.sum(dim=-1) <= 1).all())


def test_a_small_vocabulary_gives_exact_probabilities_and_no_more_tokens_than_it_has() -> None:
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(2))
    ids, probs = unpacked(logits, 8)
    assert [sorted(row) for row in ids] == [[0, 1, 2, 3, 4]] * 3
    assert torch.allclose(probs, logits.softmax(dim=-1).sort(descending=True).values)
