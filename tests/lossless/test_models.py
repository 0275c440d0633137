"""Tiny random models of many architectures: drafted equals plain, token for token.

Plain is `tests/plain.py`: the model's own forward call over the whole text, its own masks and
positions, no cache. Everything is float64, so equality is equality. All texts pass the windows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from contract.drafters import ALL
from outdraft.draft import make_drafter
from outdraft.settings import GenerationSettings
from plain import Plain, decode_plainly, reader_of_model
from support.runs import run
from support.tiny_models import (
    ATTENTION,
    CONTEXT,
    MODELS,
    WINDOW,
    WINDOWED,
    tiny_model,
    tiny_target,
)
from support.toys import decode_letters, make_sequence

PROMPTS = [(3, 1, 4, 1, 5, 9, 2), (27,), (10, 11, 12, 10, 11, 12, 10, 11, 12, 10, 11, 12, 13)]
LENGTH = 26
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.95},
]

every_model = pytest.mark.parametrize("model", MODELS)
every_attention = pytest.mark.parametrize("attention", ATTENTION)
every_way = pytest.mark.parametrize("way", WAYS, ids=["greedy", "sampled"])


@cache
def plain_of(
    model: str, attention: str, prompt: tuple[int, ...], settings: GenerationSettings
) -> Plain:
    return decode_plainly(
        reader_of_model(tiny_model(model, attention)),
        prompt,
        settings,
        seed=len(prompt),
        max_context=CONTEXT,
        decode=decode_letters,
    )


def assert_plain(
    model: str, attention: str, name: str, way: dict[str, Any], **engine_settings: int
) -> None:
    settings = GenerationSettings(max_new_tokens=LENGTH, **way)
    expected = [plain_of(model, attention, prompt, settings) for prompt in PROMPTS]
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
    target = tiny_target(model, attention)
    texts = {prompt: plain.token_ids for prompt, plain in zip(PROMPTS, expected, strict=True)}
    run(target, ALL[name](target, texts), sequences, **engine_settings)
    for sequence, plain in zip(sequences, expected, strict=True):
        assert tuple(sequence.new_ids) == plain.token_ids
        assert sequence.text == plain.text
        assert sequence.finish_reason == plain.finish_reason == "length"


@every_way
@every_attention
@every_model
def test_plain_decoding_is_that_of_the_model_itself(
    model: str, attention: str, way: dict[str, Any]
) -> None:
    assert_plain(model, attention, "none", way, max_batch=2, prompt_chunk=5)


@every_way
@pytest.mark.parametrize(
    ("attention", "name"),
    [
        ("sdpa", "suffix"),
        ("sdpa", "WrongSibling"),
        ("sdpa", "RandomTrees"),
        ("eager", "RightThenWrong"),
        ("eager", "WrongBranchFirst"),
    ],
)
@every_model
def test_drafting_changes_no_token(
    model: str, attention: str, name: str, way: dict[str, Any]
) -> None:
    assert_plain(model, attention, name, way, max_batch=2, max_draft_nodes=7, prompt_chunk=5)


@every_way
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("model", ["llama", "gemma3-mixed"])
def test_no_drafter_changes_a_token(model: str, name: str, way: dict[str, Any]) -> None:
    assert_plain(model, "sdpa", name, way, max_draft_nodes=12)


@pytest.mark.parametrize("max_draft_nodes", [1, 2, 3, 9, 20, 32])
@pytest.mark.parametrize("model", ["llama", "gemma3-mixed"])
def test_no_budget_changes_a_token(model: str, max_draft_nodes: int) -> None:
    assert_plain(model, "sdpa", "Wild", WAYS[1], max_draft_nodes=max_draft_nodes)


@pytest.mark.parametrize("prompt_chunk", [1, 3, WINDOW, WINDOW + 1, 512])
@pytest.mark.parametrize("model", ["llama", *WINDOWED])
def test_the_size_of_prompt_chunks_changes_no_token(model: str, prompt_chunk: int) -> None:
    assert_plain(model, "sdpa", "suffix", WAYS[0], prompt_chunk=prompt_chunk)


@every_attention
@every_model
def test_greedy_text_is_that_of_transformers_generate(model: str, attention: str) -> None:
    target = tiny_target(model, attention)
    for prompt in PROMPTS:
        expected = target.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=LENGTH,
            pad_token_id=0,
        )
        for name in ("none", "suffix"):
            sequence = make_sequence(prompt, eos_ids=[], max_new_tokens=LENGTH)
            run(target, make_drafter(name), [sequence])
            assert sequence.ids == expected[0].tolist()


@every_model
def test_the_texts_are_worth_testing(model: str) -> None:
    settings = GenerationSettings(max_new_tokens=LENGTH)
    texts = [plain_of(model, "sdpa", prompt, settings).token_ids for prompt in PROMPTS]
    assert len(set(texts)) == len(texts)
    assert max(len(set(text)) for text in texts) > 5
    assert min(len(prompt) + LENGTH for prompt in PROMPTS) > 2 * WINDOW


@pytest.mark.parametrize("model", ["llama", "mistral-window", "gpt2"])
def test_a_text_may_fill_the_context_to_its_last_position(model: str) -> None:
    target = tiny_target(model, "sdpa")
    prompt = tuple(i % 50 for i in range(CONTEXT - 12))
    settings = GenerationSettings(max_new_tokens=99)
    plain = plain_of(model, "sdpa", prompt, settings)
    for name in ("TooLong", "WrongSibling"):
        sequence = make_sequence(prompt, eos_ids=[], max_context=CONTEXT, max_new_tokens=99)
        run(target, ALL[name](target, {prompt: plain.token_ids}), [sequence])
        assert tuple(sequence.new_ids) == plain.token_ids
        assert len(sequence.ids) == CONTEXT
