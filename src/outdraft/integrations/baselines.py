"""What outdraft is measured against: `generate` of transformers, on a model in memory.

    hf             plain decoding
    hf-lookup      prompt_lookup_num_tokens
    hf-assistant   assistant_model

Each runs with the same prompt ids, lengths and end-of-text tokens as outdraft, and with nothing of
the checkpoint's own generation config that would change the text, such as a penalty.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from outdraft.errors import SettingsError
from outdraft.interfaces import TargetModel
from outdraft.models.load import LoadedModel, load_model
from outdraft.models.target import CausalLM
from outdraft.settings import GenerationSettings
from outdraft.text.prompts import Tokenizer
from outdraft.types import FinishReason

HF, LOOKUP, ASSISTANT = "hf", "hf-lookup", "hf-assistant"
BASELINES = (HF, LOOKUP, ASSISTANT)
LOOKUP_TOKENS = 10
"""Guesses per pass of `hf-lookup`: the value in the documentation of transformers."""


@dataclass(frozen=True, slots=True)
class Generated:
    """One answer of `generate`.

    Args:
        token_ids: all new tokens, the one that ended the text included.
        passes: target passes that gave these tokens, the prompt's own included.
        rows: tokens that the passes after the prompt's read.
        first_token_seconds: until the first target pass had ended.
        target_seconds: inside target passes; of a batch, of all its sequences together.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    passes: int
    rows: int
    first_token_seconds: float
    target_seconds: float


class Baseline:
    """One way to call `generate`.

    Args:
        target: a causal language model; anything else has no `generate`.
        tokenizer: the model's own.
        assistant: reference of the smaller model that `hf-assistant` guesses with.

    Raises:
        SettingsError: the baseline is unknown, lacks its assistant, or the target has no model.
        ModelError: the assistant cannot be loaded.
    """

    def __init__(
        self, name: str, target: TargetModel, tokenizer: Tokenizer, assistant: str | None = None
    ) -> None:
        if name not in BASELINES:
            raise SettingsError(
                f"baseline={name!r}: there is no such baseline, only {', '.join(BASELINES)}"
            )
        if not isinstance(target, CausalLM):
            raise SettingsError(
                f"baseline={name!r} needs a model of transformers, not a {type(target).__name__}; "
                "leave it out"
            )
        self.name = name
        self._model = target.model
        self._max_context = target.max_context
        whole = LoadedModel(target.model, cast(PreTrainedTokenizerBase, tokenizer), name)
        self._eos_ids = whole.eos_ids
        self._assistant = _load_assistant(name, target.model, assistant)

    def generate(self, prompts: Seq[Seq[int]], settings: GenerationSettings) -> list[Generated]:
        """Answers some prompts as one batch, greedily or by sampling from all of the distribution.

        Raises:
            SettingsError: a setting other than length, temperature and seed is asked for, or a
                prompt leaves no room for a new token.
        """
        _refuse_filters(self.name, settings)
        width = max(len(prompt) for prompt in prompts)
        length = min(width + settings.max_new_tokens, self._max_context)
        if length <= width:
            raise SettingsError(
                f"the longest prompt has {width} tokens and the model reads {self._max_context}; "
                "shorten it"
            )
        input_ids, mask = _left_padded(prompts, width, self._model.device)
        config = _config(settings, length, self._eos_ids)
        if self.name == LOOKUP:
            config.prompt_lookup_num_tokens = LOOKUP_TOKENS
        with _Meter(self._model).on() as meter, _seeded(settings, self._model.device):
            output: torch.Tensor = self._model.generate(  # type: ignore[operator]
                input_ids=input_ids,
                attention_mask=mask,
                generation_config=config,
                assistant_model=self._assistant,
            )
        answers = [_until(self._eos_ids, row) for row in output[:, width:].tolist()]
        return [self._generated(token_ids, meter, width) for token_ids in answers]

    def _generated(self, token_ids: list[int], meter: _Meter, width: int) -> Generated:
        # Of a batch, a sequence's own passes are those up to its own end.
        passes = len(token_ids) if self.name == HF else meter.passes
        rows = passes - 1 if self.name == HF else meter.rows - width
        return Generated(
            token_ids=tuple(token_ids),
            finish_reason="stop" if token_ids[-1] in self._eos_ids else "length",
            passes=passes,
            rows=rows,
            first_token_seconds=meter.first_seconds,
            target_seconds=meter.seconds,
        )


