"""Shared by all tests: one thread, repeatable hypothesis runs, tiny things to test with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from outdraft.models.bundled import cache_home
from outdraft.models.table import TableTarget
from outdraft.plan import cost_file
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


@pytest.fixture(autouse=True, scope="session")
def no_costs_in_the_users_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Costs measured by tests stay out of the user's cache folder.

    Kernels and the default model are still taken from there, and a test that names another
    `OUTDRAFT_HOME` has its costs in it.
    """
    users, tests = cache_home(), tmp_path_factory.mktemp("home")

    def home() -> Path:
        wanted = cache_home()
        return tests if wanted == users else wanted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost_file, "cache_home", home)
        yield


@pytest.fixture(scope="session")
def table() -> TableTarget:
    """A target without a model: 16 tokens, each text depends on all that came before."""
    return TableTarget(**TABLE)
