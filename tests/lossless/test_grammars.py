"""Grammars, drafted: the same tokens as without drafts, and texts that the grammar allows.

The models are random, so that each text is a fight between what the model likes and what it may
write; the drafters know the plain text and are wrong in every way, forbidden guesses included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence as Seq
from functools import cache
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from contract.adversaries import ADVERSARIES, Adversary
from outdraft import Outdraft, Result
from outdraft.errors import SettingsError
from outdraft.interfaces import Drafter
from outdraft.models.target import CausalLM
from outdraft.settings import EngineSettings
from outdraft.text.detokenizer import text_decoder, token_shower
from outdraft.trace import StepRecord, StepTrace, Tracer
from support.grammars import GRAMMARS, is_right, matcher_of, tokenizer_of
from support.tiny_models import tiny_model

TOKENIZERS = ("bytes", "byte-level", "metaspace")
PROMPTS = ["The ferry", "on stormy days nobody", "He"]
WAYS: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 1.0}]
LENGTH = 60

every_grammar = pytest.mark.parametrize("grammar", GRAMMARS)
every_way = pytest.mark.parametrize("way", WAYS, ids=["greedy", "sampled"])


@cache
def llm_of(tokenizer_name: str) -> Outdraft:
    """A random model with a few more logits than its tokenizer has tokens."""
    tokenizer = tokenizer_of(tokenizer_name)
    config = LlamaConfig(
        **{
            **tiny_model("llama").config.to_dict(),
            "vocab_size": len(tokenizer) + 7,
            "max_position_embeddings": 256,
        }
    )
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = LlamaForCausalLM(config).eval().double()
    return Outdraft(
        CausalLM(model),
        tokenizer,
        eos_ids=[tokenizer.eos_token_id],
        settings=EngineSettings(adaptive=False, max_batch=2),
    )


@cache
def plain_of(tokenizer: str, grammar: str, temperature: float) -> list[Result]:
    return answers(tokenizer, grammar, "none", temperature=temperature)


def answers(tokenizer: str, grammar: str, drafter: str | Drafter, **options: Any) -> list[Result]:
    return llm_of(tokenizer).generate(
        PROMPTS,
        drafter=drafter,
        **{"max_new_tokens": LENGTH, "seed": 3, **GRAMMARS[grammar], **options},
    )


def assert_plain(results: Seq[Result], plain: Seq[Result]) -> None:
    for result, right in zip(results, plain, strict=True):
        assert result.token_ids == right.token_ids
        assert (result.text, result.finish_reason) == (right.text, right.finish_reason)


def adversary(kind: type[Adversary], tokenizer: str, plain: Seq[Result]) -> Adversary:
    to_ids = tokenizer_of(tokenizer)
    texts = {
        tuple(to_ids(prompt)["input_ids"]): result.token_ids
        for prompt, result in zip(PROMPTS, plain, strict=True)
    }
    return kind(texts, len(to_ids), to_ids.eos_token_id)


@every_way
@every_grammar
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_every_text_is_one_that_the_grammar_allows(
    tokenizer: str, grammar: str, way: dict[str, Any]
) -> None:
    plain = plain_of(tokenizer, grammar, **way)
    assert_plain(answers(tokenizer, grammar, "suffix", **way), plain)
    whole = [result for result in plain if result.finish_reason == "stop"]
    for result in whole:
        assert is_right(grammar, result.text)
    assert whole or grammar in ("json_schema", "regex")  # which may go on for long


@every_way
@every_grammar
@pytest.mark.parametrize("kind", ADVERSARIES)
def test_no_drafter_changes_a_token(
    kind: type[Adversary], grammar: str, way: dict[str, Any]
) -> None:
    plain = plain_of("byte-level", grammar, **way)
    assert_plain(answers("byte-level", grammar, adversary(kind, "byte-level", plain), **way), plain)


@every_way
def test_requests_with_and_without_a_grammar_share_a_batch(way: dict[str, Any]) -> None:
    llm = llm_of("byte-level")
    names = ["json_schema", None, "choices", None]
    options = [{**(GRAMMARS[name] if name else {}), **way} for name in names]
    singles = [
        llm.generate("He", max_new_tokens=20, seed=3, drafter="none", **each) for each in options
    ]
    together = llm.generate(
        ["He"] * 4, max_new_tokens=20, seed=3, drafter="suffix", per_prompt=options
    )
    assert [result.token_ids for result in together] == [result.token_ids for result in singles]
    assert len({result.token_ids for result in together}) > 2


@every_grammar
def test_sessions_and_coroutines_follow_it_too(grammar: str) -> None:
    llm = llm_of("byte-level")
    plain = plain_of("byte-level", grammar, 1.0)
    options = {**GRAMMARS[grammar], "temperature": 1.0, "max_new_tokens": LENGTH, "seed": 3}
    with llm.session(drafter="suffix") as session:
        requests = [session.add(prompt, **options) for prompt in PROMPTS]
        for _ in session:
            pass
    assert_plain([request.result for request in requests], plain)

    async def work() -> list[Result]:
        async with llm:
            return await asyncio.gather(*(llm.agenerate(each, **options) for each in PROMPTS))

    assert_plain(asyncio.run(work()), plain)


@every_grammar
def test_penalties_and_filters_choose_among_allowed_tokens(grammar: str) -> None:
    options = {
        "temperature": 1.0,
        "top_k": 3,
        "repetition_penalty": 1.4,
        "presence_penalty": 0.5,
        "logit_bias": {5: 8.0},
        "logprobs": 2,
        "n": 2,
    }
    llm = llm_of("byte-level")
    options = {**options, **GRAMMARS[grammar], "max_new_tokens": LENGTH, "seed": 3}
    plain = llm.generate(PROMPTS, drafter="none", **options)
    drafted = llm.generate(PROMPTS, drafter="suffix", **options)
    for result, right in zip(drafted, plain, strict=True):
        for sample, other in zip(result.samples, right.samples, strict=True):
            assert sample.token_ids == other.token_ids
            if sample.finish_reason == "stop":
                assert is_right(grammar, sample.text)


@every_way
@pytest.mark.parametrize("num_written", range(4))
def test_a_ban_that_leaves_nothing_ends_its_own_request_alone(
    num_written: int, way: dict[str, Any]
) -> None:
    llm, to_ids = llm_of("bytes"), tokenizer_of("bytes")
    ids = to_ids("abca")["input_ids"]
    banned = [to_ids(each)["input_ids"][0] for each in "defghijklmnopqrstuvwxyz"]
    common = {**way, "seed": 3, "max_new_tokens": 20}
    blocked = {
        "regex": "abc" if num_written == 3 else "abca"[:num_written] + "[d-z]b",
        "suppress_ids": [] if num_written == 3 else banned,
        "min_new_tokens": 9,
        "logprobs": 1,
    }
    lines: list[StepTrace] = []
    for drafter in ("none", "suffix", "suffix,recycling"):
        tracer = Tracer(text_decoder(to_ids), token_shower(to_ids), lines.extend)
        first, second = llm.generate(
            ["He", "The ferry"], drafter=drafter, on_step=tracer, per_prompt=[blocked, {}], **common
        )
        assert (first.finish_reason, first.text) == ("blocked", "abca"[:num_written])
        assert first.token_ids == tuple(ids[:num_written])
        assert len(first.logprobs) == first.stats.tokens == num_written
        assert second.token_ids == llm.generate("The ferry", drafter="none", **common).token_ids
    assert "blocked" in {line.finish_reason for line in lines}


def test_a_processor_that_undoes_the_grammar_is_an_error() -> None:
    llm = llm_of("bytes")
    (other,) = tokenizer_of("bytes")("z")["input_ids"]

    def insist(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, other] = 1.0
        return scores.masked_fill(scores != 1.0, float("-inf"))

    with pytest.raises(SettingsError, match="logits_processors made it likely again"):
        llm.generate("He", regex="ab", logits_processors=[insist])


@every_grammar
def test_forbidden_guesses_are_cut_before_they_cost_a_row(grammar: str) -> None:
    """Every planned guess is one that the grammar allows after those before it."""
    plain = plain_of("byte-level", grammar, 0.0)
    steps: list[StepRecord] = []
    drafter = adversary(ADVERSARIES[1], "byte-level", plain)  # always wrong
    results = llm_of("byte-level").generate(
        PROMPTS[0],
        drafter=drafter,
        on_step=steps.append,
        max_new_tokens=LENGTH,
        seed=3,
        **GRAMMARS[grammar],
    )
    assert results.token_ids == plain[0].token_ids
    matcher = matcher_of(grammar, "byte-level")
    num_rows = 0
    for record in steps:
        (tree,), (commit,) = record.trees, record.commits
        assert matcher.prune(tree) == tree
        num_rows += len(tree)
        for token_id in commit.token_ids:
            matcher.advance(token_id)
    assert num_rows < drafter.num_calls * 15
    assert matcher.is_finished == (results.finish_reason == "stop")


def test_what_the_grammar_leaves_no_choice_about_is_not_waited_for() -> None:
    (with_drafts, *_) = answers("byte-level", "lark", "suffix")
    (plain, *_) = plain_of("byte-level", "lark", 0.0)
    assert with_drafts.stats.steps < plain.stats.steps == len(plain.token_ids) - 1
    forced = with_drafts.stats.drafters["grammar"]
    assert 0 < forced.accepted <= forced.judged <= forced.drafted
    assert plain.stats.drafted == 0
