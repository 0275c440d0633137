"""The default model, in fp32: the promises hold on real weights, real text and a real tokenizer."""

from __future__ import annotations

from typing import Any

import pytest

from outdraft import Outdraft

pytestmark = pytest.mark.real

DRAFTERS = ["none", "prompt-lookup", "suffix"]
REPEATING = "one two three four, one two three four, one two three"
COPYING = [
    {
        "role": "user",
        "content": "Correct the spelling of this text. Return only the corrected text.\n\n"
        "My sister bought a baskett of apples for her famous cake, and my brother ate most of the "
        "honey on the way home.",
    }
]
PROMPTS = [
    "The capital of France is",
    [{"role": "user", "content": "Repeat after me: the quick brown fox jumps over the lazy dog."}],
]
RAGGED = [
    "Once",
    "The three primary colours are red,",
    REPEATING,
    "def add(a, b):\n    return",
    "😀 means",
    "In 1969, the first human beings walked on the surface of the Moon. In 1969,",
    "a a a a a a a a a a a a",
    "Bonjour, je m'appelle",
]
WAYS: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.95}]
every_way = pytest.mark.parametrize("way", WAYS, ids=["greedy", "sampled"])


@every_way
@pytest.mark.parametrize("prompt", PROMPTS, ids=["text", "chat"])
def test_every_drafter_writes_the_same_tokens(
    llm: Outdraft, prompt: Any, way: dict[str, Any]
) -> None:
    results = [
        llm.generate(prompt, max_new_tokens=32, seed=7, drafter=drafter, **way)
        for drafter in DRAFTERS
    ]
    assert len({result.token_ids for result in results}) == 1
    assert len({(result.text, result.finish_reason) for result in results}) == 1


@every_way
def test_a_ragged_batch_equals_its_single_runs(llm: Outdraft, way: dict[str, Any]) -> None:
    options = {"max_new_tokens": 16, "seed": 7, "drafter": "suffix", **way}
    batch = llm.generate(RAGGED, **options)
    singles = [llm.generate(prompt, **options) for prompt in RAGGED]
    assert [result.token_ids for result in batch] == [result.token_ids for result in singles]
    assert [result.text for result in batch] == [result.text for result in singles]


def test_an_answer_that_repeats_its_prompt_takes_fewer_passes(llm: Outdraft) -> None:
    for drafter in DRAFTERS[1:]:
        stats = llm.generate(COPYING, max_new_tokens=24, drafter=drafter).stats
        assert stats.tokens_per_step > 2.0


def test_streamed_pieces_join_to_the_text(llm: Outdraft) -> None:
    prompt = "Emoji of animals: 🐶 🐱 🐭"
    stream = llm.stream(prompt, max_new_tokens=24, temperature=0.9, seed=3)
    pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == stream.result.text
    assert sum((piece.token_ids for piece in pieces), ()) == stream.result.token_ids
    whole = llm.tokenizer.decode(
        stream.result.token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    assert stream.result.text == whole


def test_a_stop_string_ends_the_text_before_it(llm: Outdraft) -> None:
    free = llm.generate(REPEATING, max_new_tokens=16, drafter="suffix").text
    stop = free[10:16]
    stopped = llm.generate(REPEATING, max_new_tokens=16, stop=stop, drafter="suffix")
    assert stopped.text == free[: free.index(stop)]
    assert stopped.finish_reason == "stop"
