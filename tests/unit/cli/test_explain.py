"""What drafting did, in words."""

from __future__ import annotations

import io

from rich.console import Console

from outdraft.cli.explain import show
from outdraft.stats import DrafterStats, Stats


def shown(stats: Stats) -> str:
    console = Console(file=io.StringIO(), width=160)
    show(console, stats)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_it_says_what_each_drafter_did_and_why_one_was_left_out() -> None:
    stats = Stats(
        steps=40,
        drafted=60,
        tokens=61,
        plain_steps=10,
        expected_tokens=50.0,
        expected_plain_seconds=3.0,
        seconds=2.5,
        first_token_seconds=0.5,
    )
    stats.drafters["suffix"] = DrafterStats(40, 60, 30, 20, 0.02, 3 << 20)
    stats.drafters["recycling"] = DrafterStats(12, 9, 3, 0, 0.012)
    stats.drafters["prediction"] = DrafterStats(5, 0, 0, 0, 0.0)
    stats.drafters["datastore"] = DrafterStats()
    text = shown(stats)
    assert "tokens per step       1.49" in text
    assert "rows per step         2.5" in text
    assert "plain steps           10 of 40" in text
    assert "planned for           1.25 tokens per step" in text
    assert "estimated speed-up    1.50 over plain decoding" in text
    suffix, recycling, prediction, datastore = text.splitlines()[-4:]
    assert suffix.split() == ["suffix", "40", "60", "20", "67%", "0.50", "3.0", "MB"]
    assert "left out of 28 steps: its guesses did not pay for its time" in recycling
    assert "nothing to say that was worth its rows" in prediction
    assert "never asked" in datastore


def test_without_prices_there_is_no_estimate() -> None:
    text = shown(Stats(steps=3, tokens=4, seconds=1.0))
    assert "speed-up" not in text
    assert "drafter" not in text
