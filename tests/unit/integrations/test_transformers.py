from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Sequence as Seq
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    StoppingCriteria,
    T5Config,
    T5ForConditionalGeneration,
    TemperatureLogitsWarper,
    TextStreamer,
    TopKLogitsWarper,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

import outdraft
from outdraft.draft.prompt_lookup import PromptLookup
from outdraft.errors import DrafterError, ModelError, SelfTestError, SettingsError
from outdraft.integrations import transformers as integration
from outdraft.integrations.generate_processors import honoured_processors
from outdraft.sequence import Sequence
from support.tiny_models import CONTEXT, tiny_model

PAD = 3
PROMPTS = [[5, 9, 7, 5, 9, 7, 5, 9], [11], [20, 21, 20, 21, 20], list(range(30, 50))]
NEW = 24


@pytest.fixture
def llama() -> PreTrainedModel:
    return tiny_model("llama", dtype=torch.float32)


@pytest.fixture
def own_llama() -> PreTrainedModel:
    """One that a test may change."""
    return copy.deepcopy(tiny_model("llama", dtype=torch.float32))


def padded(prompts: Seq[Seq[int]]) -> dict[str, Tensor]:
    """As a tokenizer with `padding_side="left"` returns them."""
    width = max(len(prompt) for prompt in prompts)
    rows = [[PAD] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}


def plain(model: PreTrainedModel, prompts: Seq[Seq[int]] = PROMPTS, **options: Any) -> Tensor:
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": PAD, **options}
    return model.generate(**padded(prompts), **options)


def drafted(model: PreTrainedModel, prompts: Seq[Seq[int]] = PROMPTS, **options: Any) -> Tensor:
    return plain(model, prompts, custom_generate=outdraft.custom_generate, **options)


# --- greedy: what `generate` returns --------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "mistral-window", "qwen2", "gpt2"])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4])
def test_greedy_rows_are_those_of_generate(name: str, num_rows: int) -> None:
    model = tiny_model(name, dtype=torch.float32)
    prompts = PROMPTS[:num_rows]
    assert torch.equal(drafted(model, prompts), plain(model, prompts))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_greedy_rows_are_equal_whatever_the_attention(attention: str) -> None:
    model = tiny_model("qwen2-mixed", attention, torch.float32)
    assert torch.equal(drafted(model), plain(model))


def test_it_takes_fewer_passes_than_tokens(llama: PreTrainedModel) -> None:
    num_passes = 0

    def count(*_: Any) -> None:
        nonlocal num_passes
        num_passes += 1

    drafted(llama, PROMPTS[:1])  # proves the model first, with passes of its own
    hook = llama.register_forward_hook(count)
    drafted(llama, PROMPTS[:1])
    hook.remove()
    assert num_passes < NEW


def test_prompts_without_a_mask_run_as_they_are(llama: PreTrainedModel) -> None:
    ids = torch.tensor([[7, 8, 9, 7, 8]])
    options: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False}
    out = llama.generate(ids, custom_generate=outdraft.custom_generate, **options)
    assert torch.equal(out, llama.generate(ids, **options))


def new_ids(rows: Tensor, row: int) -> list[int]:
    width = max(len(prompt) for prompt in PROMPTS)
    return [int(token_id) for token_id in rows[row, width:]]


@pytest.mark.parametrize("position", [0, 3, 11, NEW - 1])
@pytest.mark.parametrize("as_list", [False, True])
def test_a_row_ends_with_its_end_of_text_token(
    llama: PreTrainedModel, position: int, as_list: bool
) -> None:
    eos = new_ids(plain(llama), row=0)[position]
    options = {"eos_token_id": [eos] if as_list else eos}
    out = drafted(llama, **options)
    assert torch.equal(out, plain(llama, **options))
    assert eos in new_ids(out, row=0)[: position + 1]


def test_any_of_several_end_of_text_tokens_ends_a_row(llama: PreTrainedModel) -> None:
    rows = plain(llama)
    options = {"eos_token_id": [new_ids(rows, row)[4 + 5 * row] for row in range(4)]}
    out = drafted(llama, **options)
    assert torch.equal(out, plain(llama, **options))
    assert out.shape[1] < rows.shape[1]


def test_the_end_of_text_pads_where_no_token_does(llama: PreTrainedModel) -> None:
    eos = new_ids(plain(llama), row=2)[5]
    options = {"eos_token_id": eos, "pad_token_id": None}
    out = drafted(llama, **options)
    assert torch.equal(out, plain(llama, **options))
    assert new_ids(out, row=2)[-1] == eos


