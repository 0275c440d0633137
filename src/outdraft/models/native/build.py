"""Compiles the kernels with the machine's own C++ compiler, once; the result is kept.

Compiling where it runs takes a few seconds and gives code for this very CPU. The file is plain C++
with OpenMP, which torch's CPU builds load anyway: it depends on no version of torch or Python.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from filelock import FileLock

from outdraft.errors import NativeError
from outdraft.models.bundled import cache_home
from outdraft.models.progress import StageProgress

_SOURCE = Path(__file__).with_name("kernels.cpp")
# Products are not contracted with sums: kernels.cpp says where they are.
_FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-ffp-contract=off"),
    *("-fopenmp", "-fPIC", "-shared"),
)
_COMPILERS = ("g++", "clang++", "c++")
_TIMEOUT_SECONDS = 300


def built_library() -> Path:
    """Path of the compiled kernels, compiling them if they are not there yet.

    Raises:
        NativeError: there is no compiler, or it fails on them.
    """
    compiler = _compiler()
    folder = cache_home() / "native"
    path = folder / f"kernels-{_fingerprint(compiler)}.so"
    if path.exists():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                with StageProgress() as progress:
                    progress.begin("compiling kernels for this CPU, once")
                    _compile(compiler, path)
    except OSError as error:
        raise NativeError(f"{folder} cannot hold compiled kernels: {error}") from error
    return path


def _compiler() -> str:
    named = os.environ.get("CXX")
    for name in (named,) if named else _COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return found
    raise NativeError(
        f"there is no C++ compiler ({named or ', '.join(_COMPILERS)}); with one, such as Debian's "
        "package g++, this machine would compute faster"
    )


def _fingerprint(compiler: str) -> str:
    """Changes with whatever changes the compiled code: source, flags, compiler and CPU."""
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    parts = [_SOURCE.read_text(encoding="utf-8"), *_FLAGS, compiler, version, _cpu()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _cpu() -> str:
    """What tells one CPU's instructions from another's."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return f"{platform.machine()} {platform.processor()}"
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def _compile(compiler: str, path: Path) -> None:
    """Writes the library whole or not at all."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        draft = Path(folder) / path.name
        command = [compiler, *_FLAGS, str(_SOURCE), "-o", str(draft)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise NativeError(
                f"{compiler} took more than {_TIMEOUT_SECONDS} seconds for the kernels"
            ) from error
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "error" in line]
            raise NativeError(
                f"{compiler} cannot compile the kernels: {(lines or ['no message'])[0]}"
            )
        draft.replace(path)
