from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from outdraft.errors import SelfTestError
from outdraft.interfaces import KVCache, TargetModel
from outdraft.models.selftest import self_test
from outdraft.models.table import TableTarget
from outdraft.models.target import CausalLM
from outdraft.types import Rows
from support.tiny_models import ATTENTION, MODELS, WINDOWED, tiny_model, tiny_target

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("name", MODELS)
def test_models_as_they_are_pass(name: str, attention: str) -> None:
    assert 0.0 <= self_test(tiny_target(name, attention)) < 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_model_passes_in_every_precision(dtype: torch.dtype) -> None:
    assert self_test(tiny_target("llama", "sdpa", dtype)) < 0.5


def test_the_table_passes(table: TableTarget) -> None:
    assert self_test(table) < 1e-9


class Bent(TargetModel):
    """A target that changes the rows before it reads them."""

    def __init__(self, target: TargetModel, bend: Callable[[Rows], Rows]) -> None:
        self._target = target
        self._bend = bend
        self.vocab_size = target.vocab_size
        self.max_context = target.max_context
        self.device = target.device

    def new_cache(self) -> KVCache:
        return self._target.new_cache()

    def forward(
        self, rows: Rows, cache: KVCache, *, first_seq: int = 0, logits_to_keep: int = 0
    ) -> Tensor:
        return self._target.forward(
            self._bend(rows), cache, first_seq=first_seq, logits_to_keep=logits_to_keep
        )


def without_positions(rows: Rows) -> Rows:
    counted = torch.arange(rows.num_rows).expand(rows.num_seqs, -1)
    return Rows(rows.token_ids, counted, rows.ancestors, rows.row_lens)


def without_tree(rows: Rows) -> Rows:
    chain = torch.ones_like(rows.ancestors).tril()
    return Rows(rows.token_ids, rows.position_ids, chain, rows.row_lens)


def without_mask(rows: Rows) -> Rows:
    return Rows(rows.token_ids, rows.position_ids, torch.ones_like(rows.ancestors), rows.row_lens)


def in_slot_order(rows: Rows) -> Rows:
    """Positions as if the rows were one chain."""
    first = rows.position_ids[:, :1]
    chain = first + torch.arange(rows.num_rows)
    return Rows(rows.token_ids, chain, rows.ancestors, rows.row_lens)


BENDS = [without_positions, without_tree, without_mask, in_slot_order]


@pytest.mark.parametrize("bend", BENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_target_that_reads_the_rows_wrongly_fails(
    bend: Callable[[Rows], Rows], dtype: torch.dtype
) -> None:
    with pytest.raises(SelfTestError, match=r"logits differ by .* rounding explains"):
        self_test(Bent(tiny_target("llama", "sdpa", dtype), bend))


@pytest.mark.parametrize("bend", BENDS)
def test_a_table_that_reads_the_rows_wrongly_fails(
    table: TableTarget, bend: Callable[[Rows], Rows]
) -> None:
    with pytest.raises(SelfTestError):
        self_test(Bent(table, bend))


class Deaf(torch.nn.Module):
    """A model that does not listen to one of its arguments."""

    def __init__(self, model: Any, ignored: str) -> None:
        super().__init__()
        self.model = model
        self.ignored = ignored
        self.config = model.config
        self.device = model.device
        self.dtype = model.dtype

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        **options: Any,
    ) -> Any:
        given = {"attention_mask": attention_mask, "position_ids": position_ids, **options}
        return self.model(input_ids=input_ids, **{**given, self.ignored: None})


@pytest.mark.parametrize("name", ["llama", "gpt2", *WINDOWED])
@pytest.mark.parametrize("ignored", ["position_ids", "attention_mask"])
def test_a_model_that_ignores_positions_or_mask_fails(name: str, ignored: str) -> None:
    deaf = Deaf(tiny_model(name), ignored).eval()
    with pytest.raises(SelfTestError):
        self_test(CausalLM(deaf))  # type: ignore[arg-type]


class Forgetful(Deaf):
    """A model that keeps what it reads to itself and lets each pass add to its output."""

    def forward(self, input_ids: Tensor, *args: Any, **options: Any) -> Any:
        output = self.model(input_ids, *args, **options)
        self.num_read = getattr(self, "num_read", 0) + input_ids.shape[1]
        output.logits = output.logits + 0.1 * self.num_read * torch.arange(output.logits.shape[-1])
        return output


def test_a_model_that_keeps_state_of_its_own_fails() -> None:
    with pytest.raises(SelfTestError):
        self_test(CausalLM(Forgetful(tiny_model("llama"), "").eval()))  # type: ignore[arg-type]


class Nothing(TableTarget):
    """Its logits are no numbers."""

    def forward(
        self, rows: Rows, cache: KVCache, *, first_seq: int = 0, logits_to_keep: int = 0
    ) -> Tensor:
        logits = super().forward(rows, cache, first_seq=first_seq, logits_to_keep=logits_to_keep)
        return torch.full_like(logits, float("nan"))


def test_logits_that_are_no_numbers_fail() -> None:
    with pytest.raises(SelfTestError, match="nan"):
        self_test(Nothing())
