"""The examples of docs/conversations.md are run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import outdraft
from outdraft import Outdraft
from outdraft.models.table import TableTarget
from support.command_line import TABLE, ToyTokenizer
from support.toys import EOS

PAGE = Path(__file__).parents[2] / "docs" / "conversations.md"


def test_the_examples_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = Outdraft(TableTarget(**TABLE), ToyTokenizer(), name="toy", eos_ids=[EOS])
    monkeypatch.setattr(outdraft, "load", lambda ref: llm, raising=False)
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert len(blocks) == 4
    assert names["chat"].num_turns == 2
    assert names["code"].finish_reason == "cancelled"
    assert names["late"].is_done
    assert "tokens were not read again" in capsys.readouterr().out