def test_max_length_counts_prompt_and_padding(llama: PreTrainedModel) -> None:
    options = {"max_new_tokens": None, "max_length": 27}
    out = drafted(llama, **options)
    assert out.shape == (4, 27)
    assert torch.equal(out, plain(llama, **options))


def test_an_output_holds_the_sequences_if_one_is_wanted(llama: PreTrainedModel) -> None:
    out = drafted(llama, return_dict_in_generate=True)
    assert isinstance(out, GenerateDecoderOnlyOutput)
    assert set(out) == {"sequences"}
    assert torch.equal(out.sequences, plain(llama))


def test_sampling_options_mean_nothing_to_a_greedy_run(llama: PreTrainedModel) -> None:
    config = GenerationConfig(
        do_sample=False, temperature=0.3, top_k=2, top_p=0.5, max_new_tokens=NEW, pad_token_id=PAD
    )
    out = llama.generate(
        **padded(PROMPTS), generation_config=config, custom_generate=outdraft.custom_generate
    )
    assert torch.equal(out, plain(llama))


@pytest.mark.parametrize("drafter", ["none", "prompt-lookup", "suffix", PromptLookup()])
def test_the_drafter_can_be_chosen(llama: PreTrainedModel, drafter: Any) -> None:
    assert torch.equal(drafted(llama, drafter=drafter), plain(llama))


def test_an_unknown_drafter_is_refused(llama: PreTrainedModel) -> None:
    with pytest.raises(DrafterError, match="no drafter 'oracle'"):
        drafted(llama, drafter="oracle")


# --- sampling -------------------------------------------------------------------------------------


def sampled(model: PreTrainedModel, torch_seed: int, **options: Any) -> Tensor:
    torch.manual_seed(torch_seed)
    return drafted(model, **{"do_sample": True, "top_k": 0, **options})


def test_the_torch_seed_repeats_a_sampled_text_whatever_the_drafter(llama: PreTrainedModel) -> None:
    first = sampled(llama, 1, drafter="none")
    assert torch.equal(sampled(llama, 1, drafter="suffix"), first)
    assert not torch.equal(sampled(llama, 2, drafter="suffix"), first)


def test_two_calls_differ_without_a_new_seed(llama: PreTrainedModel) -> None:
    first = sampled(llama, 1)
    assert not torch.equal(drafted(llama, do_sample=True, top_k=0), first)


def test_a_greedy_run_draws_nothing_from_torchs_generator(llama: PreTrainedModel) -> None:
    before = torch.get_rng_state()
    drafted(llama)
    assert torch.equal(torch.get_rng_state(), before)


def test_every_returned_sequence_has_randomness_of_its_own(llama: PreTrainedModel) -> None:
    rows = sampled(llama, 1, num_return_sequences=3)
    assert rows.shape[0] == 3 * len(PROMPTS)
    width = max(len(prompt) for prompt in PROMPTS)
    assert torch.equal(rows[:, :width], padded(PROMPTS)["input_ids"].repeat_interleave(3, dim=0))
    assert len({tuple(row.tolist()) for row in rows}) == 3 * len(PROMPTS)


@pytest.mark.parametrize(
    "options",
    [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-4}],
    ids=lambda options: next(iter(options)),
)
def test_each_filter_is_honoured(llama: PreTrainedModel, options: dict[str, Any]) -> None:
    """At its narrowest, each leaves the likeliest token alone."""
    assert torch.equal(sampled(llama, 1, **options), plain(llama))
    assert not torch.equal(sampled(llama, 1), plain(llama))


def test_the_default_top_k_of_transformers_holds(llama: PreTrainedModel) -> None:
    """50 of 56 tokens: drawing flatly from all would soon leave them."""
    ids = torch.tensor([[5]] * 150)
    torch.manual_seed(0)
    rows = llama.generate(
        ids,
        custom_generate=outdraft.custom_generate,
        do_sample=True,
        temperature=50.0,
        max_new_tokens=1,
    )
    with torch.no_grad():
        allowed = llama(ids[:1]).logits[0, -1].topk(50).indices
    assert bool(torch.isin(rows[:, 1], allowed).all())
    assert len(rows[:, 1].unique()) > 35


# --- refused, and never ignored -------------------------------------------------------------------


