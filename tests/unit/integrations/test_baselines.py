from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from outdraft.errors import SettingsError
from outdraft.integrations.baselines import ASSISTANT, BASELINES, HF, LOOKUP, Baseline, Generated
from outdraft.models.table import TableTarget
from outdraft.models.target import CausalLM
from outdraft.settings import GenerationSettings
from plain import decode_plainly, reader_of_model
from support.tiny_files import save_folder, tiny_llama
from support.tiny_models import tiny_model

PROMPT = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
OTHER = [7, 8, 9]


def tokenizer(eos_id: int | None = None) -> Any:
    return SimpleNamespace(eos_token_id=eos_id)


def baseline(
    name: str = HF, model: PreTrainedModel | None = None, eos_id: int | None = None, **options: Any
) -> Baseline:
    return Baseline(name, CausalLM(model or tiny_model("llama")), tokenizer(eos_id), **options)


def plain_ids(model: PreTrainedModel, prompt: list[int], length: int) -> tuple[int, ...]:
    settings = GenerationSettings(max_new_tokens=length)
    read = reader_of_model(model)
    return decode_plainly(read, prompt, settings, seed=0, decode=lambda ids: "").token_ids


def generate(
    one: Baseline, *prompts: list[int], max_new_tokens: int = 20, **settings: Any
) -> list[Generated]:
    return one.generate(prompts, GenerationSettings(max_new_tokens=max_new_tokens, **settings))


# --- texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [HF, LOOKUP])
def test_the_greedy_text_is_that_of_plain_decoding(name: str) -> None:
    model = tiny_model("llama")
    (answer,) = generate(baseline(name), PROMPT)
    assert answer.token_ids == plain_ids(model, PROMPT, 20)
    assert answer.finish_reason == "length"


def test_an_assistant_changes_no_text(tmp_path: Path) -> None:
    model = tiny_llama().double().eval()
    assisted = baseline(ASSISTANT, model, assistant=str(save_folder(tmp_path)))
    (answer,) = generate(assisted, PROMPT)
    assert answer.token_ids == plain_ids(model, PROMPT, 20)
    assert answer.passes < 20  # it guesses with the very same weights


@pytest.mark.parametrize("name", [HF, LOOKUP])
def test_a_text_ends_with_its_end_token(name: str) -> None:
    free = plain_ids(tiny_model("llama"), PROMPT, 20)
    end = free[6]
    (answer,) = generate(baseline(name, eos_id=end), PROMPT)
    assert answer.token_ids == free[: free.index(end) + 1]
    assert answer.finish_reason == "stop"


def test_a_batch_writes_what_its_prompts_write_alone() -> None:
    free = plain_ids(tiny_model("llama"), OTHER, 20)
    one = baseline(eos_id=free[4])
    together = generate(one, PROMPT, OTHER)
    alone = [generate(one, prompt)[0] for prompt in (PROMPT, OTHER)]
    assert [a.token_ids for a in together] == [a.token_ids for a in alone]
    assert together[1].finish_reason == "stop"
    assert [a.passes for a in together] == [len(a.token_ids) for a in alone]


def test_the_checkpoints_own_settings_change_nothing() -> None:
    model = copy.deepcopy(tiny_model("llama"))
    model.generation_config.repetition_penalty = 9.0
    model.generation_config.do_sample = True
    model.generation_config.top_k = 3
    (answer,) = generate(baseline(model=model), PROMPT)
    assert answer.token_ids == plain_ids(model, PROMPT, 20)


def test_the_context_bounds_the_text() -> None:
    one = baseline()
    room = one._max_context - len(PROMPT)
    (answer,) = generate(one, PROMPT, max_new_tokens=1000)
    assert len(answer.token_ids) == room
    with pytest.raises(SettingsError, match="the longest prompt has 96 tokens and the model reads"):
        generate(one, [1] * 96)


# --- sampling -------------------------------------------------------------------------------------


def test_a_seed_repeats_a_sampled_text_and_leaves_torchs_generator_alone() -> None:
    one = baseline()
    before = torch.random.get_rng_state()
    texts = [generate(one, PROMPT, temperature=1.0, seed=seed)[0].token_ids for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert torch.equal(torch.random.get_rng_state(), before)


def test_sampling_is_from_the_whole_distribution() -> None:
    """At a very high temperature all tokens are alike; a left-over top-k would show."""
    one = baseline()
    seen = {
        token_id
        for seed in range(12)
        for token_id in generate(one, PROMPT, temperature=1e6, seed=seed)[0].token_ids
    }
    assert len(seen) > 52  # of 56


# --- counts ---------------------------------------------------------------------------------------


def test_plain_generate_reads_one_row_a_pass() -> None:
    (answer,) = generate(baseline(), PROMPT)
    assert (answer.passes, answer.rows) == (20, 19)
    assert 0 < answer.first_token_seconds <= answer.target_seconds


def test_lookup_takes_fewer_passes_and_reads_more_rows() -> None:
    model = tiny_model("llama")
    prompt = [*PROMPT, *plain_ids(model, PROMPT, 20), *PROMPT]
    (answer,) = generate(baseline(LOOKUP), prompt, max_new_tokens=16)
    steps = answer.passes - 1
    assert answer.rows >= steps
    assert len(answer.token_ids) == 16
    # each pass gives one token of the target's own, the others were guessed and read
    assert 16 - answer.passes <= answer.rows - steps


def test_no_hook_stays_on_the_model() -> None:
    model = tiny_model("llama")
    generate(baseline(), PROMPT)
    with pytest.raises(ValueError, match="batch_size = 1"):
        generate(baseline(LOOKUP), PROMPT, OTHER)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


# --- refusals -------------------------------------------------------------------------------------


def test_what_is_no_baseline_is_refused(table: TableTarget) -> None:
    with pytest.raises(SettingsError, match="baseline='beam': there is no such baseline"):
        baseline("beam")
    for name in BASELINES:
        with pytest.raises(SettingsError, match=f"baseline='{name}' needs a model of transformers"):
            Baseline(name, table, tokenizer())


def test_an_assistant_must_be_named_and_share_the_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="needs a smaller model to guess with; pass --assista"):
        baseline(ASSISTANT)
    folder = save_folder(tmp_path)
    with pytest.raises(SettingsError, match="has a vocabulary of 280 tokens and the target one of"):
        baseline(ASSISTANT, assistant=str(folder))


@pytest.mark.parametrize("setting", [{"top_p": 0.5}, {"top_k": 3}, {"stop": "x"}])
def test_settings_it_does_not_have_are_refused(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(SettingsError, match=rf"{name}=.*: baseline hf has no such setting"):
        generate(baseline(), PROMPT, **setting)
