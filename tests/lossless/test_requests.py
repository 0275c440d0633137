"""Whatever a request asks for, it means the same with and without drafts.

Everything that is returned is compared with a plain run of the same request by itself. Set
OUTDRAFT_EXAMPLES to try more random requests than usual.
"""

from __future__ import annotations

import os
from collections.abc import Sequence as Seq
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings as hypothesis_settings, strategies as st
from torch import Tensor

from contract.drafters import ALL
from outdraft.generate import Outdraft
from outdraft.interfaces import TargetModel
from outdraft.models.byte_tokenizer import byte_tokenizer
from outdraft.models.table import TableTarget
from outdraft.results import Result
from outdraft.settings import EngineSettings
from outdraft.types import TokenLogprob
from support.grammars import GRAMMARS
from support.tiny_models import VOCAB, tiny_target
from support.toys import EOS, TABLE, LetterTokenizer, decode_pairs

EXAMPLES = int(os.environ.get("OUTDRAFT_EXAMPLES", "50"))
TURNS = 10
DRAFTERS = [name for name in ALL if name not in ("none", "Empty")]
BYTE_EOS = 256
PROMPTS = [(5, 6, 7, 8, 9), (7,), (10, 11, 12, 10, 11, 12, 10, 11, 12, 13), (2, 2), (3, 1, 4, 1)]


@cache
def target_of(model: str) -> TargetModel:
    if model == "table":
        return TableTarget(**TABLE)
    if model == "bytes":
        return TableTarget(vocab_size=BYTE_EOS + 8, fade=0.9, seed=3)
    return tiny_target("llama", dtype=torch.float32 if model == "fp32" else torch.float64)


@cache
def llm_of(model: str) -> Outdraft:
    spells_bytes = model == "bytes"
    return Outdraft(
        target_of(model),
        byte_tokenizer() if spells_bytes else LetterTokenizer(decode=decode_pairs),
        eos_ids=[BYTE_EOS if spells_bytes else EOS],
        settings=EngineSettings(adaptive=False, prompt_chunk=4),
    )


@cache
def free_texts(model: str) -> dict[tuple[int, ...], Seq[int]]:
    """What the drafters know: mostly right where a request asks for little, else mostly wrong."""
    llm = llm_of(model)
    options: dict[str, Any] = {"drafter": "none", "ignore_eos": True, "max_new_tokens": 40}
    return {prompt: llm.generate(list(prompt), **options).token_ids for prompt in PROMPTS}


@cache
def drafter_of(name: str, model: str) -> Any:
    return ALL[name](target_of(model), free_texts(model))


def assert_same(
    name: str,
    requests: Seq[tuple[tuple[int, ...], dict[str, Any]]],
    model: str = "table",
    **engine: Any,
) -> list[Result]:
    """All requests in one batch with a drafter, against each by itself without one."""
    llm = llm_of(model)
    together = llm.with_engine(**engine).generate(
        [list(prompt) for prompt, _ in requests],
        drafter=drafter_of(name, model),
        per_prompt=[settings for _, settings in requests],
    )
    for (prompt, settings), found in zip(requests, together, strict=True):
        plain = llm.generate(list(prompt), drafter="none", **settings)
        assert len(found.samples) == len(plain.samples) == settings.get("n", 1)
        for one, other in zip(found.samples, plain.samples, strict=True):
            assert_same_result(one, other)
    return together


def assert_same_result(found: Result, plain: Result) -> None:
    assert found.token_ids == plain.token_ids
    assert found.text == plain.text
    assert found.finish_reason == plain.finish_reason
    assert found.seed == plain.seed
    assert_same_logprobs(found.logprobs, plain.logprobs)
    assert_same_logprobs(found.prompt_logprobs, plain.prompt_logprobs)


def assert_same_logprobs(found: Seq[TokenLogprob | None], plain: Seq[TokenLogprob | None]) -> None:
    assert len(found) == len(plain)
    for one, other in zip(found, plain, strict=True):
        if one is None or other is None:
            assert one is other
            continue
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert one.processed_logprob == pytest.approx(other.processed_logprob, abs=1e-4)
        values = [value for _, value in one.top]
        assert values == pytest.approx([value for _, value in other.top], abs=1e-4)


# --- each option by itself ------------------------------------------------------------------------


class Calls:
    """A processor with a memory: each call moves the logits on, by what was written before."""

    def __init__(self) -> None:
        self.state = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.state = (5 * self.state + int(input_ids[0, -1]) + 1) % scores.shape[-1]
        scores[:, self.state] += 6.0
        return scores


class RestorableCalls(Calls):
    def snapshot(self) -> int:
        return self.state

    def restore(self, snapshot: int) -> None:
        self.state = snapshot


