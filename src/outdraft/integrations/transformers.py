"""Drafted decoding from `model.generate`, for people who stay with transformers.

    model.generate(**inputs, custom_generate=outdraft.custom_generate, max_new_tokens=200)

Greedy text equals that of `generate` without it. Sampled text follows the same distribution, but
is drawn with outdraft's keyed noise: for one `torch.manual_seed` the two differ in their words.

What cannot be honoured is refused, and by an allow-list: an option that is not named here and
differs from its default is an error, so those that newer versions of transformers bring are too.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence as Seq
from dataclasses import dataclass
from types import FrameType
from typing import Any, cast
from weakref import WeakKeyDictionary, proxy

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from outdraft.draft import make_drafter
from outdraft.engine import Engine
from outdraft.errors import SettingsError
from outdraft.integrations.generate_processors import honoured_processors, processors_of_row
from outdraft.interfaces import Drafter
from outdraft.models.selftest import self_test
from outdraft.models.target import CausalLM
from outdraft.processing import RowProcessor
from outdraft.sequence import Sequence
from outdraft.settings import AUTO_DRAFTER, EngineSettings, GenerationSettings

# Options honoured at every value.
_HONOURED = frozenset(
    {
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
        # by the processors that `generate` makes of them
        "repetition_penalty",
        "no_repeat_ngram_size",
        "bad_words_ids",
        "sequence_bias",
        "min_length",
        "min_new_tokens",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "suppress_tokens",
        "begin_suppress_tokens",
        "exponential_decay_length_penalty",
        "remove_invalid_values",
        "max_length",
        "max_new_tokens",
        "eos_token_id",
        "pad_token_id",
        "return_dict_in_generate",
        # used by `generate` before it calls us
        "bos_token_id",
        "num_return_sequences",
        # without meaning here: no encoder, nothing compiled, a note of who wrote the config
        "decoder_start_token_id",
        "disable_compile",
        "transformers_version",
    }
)
# Values beside the default that ask for what happens anyway.
_SAME_AS_DEFAULT = {"cache_implementation": "dynamic"}
# Model inputs that `generate` hands over by itself.
_USUAL_INPUTS = frozenset(
    {"attention_mask", "position_ids", "cache", "use_cache", "logits_to_keep"}
)
# Arguments that `generate` keeps to itself when it calls a function, and what to do instead.
_KEPT_BACK = {
    "streamer": "stream with outdraft.load((model, tokenizer)).stream(prompt)",
    "assistant_model": "pass drafter=... to choose how tokens are guessed",
    "synced_gpus": "let every process generate on its own",
}
_GENERATE_CODE = inspect.unwrap(GenerationMixin.generate).__code__

_request_ids = itertools.count()


def custom_generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    *,
    drafter: str | Drafter = "auto",
    **model_kwargs: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """What `model.generate` returns, in fewer passes; to be handed to it as `custom_generate`.

    Batches may be padded on the left; every row runs without its padding and comes back as from
    `generate`: the prompt as it came, the new tokens, padding behind the end of the text. A first
    call with a model proves on it that reading several rows at once changes nothing.

    Args:
        drafter: the one option of our own: `generate(..., drafter="prompt-lookup")`.

    Returns:
        Token ids `[seqs, width]`; or an output that holds them as `sequences`, and nothing else,
        where `return_dict_in_generate` is set.

    Raises:
        SettingsError: an option cannot be honoured; the message names it and the way out.
        ModelError: the model cannot be driven exactly, or it is in training mode.
        DrafterError: the drafter is unknown.
    """
    _refuse_kept_back(sys._getframe(1))
    _refuse_options(generation_config)
    processors = honoured_processors(logits_processor, generation_config)
    _refuse_criteria(stopping_criteria, generation_config)
    _refuse_inputs(model, input_ids, model_kwargs)
    target = _target_of(model)
    settings = _settings(generation_config, prompt_width=input_ids.shape[1])
    prompts = _unpadded(input_ids, model_kwargs.get("attention_mask"))
    _refuse_overlong(prompts, settings, target)
    eos_ids = _ids(generation_config.eos_token_id)
    row_processors = [
        processors_of_row(processors, i, ids[: len(ids) - len(prompt)])
        for i, (ids, prompt) in enumerate(zip(input_ids.tolist(), prompts, strict=True))
    ]
    requests = list(zip(prompts, row_processors, strict=True))
    rows = _run(target, _drafter(drafter), requests, settings, frozenset(eos_ids))
    pad_id = next(iter(_ids(generation_config.pad_token_id) + eos_ids), 0)
    sequences = _padded(input_ids, rows, pad_id)
    if generation_config.return_dict_in_generate:
        return GenerateDecoderOnlyOutput(sequences=cast(torch.LongTensor, sequences))
    return sequences


# --- running --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Build:
    """What a target depends on and a user may change between two calls."""

    dtype: torch.dtype
    device: torch.device
    attention: str
    vocab_size: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> _Build:
        config = model.config.get_text_config(decoder=True)
        return cls(model.dtype, model.device, config._attn_implementation, config.vocab_size)


_targets: WeakKeyDictionary[PreTrainedModel, tuple[_Build, CausalLM]] = WeakKeyDictionary()


def _target_of(model: PreTrainedModel) -> CausalLM:
    """The model's target: made and proven on first use, and again once the model was changed."""
    build = _Build.of(model)
    known = _targets.get(model)
    if known is not None and known[0] == build:
        return known[1]
    # A target that held the model itself would keep its own dictionary entry alive for ever.
    target = CausalLM(cast(PreTrainedModel, proxy(model)))
    self_test(target)
    _targets[model] = (build, target)
    return target


