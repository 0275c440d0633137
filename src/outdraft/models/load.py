"""From what a user calls a model to the model: alias, local folder, GGUF file, hub id or pair."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from outdraft.errors import FetchError, SettingsError, UnknownModelError, UnsupportedModelError
from outdraft.models.bundled import BUNDLED, fetch, free_bytes, is_disk_full
from outdraft.models.checkpoint import (
    Checkpoint,
    first_line,
    read_checkpoint,
    read_tokenizer,
)
from outdraft.models.pack import Packing, pack as pack_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
# What transformers reads; the rest of a repository (other formats of the same weights) is not
# downloaded. The second list is for repositories that have none of the first.
_HUB_FILES = ["*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken"]
_HUB_SAFETENSORS = ["model.safetensors", "model-*.safetensors"]
_HUB_PICKLES = ["pytorch_model.bin", "pytorch_model-*.bin"]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model with its tokenizer.

    Args:
        name: what the user called it; for a pair, what the model calls itself.
        packing: how it was prepared for this machine, if it was.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    packing: Packing | None = None

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a text: those of the generation config, else the tokenizer's."""
        ids: Any = self.model.generation_config.eos_token_id
        if ids is None:
            ids = self.tokenizer.eos_token_id
        if ids is None:
            return ()
        return tuple(ids) if isinstance(ids, list | tuple) else (int(ids),)


def load_model(
    ref: Any,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    pack: bool = True,
    quantize: str | None = None,
) -> LoadedModel:
    """Finds a model and reads it: in eval mode, its weights frozen, prepared for this machine.

    A pair is taken as it is: nothing is moved, cast, switched or packed.

    Args:
        ref: looked up in this order: a `(model, tokenizer)` pair; an alias; an existing path, of a
            folder with a `config.json` or of a `.gguf` file; a hub id. An alias therefore hides a
            folder of the same name, which `./name` still reaches.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`, `"float64"` or a `torch.dtype` of these.
            `"auto"` is the checkpoint's own on GPUs (a GGUF's is float32); on CPUs bfloat16 where
            the hardware multiplies it natively, else float32.
        device: any that torch knows; `"auto"` is cuda, else mps, else the CPU.
        pack: lay the weights out for speed; on CPUs alone, see `outdraft.models.pack`.
        quantize: `"int8"` rounds the weights, which makes it another model.

    Raises:
        UnknownModelError: there is nothing of that name.
        FetchError: it could not be downloaded whole.
        UnsupportedModelError: it is no causal language model, or has no tokenizer.
        ModelError: its files are missing or damaged.
        SettingsError: dtype or device is none, is not here, or contradicts a pair.
    """
    wanted_dtype, wanted_device = _parse_dtype(dtype), _parse_device(device)
    if isinstance(ref, tuple):
        if quantize is not None:
            raise SettingsError(
                f"quantize={quantize!r} would change the model in the pair; pass a reference"
            )
        return _take_pair(ref, wanted_dtype, wanted_device)
    place = wanted_device or _auto_device()
    if wanted_dtype is torch.float64 and place.type == "mps":
        raise SettingsError("mps devices have no float64; pass dtype='float32' or device='cpu'")
    checkpoint = _find(ref)
    model, tokenizer = read_checkpoint(checkpoint, wanted_dtype or _auto_dtype(place))
    model.to(place)  # type: ignore[arg-type]  # transformers' own annotation of `to` is wrong
    model.requires_grad_(False)  # transformers has put it in eval mode
    packing = pack_model(model, quantize) if pack or quantize is not None else None
    return LoadedModel(model, tokenizer, checkpoint.name, packing)


def load_tokenizer(ref: Any) -> PreTrainedTokenizerBase:
    """Finds a model as `load_model` does and reads its tokenizer alone.

    Of a hub repository, no weights are downloaded.

    Raises:
        UnknownModelError, FetchError, UnsupportedModelError, SettingsError: as `load_model`.
    """
    if isinstance(ref, tuple):
        return _take_pair(ref, None, None).tokenizer
    return read_tokenizer(_find(ref, with_weights=False))


