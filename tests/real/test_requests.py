"""The default model, in fp32: what a request asks for means the same with every drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outdraft import Outdraft
from outdraft.check import usable_drafters
from outdraft.draft import drafter_names

pytestmark = pytest.mark.real

PROMPT = "one two three four, one two three four, one two three"
PENALTIES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.8},
    {"frequency_penalty": 0.8},
    {"no_repeat_ngram_size": 3},
]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_penalties_mean_the_same_with_every_drafter(
    llm: Outdraft, temperature: float, tmp_path: Path
) -> None:
    llm = llm.with_engine(adaptive=False)
    common = {"temperature": temperature, "seed": 5, "max_new_tokens": 24}
    free = llm.generate(PROMPT, drafter="none", **common)
    plain = [llm.generate(PROMPT, drafter="none", **common, **each) for each in PENALTIES]
    assert len({free.token_ids, *(result.token_ids for result in plain)}) > 2  # they matter
    names = [name for name in drafter_names() if name != "none"]
    drafters, reasons = usable_drafters(llm, names, [PROMPT], tmp_path)
    assert reasons == {}
    for drafter in drafters:
        drafted = llm.generate(
            [PROMPT] * len(PENALTIES),
            drafter=drafter,
            per_prompt=PENALTIES,
            prediction=free.text,
            **common,
        )
        assert [each.token_ids for each in drafted] == [each.token_ids for each in plain]
        assert [each.text for each in drafted] == [each.text for each in plain]
        assert sum(each.stats.drafted for each in drafted) > 0