class Silent(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores


class Never(StoppingCriteria):
    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class NoLastThree(LogitsProcessor):
    """Looks at nothing but the row."""

    is_stateless = True

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.scatter(1, input_ids[:, -3:], float("-inf"))


class Alternating(LogitsProcessor):
    """Every other call bans the lower half of the vocabulary; its state can be put back."""

    calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        scores = scores.clone()
        if self.calls % 2:
            scores[:, :28] = float("-inf")
        return scores

    def snapshot(self) -> int:
        return self.calls

    def restore(self, snapshot: int) -> None:
        self.calls = snapshot


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"num_beams": 2}, "num_beams=2"),
        ({"encoder_repetition_penalty": 1.1}, r"encoder_rep.*pass encoder_repetition_penalty="),
        ({"renormalize_logits": True}, "renormalize_logits"),
        ({"guidance_scale": 1.5}, "guidance_scale"),
        ({"watermarking_config": {"bias": 2.5}}, "watermarking_config"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens"),
        ({"max_time": 5.0}, "max_time"),
        ({"use_cache": False}, "use_cache"),
        ({"cache_implementation": "static"}, "cache_implementation"),
        ({"prefill_chunk_size": 4}, "prefill_chunk_size"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores"),
        ({"output_logits": True, "return_dict_in_generate": True}, "output_logits"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
        ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
        ({"do_sample": True, "top_h": 0.5}, "top_h"),
        ({"do_sample": True, "top_p": 0.0}, "top_p"),
        ({"max_new_tokens": CONTEXT - 19}, f"pass max_new_tokens={CONTEXT - 20} or less"),
        ({"logits_processor": [Silent()]}, "logits processor Silent"),
        ({"prefix_allowed_tokens_fn": lambda *_: [4]}, "PrefixConstrainedLogitsProcessor"),
        ({"stopping_criteria": [Never()]}, "stopping criterion Never"),
        ({"stopping_criteria": [MaxLengthCriteria(25)]}, "stopping criterion MaxLengthCriteria"),
        ({"stopping_criteria": [EosTokenCriteria(4)]}, "stopping criterion EosTokenCriteria"),
        ({"streamer": TextStreamer(None)}, r"streamer; stream with outdraft\.load"),
        ({"assistant_model": tiny_model("llama")}, "assistant_model; pass drafter"),
        ({"cache": DynamicCache()}, "a cache of yours"),
        ({"position_ids": torch.arange(20).expand(4, -1)}, "position_ids"),
        ({"inputs_embeds": torch.zeros(4, 20, 32)}, "inputs_embeds"),
    ],
    ids=lambda case: next(iter(case)) if isinstance(case, dict) else "",
)
def test_what_cannot_be_honoured_is_refused_by_name(
    llama: PreTrainedModel, options: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextStreamer, "put", lambda *_: None)  # there is no tokenizer
    with pytest.raises(SettingsError, match=name):
        drafted(llama, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.4},
        {"repetition_penalty": 0.8, "no_repeat_ngram_size": 3},
        {"no_repeat_ngram_size": 2},
        {"bad_words_ids": [[4], [7, 5]]},
        {"sequence_bias": [[[4], 9.0], [[5, 9], -20.0]]},
        {"min_length": 27, "eos_token_id": list(range(0, 56, 3))},
        {"min_new_tokens": 5, "eos_token_id": list(range(0, 56, 3))},
        {"forced_bos_token_id": 4},
        {"forced_eos_token_id": 4},
        {"suppress_tokens": [4, 5, 9]},
        {"begin_suppress_tokens": list(range(30))},
        {"exponential_decay_length_penalty": (5, 1.3), "eos_token_id": 4},
        {"remove_invalid_values": True},
        {"logits_processor": [NoLastThree()]},
        {"logits_processor": [TemperatureLogitsWarper(0.5), NoLastThree()]},
        {"logits_processor": [Alternating()], "num_rows": 1},
    ],
    ids="+".join,
)
def test_processed_rows_are_those_of_generate(
    llama: PreTrainedModel, options: dict[str, Any]
) -> None:
    options = dict(options)
    prompts = PROMPTS[: options.pop("num_rows", 4)]
    wanted = plain(llama, prompts, **copy.deepcopy(options))
    for drafter in ("suffix", "recycling"):
        out = drafted(llama, prompts, **options, drafter=drafter)
        assert torch.equal(out, wanted)


@pytest.mark.parametrize(
    "options", [{"typical_p": 0.3}, {"epsilon_cutoff": 0.2}, {"eta_cutoff": 0.9}]
)
def test_further_filters_are_honoured(llama: PreTrainedModel, options: dict[str, Any]) -> None:
    """What they keep is held against transformers' own in the tests of processors."""
    texts = []
    for given in ({}, options):
        torch.manual_seed(1)
        texts.append(drafted(llama, do_sample=True, temperature=2.0, **given))
    assert not torch.equal(*texts)


