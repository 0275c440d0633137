"""Reading the files of a checkpoint with transformers; what can be wrong, in one sentence each."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from outdraft.errors import ModelError, UnsupportedModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_VOCABULARY_FILES = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken", "tekken.json")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where the files of a model lie.

    Args:
        name: what the user called it; it stands in every message.
        gguf_file: the one file in `folder` that is meant; `None` for a folder of safetensors.
    """

    name: str
    folder: Path
    gguf_file: str | None = None


def read_checkpoint(
    checkpoint: Checkpoint, dtype: torch.dtype | Literal["auto"]
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Reads weights and tokenizer, on the CPU and without a word on the screen.

    Every weight of the model comes from the files: one that is missing there is an error, never
    a random number.

    Args:
        dtype: of the weights; `"auto"` takes the checkpoint's own.

    Raises:
        UnsupportedModelError: it is no causal language model, or has no tokenizer.
        ModelError: a file is missing or damaged.
    """
    with quiet_transformers():
        if checkpoint.gguf_file is not None:
            # Weights first: parsing a GGUF costs seconds, so nothing is parsed only to be checked.
            model = _read_gguf(checkpoint, dtype)
            return model, _read_tokenizer(checkpoint, None)
        config = _read_config(checkpoint)
        tokenizer = _read_tokenizer(checkpoint, config)
        return _read_weights(checkpoint, config, dtype), tokenizer


def read_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    """Reads the tokenizer alone, without a word on the screen.

    Raises:
        UnsupportedModelError: it belongs to no causal language model, or there is none.
    """
    with quiet_transformers():
        config = None if checkpoint.gguf_file is not None else _read_config(checkpoint)
        return _read_tokenizer(checkpoint, config)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Within, transformers shows no bars and only errors; afterwards it is as it was before."""
    from transformers.utils import logging

    def disabled(bar: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return bar(*args, **{**options, "disable": True})

    verbosity = logging.get_verbosity()
    hook = logging.set_tqdm_hook(disabled)
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        logging.set_tqdm_hook(hook)


@contextmanager
def _no_gguf_bar() -> Iterator[None]:
    """Within, reading a GGUF shows no bar: the only one that takes no hook."""
    from transformers import modeling_gguf_pytorch_utils

    reader: Any = modeling_gguf_pytorch_utils
    bar = reader.tqdm
    reader.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        reader.tqdm = bar


def first_line(error: BaseException) -> str:
    """What an error says, without the advice that other libraries put below it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")


def _read_config(checkpoint: Checkpoint) -> PretrainedConfig:
    from transformers import AutoConfig

    try:
        # False, not the default: the default asks on the terminal whether to run foreign code.
        config = AutoConfig.from_pretrained(checkpoint.folder, trust_remote_code=False)
    except (OSError, ValueError, StrictDataclassError) as error:
        if "trust_remote_code" in str(error):
            raise UnsupportedModelError(
                f"{checkpoint.name}: the model brings its own Python code, which outdraft does not "
                "run; load it yourself and pass (model, tokenizer)"
            ) from error
        raise UnsupportedModelError(
            f"{checkpoint.name}: transformers cannot read its config.json ({first_line(error)}); "
            "pass a model this transformers knows, or upgrade transformers"
        ) from error
    _check_architecture(checkpoint, config)
    return cast("PretrainedConfig", config)


def _check_architecture(checkpoint: Checkpoint, config: PretrainedConfig) -> None:
    """Refuses what transformers would turn into a causal model by inventing a head for it."""
    from transformers.models.auto import modeling_auto

    causal: dict[str, str] = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    architectures = config.architectures
    if architectures:
        is_causal = any(name in causal.values() for name in architectures)
    else:
        is_causal = config.model_type in causal
    if not is_causal:
        raise UnsupportedModelError(
            f"{checkpoint.name}: {', '.join(architectures or [config.model_type])} is not a causal "
            "language model; pass one that is, such as a ...ForCausalLM"
        )


def _read_tokenizer(
    checkpoint: Checkpoint, config: PretrainedConfig | None
) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    way_out = "put the model's tokenizer files beside its weights"

    def refusal(reason: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{checkpoint.name}: no tokenizer could be read there ({reason}); {way_out}, "
            "or pass (model, tokenizer)"
        )

    if checkpoint.gguf_file is not None:
        way_out = "pass a GGUF file that holds one"
        options: dict[str, Any] = {"gguf_file": checkpoint.gguf_file}
    else:
        # transformers makes an empty tokenizer, without a word, for many models that have no files.
        if not any(any(checkpoint.folder.glob(pattern)) for pattern in _VOCABULARY_FILES):
            raise refusal("no vocabulary file such as tokenizer.json")
        options = {"config": config}
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            checkpoint.folder, trust_remote_code=False, **options
        )
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise refusal(first_line(error)) from error
    return cast("PreTrainedTokenizerBase", tokenizer)


def _read_weights(
    checkpoint: Checkpoint, config: PretrainedConfig, dtype: torch.dtype | Literal["auto"]
) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM  # typed as returning the model alone
    try:
        model, report = auto.from_pretrained(
            checkpoint.folder,
            config=config,
            dtype=dtype,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except (ImportError, ValueError) as error:
        raise UnsupportedModelError(
            f"{checkpoint.name}: its weights cannot be used here ({first_line(error)}); do as it "
            "says, or pass a model that is not quantized"
        ) from error
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ModelError(
            f"{checkpoint.name}: the weights in {checkpoint.folder} are missing, damaged or of "
            f"another shape than config.json says ({first_line(error)}); download them again"
        ) from error
    _check_complete(checkpoint, report)
    return cast("PreTrainedModel", model)


def _read_gguf(checkpoint: Checkpoint, dtype: torch.dtype | Literal["auto"]) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM, GgufConfig

    auto: Any = AutoModelForCausalLM  # typed as returning the model alone
    try:
        with _no_gguf_bar():
            model, report = auto.from_pretrained(
                checkpoint.folder,
                gguf_file=checkpoint.gguf_file,
                quantization_config=GgufConfig(dequantize=True),
                dtype=dtype,
                output_loading_info=True,
            )
    except (ValueError, KeyError, struct.error) as error:
        raise UnsupportedModelError(
            f"{checkpoint.name}: transformers cannot read this GGUF file ({first_line(error)}); "
            "pass a whole file of a causal language model it knows, or upgrade transformers"
        ) from error
    _check_complete(checkpoint, report)
    return cast("PreTrainedModel", model)


def _check_complete(checkpoint: Checkpoint, report: dict[str, Any]) -> None:
    missing = sorted(report["missing_keys"])
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise ModelError(
            f"{checkpoint.name}: the checkpoint lacks {len(missing)} of the model's weights "
            f"({shown}); download it again, or check that config.json belongs to it"
        )
