from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from outdraft.errors import SettingsError
from outdraft.models.threads import VARIABLE, set_threads


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(VARIABLE, raising=False)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_number_asked_for_is_set() -> None:
    for number in (3, 2):
        set_threads(number)
        assert torch.get_num_threads() == number


def test_without_it_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert VARIABLE == "OUTDRAFT_THREADS"
    monkeypatch.setenv(VARIABLE, "3")
    set_threads()
    assert torch.get_num_threads() == 3


def test_the_argument_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "many")
    set_threads(2)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("value", [None, ""])
def test_without_either_torch_decides(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    before = torch.get_num_threads()
    set_threads()
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "two"])
def test_what_is_no_number_of_threads_is_refused(number: int) -> None:
    with pytest.raises(SettingsError, match=f"^threads='{number}' is no whole number above 0"):
        set_threads(number)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "two", " "])
def test_nor_is_it_taken_from_the_environment(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(SettingsError, match=f"^OUTDRAFT_THREADS='{value}' is no whole number"):
        set_threads()
