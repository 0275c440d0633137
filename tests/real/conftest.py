"""The default model, loaded once for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

import outdraft


@pytest.fixture(autouse=True, scope="module")
def all_threads(one_thread: None) -> Iterator[None]:
    """A real model is large enough to share out."""
    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def llm() -> outdraft.Outdraft:
    return outdraft.load(dtype="float32")
