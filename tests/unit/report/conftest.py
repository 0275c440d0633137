"""A run with everything in it, made once: repeats, two drafters, a trace, hostile texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from outdraft.report import Run, read_run
from support.reports import HostileTokenizer, run_traced, toy_llm


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_traced(tmp_path_factory.mktemp("run"), toy_llm(HostileTokenizer()), repeat=2)


@pytest.fixture(scope="session")
def whole(folder: Path) -> Run:
    return read_run(folder)
