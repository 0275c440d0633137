"""Measured costs from one run to the next, in outdraft's cache folder.

They hold for one model on one machine as it is used: each such key has a file of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from outdraft.errors import SettingsError
from outdraft.models.bundled import cache_home
from outdraft.models.devices import device_name
from outdraft.models.sizes import num_parameters
from outdraft.models.target import CausalLM
from outdraft.models.timing import time_passes
from outdraft.plan.cost_model import CostModel, PassSize

_KIND = "outdraft costs 1"


class CostWarning(UserWarning):
    """Measured costs that could not be kept, or not be read again; they are measured anew."""


@dataclass(frozen=True, slots=True)
class CostKey:
    """What measured costs hold for.

    Args:
        model: what tells it from others of its architecture and size, such as its name or path.
        device: as precise as it can be told, such as the processor's or the GPU's name.
        threads: that torch computes with.
        version: of outdraft, and of whatever else computes.
    """

    model: str
    dtype: str
    device: str
    threads: int
    version: str

    @property
    def path(self) -> Path:
        """Where its costs are kept; the folder need not be there."""
        digest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()
        return _folder() / f"{digest[:24]}.json"


@dataclass(frozen=True, slots=True)
class KeptCosts:
    """Costs that an earlier run left on this machine, and what they hold for."""

    key: CostKey
    costs: CostModel


def find_costs(name: str, dtype: str | None = None) -> KeptCosts | None:
    """The costs last kept for a model of this name, without loading it; `None` if there are none.

    Args:
        dtype: of the model as it ran; `None` takes any.
    """
    files = sorted(_folder().glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files:
        try:
            key = CostKey(**json.loads(path.read_text("utf-8"))["key"])
        except DAMAGE:
            continue  # `load_costs` says so to whoever needs this very file
        if key.model.startswith(f"{name}, ") and dtype in (None, key.dtype) and key.path == path:
            costs = load_costs(key)
            return None if costs is None else KeptCosts(key, costs)
    return None


def known_costs(target: CausalLM, name: str) -> CostModel:
    """The costs of a model's passes as it is used here: kept ones, or measured now and kept."""
    key = key_of(target, name)
    costs = load_costs(key)
    if costs is None:
        costs = measure_costs(target)
        save_costs(key, costs)
    return costs


def measure_costs(target: CausalLM) -> CostModel:
    """What a model's passes cost now."""
    return CostModel.fit(
        [(PassSize(1, each.num_rows, each.context), each.seconds) for each in time_passes(target)]
    )


def key_of(target: CausalLM, name: str) -> CostKey:
    """What the costs of this model depend on."""
    return CostKey(
        model=f"{name}, {num_parameters(target)} parameters, {target.packing}",
        dtype=str(target.model.dtype).removeprefix("torch."),
        device=device_name(target.device),
        threads=torch.get_num_threads(),
        version=f"outdraft {version('outdraft')}, torch {torch.__version__}",
    )


def load_costs(key: CostKey) -> CostModel | None:
    """The costs kept for this key; `None` if there are none.

    Warns:
        CostWarning: the file is damaged or cannot be read, and is ignored.
    """
    if not key.path.exists():
        return None
    try:
        return CostModel.from_json(read_kept(key.path, _KIND, key)["costs"])
    except DAMAGE as error:
        warnings.warn(
            f"the costs in {key.path} are damaged ({error!r}); they are measured anew, and the "
            "file may be removed",
            CostWarning,
            stacklevel=2,
        )
        return None


def save_costs(key: CostKey, costs: CostModel) -> None:
    """Keeps the costs, in one rename.

    Warns:
        CostWarning: the disk cannot be written to.
    """
    try:
        write_kept(key.path, _KIND, key, {"costs": costs.to_json()})
    except OSError as error:
        warnings.warn(
            f"the measured costs cannot be kept in {key.path.parent} ({error}), so every run "
            "measures them; set OUTDRAFT_HOME to a folder that can be written to",
            CostWarning,
            stacklevel=2,
        )


def _folder() -> Path:
    return cache_home() / "costs"


# --- files that hold for one key ------------------------------------------------------------------

DAMAGE = (OSError, ValueError, KeyError, TypeError, ArithmeticError)
"""What reading such a file raises, and making sense of what it holds, if it is no such file."""


def read_kept(path: Path, kind: str, key: CostKey) -> dict[str, Any]:
    """What a file of this kind holds for this key; one of `DAMAGE` if it is none."""
    contents = json.loads(path.read_text("utf-8"))
    if contents["kind"] != kind or contents["key"] != asdict(key):
        raise SettingsError(f"it is no file of {kind!r} for {key}")
    return dict(contents)


def write_kept(path: Path, kind: str, key: CostKey, values: Mapping[str, Any]) -> None:
    """Writes such a file, in one rename: stopped at any point, it leaves the old one whole.

    Raises:
        OSError: the disk cannot be written to.
    """
    contents = {"kind": kind, "key": asdict(key), **values}
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        partial.write_text(json.dumps(contents, indent=2) + "\n", "utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