def no_echo(input_ids: Tensor, scores: Tensor) -> Tensor:
    scores.scatter_(1, input_ids[:, -2:], float("-inf"))
    return scores


no_echo.is_stateless = True  # type: ignore[attr-defined]

OPTIONS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.4},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"no_repeat_ngram_size": 2},
    {"bad_words": ["ab", [5, 6], [3]]},
    {"suppress_ids": [0, 1, 2, 3]},
    {"logit_bias": {4: 3.0, 7: -2.5}},
    {"min_new_tokens": 12},
    {"min_new_tokens": 6, "stop": ["a", "b", "c"]},
    {"logits_processors": [no_echo]},
    {"logits_processors": [RestorableCalls()]},
    {"logits_processors": [no_echo, Calls(), no_echo]},
    {"typical_p": 0.5},
    {"epsilon_cutoff": 0.05, "eta_cutoff": 0.1},
    {"stop_ids": [3, 9]},
    {"stop": ["ab", "cc"], "include_stop": True},
    {
        "stop_when": [
            lambda token_ids, text: len(set(token_ids)) > 6,
            lambda ids, text: "cab" in text,
        ]
    },
    {"logprobs": 3, "prompt_logprobs": True, "repetition_penalty": 1.2},
]


@pytest.mark.parametrize("temperature", [0.0, 0.9], ids=["greedy", "sampled"])
@pytest.mark.parametrize("option", OPTIONS, ids="+".join)
def test_an_option_means_the_same_with_every_kind_of_draft(
    option: dict[str, Any], temperature: float
) -> None:
    settings = {"temperature": temperature, "seed": 4, "max_new_tokens": 15, **option}
    for name in ("RandomTrees", "suffix,prompt-lookup"):
        results = assert_same(name, [(prompt, settings) for prompt in PROMPTS[:3]])
        drafted = sum(result.stats.drafted for result in results)
        reasons = [result.stats.drafting_off_reason for result in results]
        if any(isinstance(each, Calls) for each in option.get("logits_processors", ())) and not (
            isinstance(option["logits_processors"][0], RestorableCalls)
        ):
            assert drafted == 0
            assert all("Calls might notice" in str(reason) for reason in reasons)
        else:
            assert reasons == [None] * 3


@pytest.mark.parametrize("option", OPTIONS, ids="+".join)
def test_the_options_are_worth_testing(option: dict[str, Any]) -> None:
    """Each changes what is returned, and the guesses are still right at times."""
    settings = {"temperature": 0.9, "seed": 4, "max_new_tokens": 20}
    llm = llm_of("table")
    with_it = [
        llm.generate(list(prompt), drafter="none", **settings, **option) for prompt in PROMPTS
    ]
    without = [llm.generate(list(prompt), drafter="none", **settings) for prompt in PROMPTS]
    assert any(
        (a.text, a.token_ids, a.logprobs) != (b.text, b.token_ids, b.logprobs)
        for a, b in zip(with_it, without, strict=True)
    )


def test_a_rule_of_the_users_is_asked_once_for_every_token() -> None:
    asked: list[list[int]] = []

    def stop_when(token_ids: list[int], text: str) -> bool:
        asked.append(token_ids)
        return False

    llm = llm_of("table")
    result = llm.generate(
        list(PROMPTS[0]),
        drafter=drafter_of("RandomTrees", "table"),
        max_new_tokens=20,
        stop_when=stop_when,
    )
    assert result.stats.accepted > 0
    assert asked == [list(result.token_ids[: i + 1]) for i in range(len(result.token_ids))]


# --- all of them at once --------------------------------------------------------------------------

ids = st.integers(0, EOS)
id_runs = st.lists(ids, min_size=1, max_size=3)
OPTIONAL: dict[str, st.SearchStrategy[Any]] = {
    "top_k": st.integers(1, 20),
    "top_p": st.sampled_from([0.5, 0.9, 0.99]),
    "min_p": st.sampled_from([0.02, 0.3]),
    "typical_p": st.sampled_from([0.3, 0.8]),
    "epsilon_cutoff": st.sampled_from([0.01, 0.2]),
    "eta_cutoff": st.sampled_from([0.01, 0.3]),
    "repetition_penalty": st.sampled_from([0.7, 1.1, 1.8]),
    "presence_penalty": st.sampled_from([-1.0, 0.5, 2.0]),
    "frequency_penalty": st.sampled_from([-0.3, 0.5]),
    "no_repeat_ngram_size": st.integers(1, 3),
    "bad_words": st.lists(st.one_of(id_runs, st.sampled_from(["a", "bc"])), max_size=2),
    "suppress_ids": st.lists(ids, max_size=3),
    "logit_bias": st.dictionaries(ids, st.floats(-5, 5), max_size=3),
    "logits_processors": st.sampled_from([[no_echo], [Calls()], [RestorableCalls(), no_echo]]),
    "min_new_tokens": st.integers(0, 8),
    "stop": st.lists(st.text("abc", min_size=1, max_size=3), max_size=2),
    "include_stop": st.booleans(),
    "stop_ids": st.lists(ids, max_size=2),
    "stop_when": st.integers(1, 15).map(lambda size: lambda ids, text: len(ids) + len(text) > size),
    "ignore_eos": st.booleans(),
    "logprobs": st.integers(0, 4),
    "prompt_logprobs": st.booleans(),
    "prediction": st.text("abc", max_size=12),
}