# --- where it lies --------------------------------------------------------------------------------


def _find(ref: Any, *, with_weights: bool = True) -> Checkpoint:
    if not isinstance(ref, str | Path):
        raise SettingsError(
            f"a model is a name, a path or a (model, tokenizer) pair, not {type(ref).__name__}"
        )
    name = str(ref)
    if ref in BUNDLED:
        return Checkpoint(name, fetch(name))
    path = Path(ref).expanduser()
    if name and path.is_dir():
        return _in_folder(name, path)
    if path.is_file():
        return _in_file(name, path)
    if path.suffix.lower() == ".gguf":
        raise UnknownModelError(f"there is no file {path.absolute()}; check the path")
    if isinstance(ref, str) and _HUB_ID.fullmatch(ref):
        return Checkpoint(name, _from_hub(ref, with_weights=with_weights))
    raise UnknownModelError(
        f"{name!r} is no existing path, no alias ({_aliases()}) and no hub id such as 'org/name'"
    )


def _aliases() -> str:
    return ", ".join(BUNDLED)


def _in_folder(name: str, folder: Path) -> Checkpoint:
    if (folder / "config.json").is_file():
        return Checkpoint(name, folder)
    ggufs = sorted(folder.glob("*.gguf"))
    way_out = (
        f"pass the path of its GGUF file, {ggufs[0]}"
        if ggufs
        else "pass a folder written by save_pretrained, or the path of a .gguf file"
    )
    raise UnsupportedModelError(f"the folder {folder.absolute()} has no config.json; {way_out}")


def _in_file(name: str, path: Path) -> Checkpoint:
    if path.suffix.lower() != ".gguf":
        raise UnsupportedModelError(
            f"{path} is a file but no .gguf; pass the folder it lies in, with config.json beside it"
        )
    return Checkpoint(name, path.absolute().parent, path.name)


def _from_hub(ref: str, *, with_weights: bool) -> Path:
    """The local snapshot of a hub repository, brought up to date if the hub can be reached."""
    from huggingface_hub import snapshot_download

    try:
        weights = _HUB_SAFETENSORS if with_weights else []
        folder = Path(snapshot_download(ref, allow_patterns=_HUB_FILES + weights))
        if with_weights and not any(folder.glob("model*.safetensors")):
            snapshot_download(ref, allow_patterns=_HUB_FILES + _HUB_PICKLES)
    except Exception as error:
        raise _hub_error(ref, error) from error
    if not (folder / "config.json").is_file():
        raise UnsupportedModelError(
            f"{ref!r} on the hub has no config.json; if it holds GGUF files, download one "
            f"(hf download {ref} FILE.gguf) and pass its path"
        )
    return folder


