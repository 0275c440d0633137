from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import outdraft
from outdraft.models.devices import cpu_name
from outdraft.models.pack import Packing
from outdraft.models.target import CausalLM
from outdraft.models.timing import TimedPass, time_passes
from outdraft.plan import cost_file
from outdraft.plan.cost_file import (
    CostKey,
    CostWarning,
    find_costs,
    key_of,
    known_costs,
    load_costs,
    save_costs,
)
from outdraft.plan.cost_model import CostModel, PassSize
from support.draft_models import small_llama
from support.tiny_models import tiny_target

KEY = CostKey("smollm2-135m", "float32", "cpu: some processor", 2, "0.1.0")
SIZE = PassSize(1, 3, 500)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTDRAFT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def some_costs(base: float = 0.1) -> CostModel:
    return CostModel([1, 4], [base, 2 * base], per_pair=1e-6)


def test_before_anything_was_measured_there_are_none() -> None:
    assert load_costs(KEY) is None


def test_costs_are_kept(home: Path) -> None:
    save_costs(KEY, some_costs())
    loaded = load_costs(KEY)
    assert loaded is not None
    assert loaded.seconds(SIZE) == some_costs().seconds(SIZE)
    assert KEY.path.is_relative_to(home)


@pytest.mark.parametrize(
    "other",
    [{"model": "x"}, {"dtype": "x"}, {"device": "x"}, {"threads": 1}, {"version": "0.2.0"}],
)
def test_they_hold_for_nothing_else(other: dict[str, object]) -> None:
    save_costs(KEY, some_costs())
    assert load_costs(replace(KEY, **other)) is None  # type: ignore[arg-type]


def test_later_costs_replace_earlier_ones_and_leave_nothing_behind() -> None:
    save_costs(KEY, some_costs())
    save_costs(KEY, some_costs(0.3))
    loaded = load_costs(KEY)
    assert loaded is not None
    assert loaded.seconds(SIZE) == some_costs(0.3).seconds(SIZE)
    assert list(KEY.path.parent.iterdir()) == [KEY.path]


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"kind": "outdraft costs 1"}',
        json.dumps({"kind": "other", "key": {}, "costs": {}}).encode(),
    ],
)
def test_a_damaged_file_is_ignored_aloud_and_replaced(contents: bytes) -> None:
    save_costs(KEY, some_costs())
    KEY.path.write_bytes(contents)
    with pytest.warns(CostWarning, match="measured anew"):
        assert load_costs(KEY) is None
    save_costs(KEY, some_costs())
    assert load_costs(KEY) is not None


@pytest.mark.parametrize(
    ("name", "value"), [("base", [0.2, 0.1]), ("rows", []), ("per_pair", "much")]
)
def test_costs_that_cannot_be_are_damage(name: str, value: object) -> None:
    save_costs(KEY, some_costs())
    contents = json.loads(KEY.path.read_text())
    contents["costs"][name] = value
    KEY.path.write_text(json.dumps(contents))
    with pytest.warns(CostWarning, match="damaged"):
        assert load_costs(KEY) is None


def test_the_file_of_another_key_is_damage() -> None:
    other = replace(KEY, threads=8)
    save_costs(KEY, some_costs())
    KEY.path.rename(other.path)
    with pytest.warns(CostWarning, match="it is no file"):
        assert load_costs(other) is None


def test_a_folder_that_cannot_be_written_to_is_told(home: Path) -> None:
    home.write_text("a file where the folder should be")
    with pytest.warns(CostWarning, match="OUTDRAFT_HOME"):
        save_costs(KEY, some_costs())


def test_a_write_that_fails_leaves_the_old_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    save_costs(KEY, some_costs())

    def fail(path: Path, target: Path) -> Path:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.warns(CostWarning, match="disk full"):
            save_costs(KEY, some_costs(0.3))
    loaded = load_costs(KEY)
    assert loaded is not None
    assert loaded.seconds(SIZE) == some_costs().seconds(SIZE)
    assert list(KEY.path.parent.iterdir()) == [KEY.path]


# --- measured once --------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[CausalLM]:
    """The targets that were measured."""
    targets: list[CausalLM] = []

    def time_and_note(target: CausalLM) -> list[TimedPass]:
        targets.append(target)
        return time_passes(target)

    monkeypatch.setattr(cost_file, "time_passes", time_and_note)
    return targets


def test_a_model_is_measured_once_and_then_remembered(home: Path, measured: list[CausalLM]) -> None:
    target = tiny_target("llama")
    first, second = known_costs(target, "tiny"), known_costs(target, "tiny")
    assert measured == [target]
    assert first is not second
    for size in (PassSize(1, 1, 64), PassSize(1, 16, 80), PassSize(4, 5, 300)):
        assert first.seconds(size) == second.seconds(size) > 0
    assert [path.parent for path in home.rglob("*.json")] == [home / "costs"]


def test_costs_are_those_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = [TimedPass(rows, 50, 0.1 * rows) for rows in (1, 2, 4)]
    monkeypatch.setattr(cost_file, "time_passes", lambda _: passes)
    costs = known_costs(tiny_target("llama"), "tiny")
    assert costs.seconds(PassSize(1, 3, 50)) == pytest.approx(0.3)


def test_damaged_costs_are_measured_anew(measured: list[CausalLM]) -> None:
    target = tiny_target("llama")
    known_costs(target, "tiny")
    key_of(target, "tiny").path.write_text("{")
    with pytest.warns(CostWarning, match="measured anew"):
        known_costs(target, "tiny")
    known_costs(target, "tiny")
    assert measured == [target] * 2


def test_another_use_of_a_model_is_measured_by_itself(
    measured: list[CausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_target("llama")
    packed = CausalLM(target.model, Packing("some kernels", layers=2))
    others = [
        (tiny_target("llama", dtype=torch.float32), "tiny"),
        (target, "another"),
        (packed, "tiny"),
        (small_llama(hidden_size=16), "tiny"),
    ]
    known_costs(target, "tiny")
    for other, name in others:
        known_costs(other, name)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    known_costs(target, "tiny")
    assert measured == [target, *(other for other, _ in others), target]
    assert len({key_of(other, name) for other, name in others}) == 4


def test_costs_are_found_by_a_models_name() -> None:
    assert find_costs("tiny") is None
    older, newer, other = (
        CostKey(model, dtype, "a chip", 2, "0.1.0")
        for model, dtype in [
            ("tiny, 9 parameters", "float32"),
            ("tiny, 9 parameters", "bfloat16"),
            ("tiny-chat, 9 parameters", "float32"),
        ]
    )
    for age, key in enumerate((other, newer, older)):
        save_costs(key, some_costs(0.1 * (1 + age)))
        os.utime(key.path, (1e9 - age, 1e9 - age))
    (older.path.parent / "damaged.json").write_text("{")
    for dtype, key in [(None, newer), ("bfloat16", newer), ("float32", older)]:
        found = find_costs("tiny", dtype)
        assert found is not None
        assert found.key == key
        assert found.costs.seconds(SIZE) == pytest.approx(load_costs(key).seconds(SIZE))
    assert find_costs("tiny", "float16") is None
    assert find_costs("tin") is None


def test_a_key_says_what_costs_depend_on() -> None:
    key = key_of(tiny_target("llama"), "tiny")
    assert key.model.startswith("tiny, ")
    assert key.dtype == "float64"
    assert key.device == cpu_name()
    assert key.threads == torch.get_num_threads()
    assert outdraft.__version__ in key.version
    assert torch.__version__ in key.version
