from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outdraft.errors import SettingsError
from outdraft.plan.calibration import Calibrator
from outdraft.plan.cost_file import CostKey
from outdraft.plan.cost_model import CostModel, PassSize
from outdraft.plan.profile import (
    Finding,
    Profile,
    ProfileWarning,
    load_profile,
    profile_path,
    remove_profile,
    save_profile,
)
from outdraft.types import DraftTree

KEY = CostKey("smollm2-135m", "float32", "cpu: some processor", 2, "0.1.0")
SIZE = PassSize(1, 3, 500)
TREE = DraftTree.chain((1, 2, 3), 0.6, "suffix")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTDRAFT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def some_profile(base: float = 0.1) -> Profile:
    calibrator = Calibrator()
    for _ in range(50):
        calibrator.observe(TREE, 0.0, (1, 2, 9))
    return Profile(
        CostModel([1, 4], [base, 2 * base], per_pair=1e-6),
        calibrator,
        (Finding("suffix", 0.0, 1.5, 1.3, 1.2), Finding("auto", 0.8, 1.1, 0.9, 1.05)),
        "2026-01-31 12:00",
        9,
    )


def change(path: tuple[str | int, ...], value: object) -> None:
    """Puts a value into the file, at this place."""
    contents: Any = json.loads(profile_path(KEY).read_text())
    inner = contents
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    profile_path(KEY).write_text(json.dumps(contents))


def test_before_anything_was_tuned_there_is_none() -> None:
    assert load_profile(KEY) is None


def test_a_profile_is_kept(home: Path) -> None:
    made = some_profile()
    path = save_profile(KEY, made)
    loaded = load_profile(KEY)
    assert path.is_relative_to(home)
    assert loaded is not None
    assert loaded.costs.seconds(SIZE) == made.costs.seconds(SIZE)
    assert loaded.calibrator.acceptance(TREE, 0.0) == made.calibrator.acceptance(TREE, 0.0)
    assert loaded.calibrator.acceptance(TREE, 0.0) != Calibrator().acceptance(TREE, 0.0)
    assert (loaded.findings, loaded.made, loaded.num_prompts) == (made.findings, made.made, 9)


def test_it_pays_if_the_clock_and_the_costs_agree() -> None:
    for expected, measured, pays in [(1.2, 1.1, True), (1.2, 0.9, False), (0.9, 1.2, False)]:
        assert Finding("suffix", 0.0, 1.5, expected, measured).pays == pays


def test_it_holds_for_nothing_else() -> None:
    save_profile(KEY, some_profile())
    assert load_profile(replace(KEY, threads=1)) is None


def test_a_later_one_replaces_an_earlier_one_and_leaves_nothing_behind() -> None:
    save_profile(KEY, some_profile())
    path = save_profile(KEY, some_profile(0.3))
    loaded = load_profile(KEY)
    assert loaded is not None
    assert loaded.costs.seconds(SIZE) == some_profile(0.3).costs.seconds(SIZE)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("contents", [b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"kind": "other"}'])
def test_a_damaged_file_is_left_out_aloud_and_in_one_line(contents: bytes) -> None:
    save_profile(KEY, some_profile()).write_bytes(contents)
    with pytest.warns(ProfileWarning, match="outdraft tune") as warned:
        assert load_profile(KEY) is None
    assert len(str(warned[0].message).splitlines()) == 1
    save_profile(KEY, some_profile())
    assert load_profile(KEY) is not None


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("costs", "base"), [0.2, 0.1]),
        (("costs",), None),
        (("counts",), {"suffix": 1}),
        (("counts",), 7),
        (("counts", 0, "warmth"), 9),
        (("counts", 0, "method"), 1),
        (("counts", 0, "form"), [1, 2, 1]),
        (("counts", 0, "form"), [1, 1]),
        (("counts", 0, "form"), [float("inf"), 1, 1]),
        (("counts", 0, "form"), [2, float("nan"), 1]),
        (("counts", 0, "alike", 0), [0, 1, 0, 5, 5, 0]),
        (("counts", 0, "alike", 0), [float("inf"), 1, 0, 5, 5, 5]),
        (("counts", 0, "alike"), None),
        (("findings", 0, "measured_speedup"), float("nan")),
        (("findings", 0), "fast"),
        (("num_prompts",), float("inf")),
        (("num_prompts",), None),
    ],
)
def test_numbers_that_cannot_be_are_damage(place: tuple[str | int, ...], value: object) -> None:
    save_profile(KEY, some_profile())
    change(place, value)
    with pytest.warns(ProfileWarning, match="damaged"):
        assert load_profile(KEY) is None


def test_the_file_of_another_key_is_damage() -> None:
    other = replace(KEY, threads=8)
    save_profile(KEY, some_profile()).rename(profile_path(other))
    with pytest.warns(ProfileWarning, match="it is no file"):
        assert load_profile(other) is None


def test_a_folder_that_cannot_be_written_to_is_an_error_that_says_so(home: Path) -> None:
    home.write_text("a file where the folder should be")
    with pytest.raises(SettingsError, match="OUTDRAFT_HOME"):
        save_profile(KEY, some_profile())


def test_a_write_that_is_broken_off_leaves_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_profile(KEY, some_profile())

    def interrupt(path: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            save_profile(KEY, some_profile(0.3))
    loaded = load_profile(KEY)
    assert loaded is not None
    assert loaded.costs.seconds(SIZE) == some_profile().costs.seconds(SIZE)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_profile_can_be_removed(is_damaged: bool) -> None:
    path = save_profile(KEY, some_profile())
    if is_damaged:
        path.write_text("{")
    assert remove_profile(KEY)
    assert not remove_profile(KEY)
    assert load_profile(KEY) is None
