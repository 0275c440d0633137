"""The default model, loaded once for all tests of this folder.

It stays on one thread like everything else: two of them wait for each other on busy machines.
"""

from __future__ import annotations

import pytest

import outdraft


@pytest.fixture(scope="session")
def llm() -> outdraft.Outdraft:
    return outdraft.load(dtype="float32")
