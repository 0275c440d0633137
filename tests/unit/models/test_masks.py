from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from outdraft.models.masks import Reach, additive, slot_positions, tree_mask, within_reach
from outdraft.plan import make_plan
from outdraft.types import DraftTree, Rows
from support.toys import make_sequence
from support.trees import Parts, build, tree_parts

CPU = torch.device("cpu")


def rows_for(trees: list[DraftTree], starts: list[int]) -> Rows:
    """The rows of a pass on top of `starts` committed positions."""
    batch = [make_sequence([1] * (start + 1)) for start in starts]
    return make_plan(trees, batch, 99, vocab_size=16, device=CPU).rows


def as_ints(mask: Tensor) -> list[list[int]]:
    return mask.int().tolist()


#   root ─▶ 1 ─▶ 2    and    root ─▶ 3
TREE = DraftTree((5, 6, 7), (-1, 0, -1), (0.9, 0.9, 0.5))


def test_a_row_sees_the_context_and_its_ancestors() -> None:
    mask = tree_mask(rows_for([TREE], [2]), torch.tensor([2]), context=7)
    assert as_ints(mask[0]) == [
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0],
        [1, 1, 1, 0, 0, 1, 0],
    ]


def test_each_sequence_has_its_own_context() -> None:
    starts = torch.tensor([0, 3])
    mask = tree_mask(rows_for([DraftTree.chain([5]), DraftTree()], [0, 3]), starts, context=5)
    assert as_ints(mask[0]) == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]
    assert as_ints(mask[1]) == [[1, 1, 1, 1, 0], [1, 1, 1, 0, 1]]  # the second row is padding


def test_slots_have_the_positions_of_what_they_hold() -> None:
    positions = slot_positions(rows_for([TREE], [2]), torch.tensor([2]), context=6)
    assert positions.tolist() == [[0, 1, 2, 3, 4, 3]]


@given(
    parts=st.lists(tree_parts(max_nodes=6), min_size=1, max_size=3),
    starts=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    extra=st.integers(0, 3),
)
def test_masks_and_positions_are_those_of_a_slow_reading(
    parts: list[Parts], starts: list[int], extra: int
) -> None:
    trees, starts = [build(part) for part in parts], starts[: len(parts)]
    rows = rows_for(trees, starts)
    context = max(starts) + rows.num_rows + extra
    mask = tree_mask(rows, torch.tensor(starts), context)
    positions = slot_positions(rows, torch.tensor(starts), context)
    for i, start in enumerate(starts):
        for row in range(rows.num_rows):
            for slot in range(context):
                is_row = start <= slot < start + rows.num_rows
                sees_row = is_row and bool(rows.ancestors[i, row, slot - start])
                assert bool(mask[i, row, slot]) == (slot < start or sees_row)
                if slot < start:
                    assert positions[i, slot] == slot
                elif is_row:
                    assert positions[i, slot] == rows.position_ids[i, slot - start]


@pytest.mark.parametrize(
    ("reach", "seen"),
    [
        (Reach("window", 1), [5]),
        (Reach("window", 3), [3, 4, 5]),
        (Reach("window", 99), [0, 1, 2, 3, 4, 5]),
        (Reach("chunk", 1), [5]),
        (Reach("chunk", 4), [4, 5]),
        (Reach("chunk", 5), [5]),
        (Reach("chunk", 99), [0, 1, 2, 3, 4, 5]),
    ],
)
def test_how_far_back_a_layer_looks_from_position_five(reach: Reach, seen: list[int]) -> None:
    mask = within_reach(reach, torch.tensor([[5]]), torch.arange(6)[None])
    assert mask[0, 0].nonzero()[:, 0].tolist() == seen


def test_a_window_counts_positions_and_not_slots() -> None:
    # the leaf of the second branch stands in the last slot, at the position of its sibling
    rows = rows_for([TREE], [2])
    positions = slot_positions(rows, torch.tensor([2]), context=6)
    mask = within_reach(Reach("window", 2), rows.position_ids, positions)
    visible = mask & tree_mask(rows, torch.tensor([2]), context=6)
    assert as_ints(visible[0]) == [
        [0, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 1, 0, 0, 1],
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_an_additive_mask_says_the_same_in_finite_numbers(dtype: torch.dtype) -> None:
    mask = torch.tensor([[True, False], [True, True]])
    scores = additive(mask, dtype)
    assert scores.dtype == dtype
    assert bool(scores.isfinite().all())
    assert scores.tolist() == [[0.0, torch.finfo(dtype).min], [0.0, 0.0]]
