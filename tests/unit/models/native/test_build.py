"""Compiling the kernels: once, whole or not at all, and a reason where it cannot be done."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from outdraft.errors import NativeError
from outdraft.models.native import build
from outdraft.models.native.library import SWITCH, Kernels, load_kernels


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTDRAFT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def compiler(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_no_compiler_is_said_with_the_way_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NativeError, match=r"no C\+\+ compiler \(no-such-compiler\).*g\+\+"):
        build.built_library()


def test_a_compiler_that_fails_leaves_nothing_behind(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'case "$1" in --version) echo 1;; *) echo "x: error: no omp.h" >&2; exit 1;; esac'
    monkeypatch.setenv("CXX", compiler(tmp_path / "cxx", script))
    with pytest.raises(NativeError, match=r"error: no omp\.h"):
        build.built_library()
    assert [path for path in (home / "native").iterdir() if path.suffix == ".so"] == []


def test_it_compiles_once_for_each_compiler(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    script = (
        f'case "$1" in --version) echo $VERSION;; *) echo x >> {calls}; '
        'for last; do :; done; echo so > "$last";; esac'
    )
    monkeypatch.setenv("CXX", compiler(tmp_path / "cxx", script))
    monkeypatch.setenv("VERSION", "1")
    first = build.built_library()
    assert build.built_library() == first
    assert calls.read_text().count("x") == 1
    monkeypatch.setenv("VERSION", "2")
    assert build.built_library() != first
    assert calls.read_text().count("x") == 2


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kernels.so"
    path.write_text("so")
    with pytest.raises(NativeError, match="cannot be loaded"):
        Kernels(path)


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    load_kernels.cache_clear()
    with pytest.raises(NativeError, match="OUTDRAFT_NATIVE=0"):
        load_kernels()
    load_kernels.cache_clear()