class _Meter:
    """Counts and times the target's passes while a `generate` runs."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.passes = 0
        self.rows = 0
        self.seconds = 0.0
        self.first_seconds = 0.0
        self._model = model
        self._began_at = time.perf_counter()
        self._pass_began_at = 0.0

    @contextmanager
    def on(self) -> Iterator[_Meter]:
        hooks = [
            self._model.register_forward_pre_hook(self._begin),
            self._model.register_forward_hook(self._end, with_kwargs=True),
        ]
        self._began_at = time.perf_counter()
        try:
            yield self
        finally:
            for hook in hooks:
                hook.remove()

    def _begin(self, *_: Any) -> None:
        self._pass_began_at = time.perf_counter()

    def _end(self, _model: Any, _args: Any, inputs: Mapping[str, Any], _output: Any) -> None:
        now = time.perf_counter()
        self.seconds += now - self._pass_began_at
        if self.passes == 0:
            self.first_seconds = now - self._began_at
        self.passes += 1
        self.rows += inputs["input_ids"].shape[1]


def _load_assistant(
    name: str, model: PreTrainedModel, assistant: str | None
) -> PreTrainedModel | None:
    if name != ASSISTANT:
        return None
    if assistant is None:
        raise SettingsError(
            f"baseline={name!r} needs a smaller model to guess with; pass --assistant REF"
        )
    dtype = str(model.dtype).removeprefix("torch.")
    helper = load_model(assistant, dtype=dtype, device=model.device, pack=False).model
    own = model.config.get_text_config(decoder=True).vocab_size
    other = helper.config.get_text_config(decoder=True).vocab_size
    if own != other:
        raise SettingsError(
            f"assistant={assistant!r} has a vocabulary of {other} tokens and the target one of "
            f"{own}; pass one that shares the target's tokenizer"
        )
    return helper


def _refuse_filters(name: str, settings: GenerationSettings) -> None:
    honoured = {"max_new_tokens", "temperature", "seed"}
    asked = settings.model_dump(exclude=honoured)
    defaults = GenerationSettings().model_dump(exclude=honoured)
    for setting, value in asked.items():
        if value != defaults[setting]:
            raise SettingsError(f"{setting}={value!r}: baseline {name} has no such setting")


def _left_padded(
    prompts: Seq[Seq[int]], width: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    ids = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def _config(settings: GenerationSettings, length: int, eos_ids: Seq[int]) -> GenerationConfig:
    """Every option is named: what is left open would be taken from the checkpoint."""
    options: dict[str, Any] = {
        **GenerationConfig._get_default_generation_params(),
        "max_length": length,
        "eos_token_id": list(eos_ids) or None,
        "pad_token_id": eos_ids[0] if eos_ids else 0,
    }
    if not settings.is_greedy:
        options.update(do_sample=True, temperature=settings.temperature, top_k=0)
    return GenerationConfig(**options)


def _until(eos_ids: Seq[int], row: Seq[int]) -> list[int]:
    """A row of the output without the padding behind its end."""
    ends = [place for place, token_id in enumerate(row) if token_id in eos_ids]
    return list(row[: ends[0] + 1] if ends else row)


@contextmanager
def _seeded(settings: GenerationSettings, device: torch.device) -> Iterator[None]:
    """Lets transformers draw from torch's own generator; its state is put back afterwards."""
    if settings.is_greedy or settings.seed is None:
        yield
        return
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(settings.seed)  # noqa: TID251
        yield
