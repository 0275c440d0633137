"""Where a number was measured: without it, no number means anything."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from typing import Any

import torch

from outdraft import __version__
from outdraft.models.devices import cpu_name, device_name

_PACKAGES = ("torch", "transformers", "tokenizers")


def describe_machine(device: torch.device) -> dict[str, Any]:
    """The machine in words and numbers, as a result file keeps it."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory_bytes(),
        "system": platform.platform(),
        "device": str(device),
        "device_name": device_name(device),
    }


def describe_versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    versions = {"outdraft": __version__, "python": platform.python_version()}
    return versions | {package: version(package) for package in _PACKAGES}


def peak_rss_bytes() -> int | None:
    """The most memory this process ever held; `None` where the system does not tell."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def _memory_bytes() -> int | None:
    if sys.platform in {"win32", "darwin"}:
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