def _drafter(choice: str | Drafter) -> Drafter:
    if isinstance(choice, Drafter):
        return choice
    return make_drafter(AUTO_DRAFTER if choice == "auto" else choice)


@torch.inference_mode()  # cancelling, too, writes to the cache that the passes have made
def _run(
    target: CausalLM,
    drafter: Drafter,
    requests: Seq[tuple[Seq[int], Seq[RowProcessor]]],
    settings: GenerationSettings,
    eos_ids: frozenset[int],
) -> list[list[int]]:
    """The new ids of each prompt."""
    engine = Engine(target, drafter, EngineSettings(max_batch=len(requests)))
    sequences = [
        Sequence(
            next(_request_ids),
            prompt,
            settings,
            seed=seed,
            eos_ids=eos_ids,
            max_context=target.max_context,
            decode=lambda _: "",  # nobody asked for text
            processors=processors,
        )
        for (prompt, processors), seed in zip(
            requests, _seeds(len(requests), settings), strict=True
        )
    ]
    engine.run(sequences)
    return [sequence.new_ids for sequence in sequences]


def _seeds(count: int, settings: GenerationSettings) -> list[int]:
    """One seed per row, off torch's own generator: `torch.manual_seed` repeats the text."""
    if settings.is_greedy:
        return [0] * count
    return [int(seed) for seed in torch.randint(0, 2**63 - 1, (count,))]


def _unpadded(input_ids: Tensor, attention_mask: Tensor | None) -> list[list[int]]:
    rows: list[list[int]] = input_ids.tolist()
    if attention_mask is None:
        return rows
    lengths = (attention_mask != 0).sum(dim=1).tolist()
    return [row[len(row) - length :] for row, length in zip(rows, lengths, strict=True)]


def _padded(input_ids: Tensor, rows: Seq[Seq[int]], pad_id: int) -> Tensor:
    longest = max(len(row) for row in rows)
    new = [[*row, *[pad_id] * (longest - len(row))] for row in rows]
    return torch.cat([input_ids, input_ids.new_tensor(new)], dim=1)


