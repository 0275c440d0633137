"""Requests of a session that join, leave and are cancelled at random: each writes its own text.

Alone means `generate` without drafts, an engine to itself and its prompt read in one piece.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from outdraft.generate import Outdraft
from outdraft.interfaces import TargetModel
from outdraft.models.table import TableTarget
from outdraft.session import Request, Session
from outdraft.settings import EngineSettings
from support.tiny_models import tiny_target
from support.toys import EOS, TABLE, LetterTokenizer, decode_pairs

WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"stop": "ab"},
    {"temperature": 1.3, "top_k": 5, "stop": ("c", "bca")},
]
SETTINGS = {"max_batch": 4, "max_draft_nodes": 6, "prompt_chunk": 5, "adaptive": False}
DRAFTERS = ["suffix", "prompt-lookup", "recycling", "lookahead", "suffix,recycling,prediction"]


def llm_over(target: TargetModel, **settings: Any) -> Outdraft:
    return Outdraft(
        target,
        LetterTokenizer(decode=decode_pairs),
        eos_ids=[EOS],
        settings=EngineSettings(**{**SETTINGS, **settings}),
    )


def random_request(rng: random.Random) -> dict[str, Any]:
    """A prompt that repeats itself, or begins like others do, and how it is to be answered."""
    common = [3, 1, 4, 1, 5, 9, 2, 6] if rng.random() < 0.5 else []
    part = [rng.randrange(14) for _ in range(rng.randint(1, 6))]
    return {
        "prompt": [*common, *part * rng.randint(1, 3)],
        "max_new_tokens": rng.randint(1, 30),
        "seed": rng.randrange(1000),
        **rng.choice(WAYS),
    }


def alone(llm: Outdraft, wanted: dict[str, Any]) -> tuple[str, tuple[int, ...], str]:
    settings = {name: value for name, value in wanted.items() if name != "prompt"}
    single = llm.with_engine(prompt_chunk=512)
    result = single.generate(wanted["prompt"], drafter="none", **settings)
    return result.text, result.token_ids, result.finish_reason


def run_at_random(
    session: Session, wanted: list[dict[str, Any]], cancelled: set[int], rng: random.Random
) -> tuple[list[Request], dict[int, list[int]]]:
    """Adds requests now and then, cancels some on their way; returns what was told of each."""
    requests: list[Request] = []
    told: dict[int, list[int]] = {}
    while len(requests) < len(wanted) or not session.is_idle:
        while len(requests) < len(wanted) and rng.random() < 0.4:
            requests.append(session.add(**wanted[len(requests)]))
        for request, piece in session.step():
            told.setdefault(request.request_id, []).extend(piece.token_ids)
        for i in cancelled & set(range(len(requests))):
            if rng.random() < 0.2:
                session.cancel(requests[i])
    return requests, told


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("seed", range(4))
def test_eight_requests_that_come_and_go_write_what_each_writes_alone(
    drafter: str, seed: int
) -> None:
    check_at_random(llm_over(TableTarget(**TABLE)), drafter, seed)


@pytest.mark.parametrize("model", ["llama", "gemma3-mixed", "gpt2"])
@pytest.mark.parametrize("max_kept_tokens", [0, 64])
def test_so_they_do_on_real_models(model: str, max_kept_tokens: int) -> None:
    check_at_random(llm_over(tiny_target(model), max_kept_tokens=max_kept_tokens), "suffix", 5)


def test_so_they_do_in_single_precision() -> None:
    check_at_random(llm_over(tiny_target("llama", "sdpa", torch.float32)), "suffix,recycling", 6)


def check_at_random(llm: Outdraft, drafter: str, seed: int) -> None:
    rng = random.Random(seed)
    wanted = [random_request(rng) for _ in range(8)]
    cancelled = {1, 4}
    with llm.session(drafter=drafter) as session:
        requests, told = run_at_random(session, wanted, cancelled, rng)
        assert session.requests == []
    for i, (request, settings) in enumerate(zip(requests, wanted, strict=True)):
        text, token_ids, finish_reason = alone(llm, settings)
        result = request.result
        if i in cancelled and result.finish_reason == "cancelled":
            assert result.token_ids == token_ids[: len(result.token_ids)]
            assert text.startswith(result.text[:-1])
            continue
        assert (result.text, result.token_ids, result.finish_reason) == (
            text,
            token_ids,
            finish_reason,
        )
        assert tuple(told[request.request_id]) == token_ids
