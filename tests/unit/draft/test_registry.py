from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from outdraft.draft import drafter_names, make_drafter, registry
from outdraft.draft.plain import NoDrafter
from outdraft.errors import DrafterError
from outdraft.interfaces import Drafter


class Installed(NoDrafter):
    """As another package would bring it."""

    name = "installed"


class NoDrafterAtAll:
    """Something else under that entry point."""


@pytest.fixture
def other_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends that a package with three entry points is installed."""
    points = [
        EntryPoint(name, f"{__name__}:{value}", registry.ENTRY_POINT_GROUP)
        for name, value in [
            ("installed", "Installed"),
            ("broken", "NoDrafterAtAll"),
            ("suffix", "Installed"),
        ]
    ]
    made = {"Installed": Installed, "NoDrafterAtAll": NoDrafterAtAll}
    monkeypatch.setattr(EntryPoint, "load", lambda self: made[self.attr])

    def entry_points(*, group: str, name: str | None = None) -> list[EntryPoint]:
        return [point for point in points if name in (None, point.name) and point.group == group]

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_the_built_in_drafters_are_known() -> None:
    assert {"none", "prompt-lookup", "suffix"} <= set(drafter_names())


@pytest.mark.parametrize("name", ["none", "prompt-lookup", "suffix"])
def test_a_drafter_has_the_name_it_is_made_by(name: str) -> None:
    drafter = make_drafter(name)
    assert isinstance(drafter, Drafter)
    assert drafter.name == name


def test_names_separated_by_commas_work_together() -> None:
    assert make_drafter("suffix, prompt-lookup").name == "suffix,prompt-lookup"


@pytest.mark.parametrize("spec", ["none:x", "prompt-lookup:9", "none,prompt-lookup:9"])
def test_an_argument_nobody_takes_is_refused(spec: str) -> None:
    with pytest.raises(DrafterError, match="takes no argument"):
        make_drafter(spec)


@pytest.mark.parametrize("spec", ["", ",", "suffix,", "suffix,magic", ":3"])
def test_a_spec_with_an_unknown_part_is_refused(spec: str) -> None:
    with pytest.raises(DrafterError, match="there is no drafter"):
        make_drafter(spec)


def test_each_call_makes_a_fresh_one() -> None:
    assert make_drafter("suffix") is not make_drafter("suffix")


def test_an_unknown_name_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(DrafterError, match="no drafter 'magic'; known are") as refused:
        make_drafter("magic")
    for name in drafter_names():
        assert name in str(refused.value)


@pytest.mark.usefixtures("other_package")
def test_other_packages_add_drafters() -> None:
    assert drafter_names()[-2:] == ["broken", "installed"]
    assert isinstance(make_drafter("installed"), Installed)


@pytest.mark.usefixtures("other_package")
def test_other_packages_replace_no_built_in_drafter() -> None:
    assert not isinstance(make_drafter("suffix"), Installed)


@pytest.mark.usefixtures("other_package")
def test_an_entry_point_that_makes_no_drafter_is_an_error() -> None:
    with pytest.raises(DrafterError, match="made a NoDrafterAtAll, not a Drafter"):
        make_drafter("broken")
