"""The examples of docs/ are run as they stand there."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from outdraft import GenerationSettings, Outdraft
from outdraft.draft import drafter_names, make_drafter, registry
from outdraft.interfaces import Drafter
from outdraft.models.table import TableTarget
from support.toys import TABLE

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "drafters.md"
REQUESTS = DOCS / "requests.md"


def blocks(language: str, page: Path = PAGE) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


class WordNumbers:
    """Reads each word as a number of its own."""

    chat_template = None

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        words = text.split()
        return {"input_ids": [sorted(set(words)).index(word) for word in words]}

    def decode(self, token_ids: list[int], **_: Any) -> str:
        return " ".join(map(str, token_ids))


@pytest.fixture
def names(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What the page's Python defines, once all of it has run."""
    namespace: dict[str, Any] = {
        "llm": Outdraft(TableTarget(**TABLE), WordNumbers()),  # type: ignore[arg-type]
    }
    for block in blocks("python"):
        exec(compile(block, str(PAGE), "exec"), namespace)
    return namespace


def test_the_example_guesses_and_is_accepted_now_and_then(
    names: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 < names["result"].stats.accepted < names["result"].stats.drafted
    plain = names["llm"].generate(
        "one two three one two three one", drafter="none", max_new_tokens=32
    )
    assert names["result"].token_ids == plain.token_ids


def test_the_example_is_about_ten_lines(names: dict[str, Any]) -> None:
    (block,) = (block for block in blocks("python") if "class LastTime" in block)
    body = block.partition('"""\n')[2].strip().splitlines()
    assert sum(bool(line.strip()) for line in body) <= 10


def test_the_example_keeps_the_contract(names: dict[str, Any]) -> None:
    names["test_last_time_keeps_the_contract"]()


def test_the_example_is_found_by_its_entry_point(
    names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = blocks("toml")
    ((group, points),) = tomllib.loads(block)["project"]["entry-points"].items()
    assert group == registry.ENTRY_POINT_GROUP
    installed = [EntryPoint(name, value, group) for name, value in points.items()]
    monkeypatch.setattr(EntryPoint, "load", lambda self: names[self.attr])
    monkeypatch.setattr(
        registry,
        "entry_points",
        lambda *, group, name=None: [p for p in installed if name in (None, p.name)],
    )
    assert isinstance(make_drafter("last-time"), Drafter)
    assert make_drafter("last-time").name == "last-time"


def test_every_drafter_is_in_the_table() -> None:
    listed = re.findall(r"^\| `([\w-]+)", PAGE.read_text(), re.MULTILINE)
    assert set(drafter_names()) <= set(listed)


def test_the_requests_of_the_page_on_requests_run() -> None:
    llm = Outdraft(TableTarget(**TABLE), WordNumbers())  # type: ignore[arg-type]
    for block in blocks("python", REQUESTS):
        exec(compile(block, str(REQUESTS), "exec"), {"llm": llm})


def test_the_page_on_requests_names_every_option() -> None:
    page = REQUESTS.read_text()
    for name in set(GenerationSettings.model_fields) - {"prediction"}:
        assert re.search(rf"\b{name}\b", page), name
