"""Shared by all tests: one thread, repeatable hypothesis runs, tiny things to test with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from outdraft.models.table import TableTarget
from support.toys import TABLE

# The same examples in every run, and no deadlines: machines that run tests are often busy.
settings.register_profile(
    "outdraft",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("outdraft")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Tiny models lose time by sharing it out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def table() -> TableTarget:
    """A target without a model: 16 tokens, each text depends on all that came before."""
    return TableTarget(**TABLE)