def test_a_filter_that_no_option_stands_for_is_refused(llama: PreTrainedModel) -> None:
    processors = LogitsProcessorList([TopKLogitsWarper(3)])
    config = GenerationConfig(do_sample=True, top_k=4, temperature=1.0)
    with pytest.raises(SettingsError, match="TopKLogitsWarper"):
        honoured_processors(processors, config)


def test_an_option_nobody_knows_yet_is_refused(llama: PreTrainedModel) -> None:
    config = GenerationConfig(max_new_tokens=NEW, pad_token_id=PAD, brand_new=3)
    with pytest.raises(SettingsError, match="brand_new=3"):
        llama.generate(
            **padded(PROMPTS), generation_config=config, custom_generate=outdraft.custom_generate
        )


@pytest.mark.parametrize("mask", [[1, 1, 1, 0], [1, 0, 1, 1]], ids=["right", "gap"])
def test_only_padding_on_the_left_is_taken(llama: PreTrainedModel, mask: list[int]) -> None:
    with pytest.raises(SettingsError, match="pad on the left"):
        llama.generate(
            torch.tensor([[4, 5, 6, 7]]),
            attention_mask=torch.tensor([mask]),
            max_new_tokens=4,
            custom_generate=outdraft.custom_generate,
        )


def test_a_row_of_padding_alone_is_refused(llama: PreTrainedModel) -> None:
    with pytest.raises(SettingsError, match="no tokens"):
        drafted(llama, [[4, 5], []])


def test_token_types_would_change_the_text_and_are_refused() -> None:
    model = tiny_model("gpt2", dtype=torch.float32)
    with pytest.raises(SettingsError, match="token_type_ids"):
        drafted(model, PROMPTS[:1], token_type_ids=torch.zeros(1, 8, dtype=torch.long))


def test_an_encoder_decoder_model_is_refused() -> None:
    config = T5Config(
        vocab_size=20,
        d_model=8,
        d_kv=4,
        d_ff=8,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config).eval()
    with pytest.raises(SettingsError, match="encoder-decoder"):
        model.generate(
            torch.tensor([[4, 5]]), max_new_tokens=3, custom_generate=outdraft.custom_generate
        )


def test_a_model_in_training_mode_is_refused(own_llama: PreTrainedModel) -> None:
    with pytest.raises(ModelError, match=r"model\.eval\(\)"):
        drafted(own_llama.train())
    own_llama.eval()
    assert torch.equal(drafted(own_llama), plain(own_llama))
    with pytest.raises(ModelError, match=r"model\.eval\(\)"):
        drafted(own_llama.train())


def test_a_model_that_reads_rows_together_differently_is_refused(
    own_llama: PreTrainedModel,
) -> None:
    def lean(module: Any, args: Any, output: Any) -> None:
        output.logits += torch.arange(output.logits.shape[-1]) * output.logits.shape[1]

    own_llama.register_forward_hook(lean)
    with pytest.raises(SelfTestError):
        drafted(own_llama)


# --- what is kept between calls -------------------------------------------------------------------


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The targets that were proven during the test."""
    proven: list[Any] = []
    original = integration.self_test

    def note(target: Any) -> float:
        proven.append(target)
        return original(target)

    monkeypatch.setattr(integration, "self_test", note)
    return proven


def test_a_model_is_proven_once(own_llama: PreTrainedModel, probes: list[Any]) -> None:
    drafted(own_llama)
    drafted(own_llama)
    assert len(probes) == 1


def test_a_changed_model_is_proven_anew(probes: list[Any]) -> None:
    model = copy.deepcopy(tiny_model("gpt2", dtype=torch.float32))
    drafted(model)
    model.double()
    assert torch.equal(drafted(model), plain(model))
    model.set_attn_implementation("eager")
    assert torch.equal(drafted(model), plain(model))
    assert len(probes) == 3


def test_nothing_is_hung_on_the_model_and_nothing_outlives_it() -> None:
    model = copy.deepcopy(tiny_model("llama", dtype=torch.float32))
    names = set(vars(model))
    drafted(model)
    assert set(vars(model)) == names
    alive = weakref.ref(model)
    before = len(integration._targets)
    del model
    gc.collect()
    assert (alive() is None, len(integration._targets)) == (True, before - 1)


def test_a_drafter_forgets_its_requests_even_after_an_error(llama: PreTrainedModel) -> None:
    finished: list[int] = []

    class Failing(PromptLookup):
        def finish(self, sequence: Sequence) -> None:
            finished.append(sequence.request_id)

        def guess(self, *args: Any) -> Any:
            raise RuntimeError("no idea")

    with pytest.raises(RuntimeError, match="no idea"):
        drafted(llama, drafter=Failing())
    assert len(set(finished)) == len(finished) == len(PROMPTS)
