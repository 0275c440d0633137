"""Passes of transformers and of outdraft in turn."""

from __future__ import annotations

import copy

import pytest
import torch

from outdraft.bench.steps import measure_steps
from outdraft.errors import SettingsError
from outdraft.integrations.stock_pass import StockPass
from outdraft.models.pack import pack
from outdraft.models.sizes import weight_bytes
from outdraft.models.target import CausalLM
from support.tiny_models import tiny_model


def targets() -> tuple[CausalLM, CausalLM]:
    stock = copy.deepcopy(tiny_model("llama")).to(torch.float32)
    packed = copy.deepcopy(stock)
    return CausalLM(stock), CausalLM(packed, pack(packed))


def test_every_cell_is_measured_and_its_ratios_follow() -> None:
    stock, ours = targets()
    cells = list(measure_steps(stock, ours, rows=[1, 3], contexts=[5, 9], repeat=2))
    assert [(cell.context, cell.rows) for cell in cells] == [(5, 1), (5, 3), (9, 1), (9, 3)]
    for cell in cells:
        assert min(cell.stock, cell.ours, cell.outside) > 0.0
        assert cell.ratio == cell.stock / cell.ours
        assert 0.0 < cell.outside_share < 1.0
        assert cell.read_bytes_per_second == weight_bytes(ours) / cell.ours


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": [0]}, "whole numbers above 0"),
        ({"repeat": 0}, "whole numbers above 0"),
        ({"contexts": [90]}, "context=90 .* need 98 positions; the model has 96"),
    ],
)
def test_what_cannot_be_measured_is_refused(options: dict[str, object], message: str) -> None:
    stock, ours = targets()
    wanted: dict[str, object] = {"rows": [4], "contexts": [5], "repeat": 2, **options}
    with pytest.raises(SettingsError, match=message):
        list(measure_steps(stock, ours, **wanted))  # type: ignore[arg-type]


def test_a_stock_pass_forgets_what_it_read() -> None:
    stock, _ = targets()
    behind = StockPass(stock, [1, 2, 3])
    behind.read([4, 5])
    behind.read([6])
    assert behind._cache.get_seq_length() == 3
