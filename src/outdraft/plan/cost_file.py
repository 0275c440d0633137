"""Measured costs from one run to the next, in outdraft's cache folder.

They hold for one model on one machine as it is used: each such key has a file of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

from outdraft.errors import SettingsError
from outdraft.models.bundled import cache_home
from outdraft.plan.cost_model import CostModel

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
        return cache_home() / "costs" / f"{digest[:24]}.json"


def load_costs(key: CostKey) -> CostModel | None:
    """The costs kept for this key; `None` if there are none.

    Warns:
        CostWarning: the file is damaged or cannot be read, and is ignored.
    """
    if not key.path.exists():
        return None
    try:
        contents = json.loads(key.path.read_text("utf-8"))
        if contents["kind"] != _KIND or contents["key"] != asdict(key):
            raise SettingsError(f"it is no file of {_KIND!r} for {key}")
        return CostModel.from_json(contents["costs"])
    except (OSError, ValueError, KeyError, TypeError) as error:
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
    contents = {"kind": _KIND, "key": asdict(key), "costs": costs.to_json()}
    path = key.path
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_text(json.dumps(contents, indent=2) + "\n", "utf-8")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        warnings.warn(
            f"the measured costs cannot be kept in {path.parent} ({error}), so every run measures "
            "them; set OUTDRAFT_HOME to a folder that can be written to",
            CostWarning,
            stacklevel=2,
        )