@st.composite
def requests(
    draw: st.DrawFn, model: str, max_samples: int = 3
) -> tuple[tuple[int, ...], dict[str, Any]]:
    names = draw(st.lists(st.sampled_from(sorted(OPTIONAL)), max_size=8, unique=True))
    settings = {name: draw(OPTIONAL[name]) for name in names}
    if model == "bytes" and draw(st.booleans()):
        settings.update(draw(st.sampled_from(list(GRAMMARS.values()))))
        settings.pop("ignore_eos", None)
    settings["max_new_tokens"] = draw(st.integers(8, 14))
    settings["seed"] = draw(st.integers(0, 99))
    settings["temperature"] = draw(st.sampled_from([0.0, 0.6, 1.3]))
    if settings["temperature"] and max_samples > 1:
        settings["n"] = draw(st.integers(1, max_samples))
        if draw(st.booleans()):
            settings["best_of"] = settings["n"] + draw(st.integers(0, 1))
    return draw(st.sampled_from(PROMPTS)), settings


@pytest.mark.parametrize("turn", range(TURNS))
@hypothesis_settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_any_mix_of_requests_means_the_same(turn: int, data: st.DataObject) -> None:
    """Each turn gives what is drawn to other drafters, with other seeds."""
    model = data.draw(st.sampled_from(["table", "table", "bytes", "fp64", "fp32"]))
    drawn = data.draw(st.lists(requests(model), min_size=1, max_size=5))
    place = data.draw(st.integers(0, len(DRAFTERS) - 1))
    assert_same(
        DRAFTERS[(place + turn) % len(DRAFTERS)],
        [
            (prompt, {**settings, "seed": settings["seed"] + 100 * turn})
            for prompt, settings in drawn
        ],
        model,
        max_batch=data.draw(st.integers(1, 5)),
        max_draft_nodes=data.draw(st.integers(0, 12)),
    )


@hypothesis_settings(max_examples=EXAMPLES // 2)
@given(data=st.data())
def test_any_mix_of_requests_means_the_same_in_a_session(data: st.DataObject) -> None:
    """They join one by one, their prompts are read in pieces or known from those before them."""
    model = data.draw(st.sampled_from(["table", "bytes", "fp64"]))
    wanted = data.draw(st.lists(requests(model, max_samples=1), min_size=1, max_size=5))
    llm = llm_of(model).with_engine(max_batch=3, prompt_chunk=data.draw(st.integers(1, 6)))
    name = data.draw(st.sampled_from(DRAFTERS))
    asked = []
    with llm.session(drafter=drafter_of(name, model)) as session:
        for prompt, settings in wanted:
            asked.append(session.add(list(prompt), **settings))
            session.step()
        for _ in session:
            pass
    for (prompt, settings), request in zip(wanted, asked, strict=True):
        plain = llm_of(model).generate(list(prompt), drafter="none", **settings)
        assert_same_result(request.result, plain)
        if settings.get("prompt_logprobs"):
            assert request.stats.reused_prompt_tokens == 0


@pytest.mark.parametrize("model", ["table", "fp64", "fp32"])
def test_a_known_prompt_is_read_again_for_its_logprobs(model: str) -> None:
    llm, prompt = llm_of(model), list(PROMPTS[2])
    settings: dict[str, Any] = {"max_new_tokens": 4, "seed": 4}
    wanted = {**settings, "logprobs": 2, "prompt_logprobs": True}
    in_one_piece = llm.with_engine(prompt_chunk=512)
    plain = in_one_piece.generate(prompt, drafter="none", **wanted)
    with llm.session(drafter="suffix") as session:
        session.add(prompt, **settings)
        for _ in session:
            pass
        again = session.add(prompt, **settings)
        asked = session.add(prompt, **wanted)
        for _ in session:
            pass
    assert again.stats.reused_prompt_tokens == len(prompt) - 1
    assert asked.stats.reused_prompt_tokens == 0
    assert_same_result(asked.result, plain)


def test_the_toys_have_the_tokens_that_requests_name() -> None:
    assert TABLE["vocab_size"] == EOS + 1 <= VOCAB
