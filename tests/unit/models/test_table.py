from __future__ import annotations

import torch

from outdraft.models.table import TableTarget
from outdraft.types import Rows
from plain import reader_of_target

CPU = torch.device("cpu")
IDS = [3, 1, 4, 1, 5]


def test_the_same_seed_is_the_same_table() -> None:
    first, second = TableTarget(seed=1), TableTarget(seed=1)
    assert torch.equal(reader_of_target(first)(IDS), reader_of_target(second)(IDS))
    assert not torch.equal(reader_of_target(first)(IDS), reader_of_target(TableTarget())(IDS))


def test_making_a_table_leaves_the_process_wide_generator_alone() -> None:
    before = torch.get_rng_state()
    TableTarget()
    assert torch.equal(torch.get_rng_state(), before)


def test_every_visible_token_matters(table: TableTarget) -> None:
    read = reader_of_target(table)
    before = read(IDS)
    for place in range(len(IDS)):
        changed = [*IDS[:place], 9, *IDS[place + 1 :]]
        assert not torch.allclose(read(changed), before, atol=1e-3)


def test_the_order_of_tokens_matters(table: TableTarget) -> None:
    read = reader_of_target(table)
    assert not torch.allclose(read([1, 2, 3]), read([2, 1, 3]), atol=1e-3)


def test_a_wrong_position_matters(table: TableTarget) -> None:
    logits = []
    for start in (0, 1):
        cache = table.new_cache()
        cache.add()
        table.forward(Rows.chain([4, 5], 0, CPU), cache)
        cache.commit(0, [0, 1])
        logits.append(table.forward(Rows.chain([6], 2 + start, CPU), cache))
    assert not torch.allclose(*logits, atol=1e-3)


def test_a_hidden_row_does_not_matter(table: TableTarget) -> None:
    cache = table.new_cache()
    cache.add()
    rows = Rows.chain(IDS, 0, CPU)
    rows.ancestors[0, 4, 1:4] = False  # the last row sees the first and itself
    changed = Rows.chain([3, 7, 8, 9, 5], 0, CPU)
    changed.ancestors[0, 4, 1:4] = False
    assert torch.equal(table.forward(rows, cache)[0, 4], table.forward(changed, cache)[0, 4])


def test_texts_are_neither_constant_nor_without_repetition(table: TableTarget) -> None:
    read, ids = reader_of_target(table), [1, 2, 3]
    for _ in range(40):
        ids.append(int(read(ids).argmax()))
    triples = [tuple(ids[i : i + 3]) for i in range(len(ids) - 2)]
    assert len(set(ids)) > 5
    assert 15 < len(set(triples)) < len(triples)
