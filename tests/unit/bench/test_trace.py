from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outdraft.bench import run as run_module
from outdraft.bench.records import Record, Results
from outdraft.trace import StepTrace, read_trace
from support.reports import run_traced

Place = tuple[str | None, str | None, int | None, int | None]


def by_turn(folder: Path) -> dict[Place, list[StepTrace]]:
    lines: dict[Place, list[StepTrace]] = {}
    for trace in read_trace(folder / "trace.jsonl"):
        place = (trace.question_id, trace.method, trace.repeat, trace.turn)
        lines.setdefault(place, []).append(trace)
    return lines


def check_complete(folder: Path) -> list[Record]:
    """Every turn of every record has its lines, once, and nothing else has any."""
    records = Results(folder).records
    lines = by_turn(folder)
    turns = {
        (record.question_id, record.method, record.repeat, number): turn
        for record in records
        for number, turn in enumerate(record.turns)
    }
    assert set(lines) == set(turns)
    for place, turn in turns.items():
        own = lines[place]
        assert len({trace.request_id for trace in own}) == 1
        assert tuple(t for trace in own for t in trace.token_ids) == turn.token_ids
        assert "".join(trace.text for trace in own) == turn.text
        assert len(own) == turn.passes
    return records


@pytest.mark.parametrize(("batch", "repeat"), [(1, 2), (2, 1)])
def test_each_turn_of_the_results_has_its_lines(tmp_path: Path, batch: int, repeat: int) -> None:
    records = check_complete(run_traced(tmp_path, batch=batch, repeat=repeat))
    assert len(records) == 3 * 3 * repeat


def test_a_run_that_goes_on_traces_no_answer_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converse: Callable[..., Any] = run_module.converse
    calls = 0

    def stop_in_the_middle(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        told = converse(*args)
        if calls == 6:  # three were the warm-up; the steps of this one are lost
            raise KeyboardInterrupt
        return told

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "converse", stop_in_the_middle)
        with pytest.raises(KeyboardInterrupt):
            run_traced(tmp_path)
    assert len(check_complete(tmp_path)) == 2
    run_traced(tmp_path)
    assert len(check_complete(tmp_path)) == 9


def test_the_warm_up_is_not_traced(tmp_path: Path) -> None:
    run_traced(tmp_path)
    before = (tmp_path / "trace.jsonl").read_bytes()
    run_traced(tmp_path)  # all is answered
    assert (tmp_path / "trace.jsonl").read_bytes() == before
