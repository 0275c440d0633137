"""Packed models, in every number format: drafted equals plain to the last bit of every logit."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch

from contract.drafters import ALL
from outdraft.models.pack import pack
from outdraft.models.target import CausalLM
from outdraft.types import Rows
from support.compilers import needs_compiler
from support.runs import run
from support.tiny_models import CONTEXT, tiny_model
from support.toys import make_sequence

MODELS = ("llama", "mistral-window", "qwen2-mixed", "qwen3")
FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.bfloat16}
PROMPTS = [(3, 1, 4, 1, 5, 9, 2), (27,), (10, 11, 12, 10, 11, 12, 10, 11, 12, 10, 11, 12, 13)]
LENGTH = 26

pytestmark = needs_compiler
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.95},
]

every_model = pytest.mark.parametrize("model", MODELS)
every_format = pytest.mark.parametrize("number_format", FORMATS)


@cache
def packed_target(model: str, number_format: str) -> CausalLM:
    packed = copy.deepcopy(tiny_model(model)).to(FORMATS[number_format])
    packing = pack(packed, "int8" if number_format == "int8" else None)
    assert packing.layers == packed.config.num_hidden_layers
    return CausalLM(packed, packing)


def texts(
    model: str, number_format: str, drafter: str, way: dict[str, Any], **engine_settings: int
) -> list[tuple[int, ...]]:
    target = packed_target(model, number_format)
    sequences = [
        make_sequence(
            prompt,
            request_id=i,
            seed=len(prompt),
            eos_ids=[],
            max_context=CONTEXT,
            max_new_tokens=LENGTH,
            **way,
        )
        for i, prompt in enumerate(PROMPTS)
    ]
    known = [] if drafter == "none" else plain(model, number_format, **way)
    texts_by_prompt = dict(zip(PROMPTS, known, strict=False))
    run(target, ALL[drafter](target, texts_by_prompt), sequences, **engine_settings)
    return [tuple(sequence.new_ids) for sequence in sequences]


@cache
def plain(model: str, number_format: str, **way: Any) -> list[tuple[int, ...]]:
    return texts(model, number_format, "none", way, max_batch=1)


@every_format
@pytest.mark.parametrize("model", ["llama", "qwen2-mixed"])
@pytest.mark.parametrize("way", WAYS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafter", ALL)
def test_every_drafter_gives_the_plain_text(
    model: str, number_format: str, drafter: str, way: dict[str, Any]
) -> None:
    drafted = texts(model, number_format, drafter, way, max_batch=2, prompt_chunk=5)
    assert drafted == plain(model, number_format, **way)


@every_format
@every_model
def test_rows_of_a_tree_have_the_bits_of_rows_read_one_by_one(
    model: str, number_format: str
) -> None:
    target = packed_target(model, number_format)
    branches = [[7, 8, 9], [7, 8, 10, 11], [7, 12]]
    token_ids, parents = [7, 8, 9, 10, 11, 12], [-1, 0, 1, 1, 3, 0]
    paths = [[0, 1, 2], [0, 1, 3, 4], [0, 5]]
    ancestors = torch.eye(6, dtype=torch.bool)
    depths = [0] * 6
    for row, parent in enumerate(parents):
        if parent >= 0:
            ancestors[row] |= ancestors[parent]
            depths[row] = depths[parent] + 1
    context = list(range(13, 34))
    together = _behind(target, context)
    rows = Rows(
        torch.tensor([token_ids]), len(context) + torch.tensor([depths]), ancestors[None], (6,)
    )
    whole = target.forward(rows, together)[0]
    for branch, path in zip(branches, paths, strict=True):
        cache = _behind(target, context)
        for token_id, row in zip(branch, path, strict=True):
            start = cache.committed_lens[0]
            alone = target.forward(Rows.chain([token_id], start, target.device), cache)
            cache.commit(0, [0])
            assert torch.equal(alone[0, 0], whole[row])


def _behind(target: CausalLM, context: list[int]) -> Any:
    cache = target.new_cache()
    cache.add()
    target.forward(Rows.chain(context, 0, target.device), cache)
    cache.commit(0, range(len(context)))
    return cache