def _settings(config: GenerationConfig, prompt_width: int) -> GenerationSettings:
    """Our settings for its options; `generate` has folded `max_new_tokens` into `max_length`."""
    max_new_tokens = config.max_length - prompt_width
    if not config.do_sample:
        return GenerationSettings(max_new_tokens=max_new_tokens)
    return GenerationSettings(
        max_new_tokens=max_new_tokens,
        temperature=_or(config.temperature, 1.0),
        top_k=config.top_k or None,
        top_p=_or(config.top_p, 1.0),
        min_p=_or(config.min_p, 0.0),
        typical_p=_or(config.typical_p, 1.0),
        epsilon_cutoff=_or(config.epsilon_cutoff, 0.0),
        eta_cutoff=_or(config.eta_cutoff, 0.0),
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _ids(token_ids: int | Iterable[int] | Tensor | None) -> list[int]:
    if token_ids is None:
        return []
    ids: list[int] = torch.as_tensor(token_ids).flatten().tolist()
    return ids


# --- refusing -------------------------------------------------------------------------------------


def _refuse(what: str, way_out: str) -> SettingsError:
    return SettingsError(f"outdraft.custom_generate cannot honour {what}; {way_out}")


def _refuse_kept_back(frame: FrameType | None) -> None:
    """Looks up the arguments that `generate` does not hand over.

    Without the look, a streamer would be given the prompt and then wait for ever.
    """
    while frame is not None and frame.f_code is not _GENERATE_CODE:
        frame = frame.f_back
    if frame is None:
        return  # called without `generate`
    for name, way_out in _KEPT_BACK.items():
        value = frame.f_locals.get(name)
        if value is not None and value is not False:
            raise _refuse(name, way_out)


def _refuse_options(config: GenerationConfig) -> None:
    defaults = GenerationConfig._get_default_generation_params()
    for name, value in vars(config).items():
        if name.startswith("_") or name in _HONOURED:
            continue
        default = defaults.get(name)
        is_unset = value is None or value == default or (value is False and default is None)
        if not is_unset and value != _SAME_AS_DEFAULT.get(name):
            raise _refuse(
                f"{name}={value!r}",
                f"pass {name}={default!r}, or generate without custom_generate",
            )


def _refuse_criteria(criteria: StoppingCriteriaList, config: GenerationConfig) -> None:
    """The end of the text and the length alone may end a row."""
    for criterion in criteria:
        if type(criterion) is MaxLengthCriteria and criterion.max_length == config.max_length:
            continue
        is_eos = type(criterion) is EosTokenCriteria
        if is_eos and set(_ids(criterion.eos_token_id)) == set(_ids(config.eos_token_id)):
            continue
        raise _refuse(
            f"the stopping criterion {type(criterion).__name__}",
            "use eos_token_id and max_new_tokens, or generate without custom_generate",
        )


def _refuse_inputs(model: PreTrainedModel, input_ids: Tensor, inputs: Mapping[str, Any]) -> None:
    if model.config.is_encoder_decoder:
        raise _refuse(f"{type(model).__name__}, an encoder-decoder model", "use a decoder-only one")
    for name, value in inputs.items():
        if name not in _USUAL_INPUTS and value is not None:
            raise _refuse(f"the input {name}", "pass the prompts as input_ids alone")
    cache = inputs.get("cache")
    # Even an empty one would have to come back filled, and ours has another layout.
    if cache is not None and (
        getattr(cache, "_is_user_defined", False) or cache.get_seq_length() > 0
    ):
        raise _refuse("a cache of yours", "leave out `cache` and pass the whole text as input_ids")
    mask = inputs.get("attention_mask")
    positions = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    if mask is not None:
        seen = (mask != 0).long()
        if mask.shape != input_ids.shape or bool((seen.diff(dim=1) < 0).any()):
            raise _refuse(
                "an attention_mask with gaps or zeros at the end",
                "pad on the left: tokenizer.padding_side = 'left'",
            )
        positions = (seen.cumsum(dim=1) - 1).clamp(min=0)
    given = inputs.get("position_ids")
    if given is not None and not bool((given == positions).all()):
        raise _refuse("position_ids of yours", "leave them out; tokens are counted from 0")


def _refuse_overlong(
    prompts: Seq[Seq[int]], settings: GenerationSettings, target: CausalLM
) -> None:
    """The engine would end such a row early, where `generate` goes on past the trained context."""
    longest = max(len(prompt) for prompt in prompts)
    if longest + settings.max_new_tokens > target.max_context:
        raise _refuse(
            f"{settings.max_new_tokens} new tokens after a prompt of {longest}: the model reads "
            f"{target.max_context} positions",
            f"pass max_new_tokens={max(target.max_context - longest, 0)} or less",
        )
