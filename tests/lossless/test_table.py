"""Every drafter, every way of drawing, every shape of batch: the text is the plain one.

The target is a table, so many combinations can be tried; `test_models.py` has real attention.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from contract.drafters import ALL
from outdraft.models.table import TableTarget
from outdraft.settings import GenerationSettings
from plain import Plain, decode_plainly, reader_of_target
from support.runs import run
from support.toys import EOS, TABLE, decode_letters, decode_pairs, make_sequence

TARGET = TableTarget(**TABLE)


@cache
def plain_of(
    prompt: tuple[int, ...],
    settings: GenerationSettings,
    *,
    seed: int,
    eos_ids: tuple[int, ...] = (EOS,),
    max_context: int = 4096,
) -> Plain:
    return decode_plainly(
        reader_of_target(TARGET),
        prompt,
        settings,
        seed=seed,
        eos_ids=eos_ids,
        max_context=max_context,
        decode=decode_pairs if settings.stop else decode_letters,
    )


def assert_plain(
    name: str,
    prompts: Seq[tuple[int, ...]],
    settings: GenerationSettings,
    *,
    eos_ids: tuple[int, ...] = (EOS,),
    max_context: int = 4096,
    **engine_settings: int,
) -> None:
    """Runs the prompts as one batch, each with a seed of its own."""
    given_ids = {"eos_ids": eos_ids, "max_context": max_context}
    expected = [
        plain_of(prompt, settings, seed=10 + i, **given_ids) for i, prompt in enumerate(prompts)
    ]
    sequences = [
        make_sequence(
            prompt,
            request_id=i,
            seed=10 + i,
            decode=decode_pairs if settings.stop else decode_letters,
            **given_ids,
            **settings.model_dump(exclude={"seed"}),
        )
        for i, prompt in enumerate(prompts)
    ]
    texts = {prompt: plain.token_ids for prompt, plain in zip(prompts, expected, strict=True)}
    run(TARGET, ALL[name](TARGET, texts), sequences, **engine_settings)
    for sequence, plain in zip(sequences, expected, strict=True):
        assert tuple(sequence.new_ids) == plain.token_ids
        assert sequence.text == plain.text
        assert sequence.finish_reason == plain.finish_reason


class Shape(NamedTuple):
    """How many prompts of the list below, and how the engine takes them."""

    num_prompts: int
    max_draft_nodes: int
    max_batch: int
    prompt_chunk: int


PROMPTS = [(5, 6, 7, 8, 9), (4,), (0, 1, 2, 0, 1, 2, 0, 1), (13, 2), (3, 3, 3)]
SHAPES = [
    Shape(1, max_draft_nodes=32, max_batch=8, prompt_chunk=512),
    Shape(2, max_draft_nodes=2, max_batch=2, prompt_chunk=2),
    Shape(3, max_draft_nodes=7, max_batch=2, prompt_chunk=3),
    Shape(5, max_draft_nodes=1, max_batch=3, prompt_chunk=1),
    Shape(5, max_draft_nodes=15, max_batch=5, prompt_chunk=512),
]
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.0},
    {"temperature": 1.5, "top_p": 0.9, "min_p": 0.05},
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
@pytest.mark.parametrize("name", ALL)
def test_the_text_is_the_plain_one(name: str, way: dict[str, Any], shape: Shape) -> None:
    num_prompts, *_ = shape
    assert_plain(
        name,
        PROMPTS[:num_prompts],
        GenerationSettings(max_new_tokens=24, **way),
        max_draft_nodes=shape.max_draft_nodes,
        max_batch=shape.max_batch,
        prompt_chunk=shape.prompt_chunk,
    )


@pytest.mark.parametrize("max_draft_nodes", range(33))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_budget_changes_the_text(max_draft_nodes: int, temperature: float) -> None:
    settings = GenerationSettings(max_new_tokens=24, temperature=temperature)
    assert_plain("RandomTrees", PROMPTS[:2], settings, max_draft_nodes=max_draft_nodes)


@hypothesis_settings(max_examples=100)
@given(data=st.data())
def test_nothing_a_request_may_ask_for_changes_that(data: st.DataObject) -> None:
    prompt = st.lists(st.integers(0, 15), min_size=1, max_size=9).map(tuple)
    prompts = data.draw(st.lists(prompt, min_size=1, max_size=5, unique=True))
    settings = GenerationSettings(
        max_new_tokens=data.draw(st.integers(1, 20)),
        temperature=data.draw(st.sampled_from([0.0, 0.7, 1.0, 1.5])),
        top_k=data.draw(st.sampled_from([None, 1, 3, 16, 99])),
        top_p=data.draw(st.sampled_from([1.0, 0.9, 0.3])),
        min_p=data.draw(st.sampled_from([0.0, 0.1, 1.0])),
        stop=data.draw(st.lists(st.text("abc", min_size=1, max_size=3), max_size=2)),
        ignore_eos=data.draw(st.booleans()),
    )
    assert_plain(
        data.draw(st.sampled_from(list(ALL))),
        prompts,
        settings,
        eos_ids=tuple(data.draw(st.sets(st.integers(0, 15), max_size=3))),
        max_context=data.draw(st.sampled_from([4096, 10, 15])),
        max_draft_nodes=data.draw(st.integers(0, 32)),
        max_batch=data.draw(st.integers(1, 5)),
        prompt_chunk=data.draw(st.integers(1, 10)),
    )