def _hub_error(ref: str, error: Exception) -> FetchError | UnknownModelError:
    """The hub client raises errors of many libraries; this says which of a few things happened."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    if isinstance(error, GatedRepoError):
        return FetchError(
            f"{ref!r} is gated on the hub; ask for access at {constants.ENDPOINT}/{ref}, "
            "then run `hf auth login`"
        )
    if isinstance(error, RepositoryNotFoundError | HFValidationError):
        return UnknownModelError(
            f"{ref!r} is no existing path, no alias ({_aliases()}) and no model on the hub; "
            "for a private model run `hf auth login` first"
        )
    if is_disk_full(error):
        cache = Path(constants.HF_HUB_CACHE)
        return FetchError(
            f"the disk of {cache} is full ({free_bytes(cache) / 1e9:.1f} GB free) while "
            f"downloading {ref!r}; free some space or set HF_HOME to a folder on another disk"
        )
    if isinstance(error, LocalEntryNotFoundError):
        why = (
            "HF_HUB_OFFLINE is set; unset it"
            if constants.HF_HUB_OFFLINE
            else f"{constants.ENDPOINT} cannot be reached; connect to the network"
        )
        return FetchError(
            f"{ref!r} is no existing path, no alias ({_aliases()}) and not whole in the hub cache, "
            f"and {why}, or pass a local folder, an alias or a model already cached "
            "(`outdraft models` lists them)"
        )
    return FetchError(
        f"{ref!r} could not be downloaded from {constants.ENDPOINT} ({first_line(error)}); "
        "try again, or pass a local folder"
    )


# --- as which numbers, and where ------------------------------------------------------------------


def _parse_dtype(dtype: str | torch.dtype) -> torch.dtype | None:
    """The dtype asked for; `None` for "auto"."""
    if dtype == "auto":
        return None
    if isinstance(dtype, str) and dtype in _DTYPES:
        return _DTYPES[dtype]
    if isinstance(dtype, torch.dtype) and dtype in _DTYPES.values():
        return dtype
    raise SettingsError(f"dtype={dtype!r} is none of auto, {', '.join(_DTYPES)}")


def _parse_device(device: str | torch.device) -> torch.device | None:
    """The device asked for, which is here; `None` for "auto"."""
    if device == "auto":
        return None
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise SettingsError(
            f"device={device!r} is none torch knows; pass 'auto', 'cpu', 'cuda' or 'cuda:0'"
        ) from error
    here = _devices_here()
    if parsed.type != "cpu" and (parsed.index or 0) >= here.get(parsed.type, 0):
        listed = ", ".join(
            f"{kind}:{index}" for kind, count in here.items() for index in range(count)
        )
        raise SettingsError(
            f"device={str(parsed)!r} is not on this machine; pass 'auto', 'cpu'"
            + (f" or one of {listed}" if listed else "")
        )
    return parsed


def _devices_here() -> dict[str, int]:
    """How many accelerators of which kind torch can use."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return {} if accelerator is None else {accelerator.type: torch.accelerator.device_count()}


def _auto_device() -> torch.device:
    here = _devices_here()
    return torch.device(next((kind for kind in ("cuda", "mps") if here.get(kind)), "cpu"))


def _auto_dtype(device: torch.device) -> torch.dtype | Literal["auto"]:
    if device.type != "cpu":
        return "auto"
    return torch.bfloat16 if _cpu_multiplies_bf16() else torch.float32


def _cpu_multiplies_bf16() -> bool:
    """Whether this CPU has bf16 multiply instructions and oneDNN uses them.

    oneDNN alone also says yes for CPUs with plain AVX-512, where it emulates them at a loss.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    has = torch.cpu.get_capabilities()
    is_native = any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return is_native and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


# --- a pair ---------------------------------------------------------------------------------------


def _take_pair(
    pair: tuple[Any, ...], dtype: torch.dtype | None, device: torch.device | None
) -> LoadedModel:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    if len(pair) != 2:
        raise SettingsError(f"a pair is (model, tokenizer), not {len(pair)} things")
    model, tokenizer = pair
    kind = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModelError(
            f"a pair starts with a transformers model, not with {kind}; "
            "pass what AutoModelForCausalLM.from_pretrained returned"
        )
    if not model.can_generate() or model.config.is_encoder_decoder:
        raise UnsupportedModelError(
            f"{kind} is not a causal language model; pass one that is, such as a ...ForCausalLM"
        )
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise UnsupportedModelError(
            f"{kind} came with {type(tokenizer).__name__} where its tokenizer should be; "
            "pass (model, tokenizer) with what AutoTokenizer.from_pretrained returned"
        )
    if dtype not in {None, model.dtype}:
        raise SettingsError(
            f"dtype={dtype} contradicts the model in the pair, which is {model.dtype}; "
            "leave dtype out, or cast the model first"
        )
    if device is not None and not _is_same_device(device, model.device):
        raise SettingsError(
            f"device={str(device)!r} contradicts the model in the pair, which is on "
            f"{str(model.device)!r}; leave device out, or move the model first"
        )
    return LoadedModel(model, tokenizer, model.name_or_path or kind)


def _is_same_device(wanted: torch.device, actual: torch.device) -> bool:
    """Whether a device without a number, such as "cuda", or with it names the actual one."""
    return wanted.type == actual.type and wanted.index in {None, actual.index}
