from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from outdraft import Outdraft, step as step_module
from outdraft.engine import Engine
from outdraft.errors import SettingsError
from outdraft.sampling import to_probs
from outdraft.settings import GenerationSettings
from outdraft.text.detokenizer import text_decoder, token_shower
from outdraft.text.prompts import to_prompt_ids
from outdraft.trace import StepRecord, StepSeconds, StepTrace, Tracer, TraceWriter, read_trace
from outdraft.types import DraftTree
from plain import reader_of_target
from support.command_line import PIECES
from support.reports import toy_llm
from support.toys import EOS, make_sequence

PROMPTS = ["hello", "the cat sat on the mat", "hi"]


@pytest.fixture
def llm() -> Outdraft:
    return toy_llm()


def trace_of(llm: Outdraft, prompts: Any = "hello", **options: Any) -> tuple[Any, list[StepTrace]]:
    """Results, and all lines of their trace."""
    traces: list[StepTrace] = []
    tracer = Tracer(text_decoder(llm.tokenizer), token_shower(llm.tokenizer), traces.extend)
    options = {"max_new_tokens": 60, **options}
    return llm.generate(prompts, on_step=tracer, **options), traces


def make_trace(**changes: Any) -> StepTrace:
    tree = DraftTree((4, 5), (-1, 0), (0.5, 0.25), "made", ((1.0, 2.0), (3.0, 4.0)))
    fields: dict[str, Any] = {
        "request_id": 3,
        "step": 2,
        "seqs": 1,
        "rows": 3,
        "tree": tree,
        "path": (0, 1),
        "target_ids": (4, 6),
        "top": (((4, 0.5), (5, 0.25)), ((6, 0.75),)),
        "token_ids": (4, 6),
        "origins": ("drafted", "corrected"),
        "pieces": ("a", "é"),
        "text": "aé",
        "finish_reason": None,
        "seconds": StepSeconds(0.1, 0.2, 0.3, 0.7),
        "texts": {4: "a", 5: "b", 6: "é"},
    }
    return StepTrace(**{**fields, **changes})


# --- what a trace says ----------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", ["none", "suffix", "prompt-lookup"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_lines_join_to_the_answer(llm: Outdraft, drafter: str, temperature: float) -> None:
    result, traces = trace_of(llm, drafter=drafter, temperature=temperature, seed=3)
    assert tuple(itertools.chain.from_iterable(t.token_ids for t in traces)) == result.token_ids
    assert "".join(trace.text for trace in traces) == result.text
    assert "".join("".join(trace.pieces) for trace in traces) == result.text
    assert [trace.step for trace in traces] == list(range(result.stats.steps + 1))
    assert [trace.finish_reason for trace in traces[:-1]] == [None] * result.stats.steps
    assert traces[-1].finish_reason == result.finish_reason


def test_the_counts_are_those_of_the_statistics(llm: Outdraft) -> None:
    result, traces = trace_of(llm, drafter="suffix")
    stats = result.stats
    assert sum(len(trace.tree) for trace in traces) == stats.drafted > 0
    assert sum(trace.origins.count("drafted") for trace in traces) == stats.accepted > 0
    assert traces[0].rows == result.prompt_tokens
    assert sum(trace.rows for trace in traces[1:]) == stats.steps + stats.drafted
    times = [trace.seconds for trace in traces[1:]]
    assert sum(time.draft for time in times) == pytest.approx(stats.draft_seconds)
    target = sum(trace.seconds.target for trace in traces[1:])
    assert 0 < target <= stats.target_seconds
    for time in times:
        assert time.draft + time.plan + time.target <= time.step


def test_the_path_is_the_guesses_that_the_target_wrote(llm: Outdraft) -> None:
    _, traces = trace_of(llm, drafter="suffix")
    assert any(len(trace.path) > 2 for trace in traces)
    for trace in traces:
        guessed = [trace.tree.token_ids[row - 1] for row in trace.path[1:]]
        assert guessed == list(trace.target_ids[: len(guessed)])
        assert trace.token_ids == trace.target_ids[: len(trace.token_ids)]
        assert len(trace.path) == len(trace.target_ids) == len(trace.top)
        assert set(trace.texts) >= {*trace.tree.token_ids, *trace.target_ids}


def test_the_likeliest_tokens_are_the_targets_own(llm: Outdraft) -> None:
    result, traces = trace_of(llm, drafter="suffix", max_new_tokens=20)
    read = reader_of_target(llm.target)
    prompt_ids = to_prompt_ids(llm.tokenizer, "hello")
    texts = list(result.token_ids)
    num_before = 0
    for trace in traces:
        for row, token_id in enumerate(trace.token_ids):
            logits = read([*prompt_ids, *texts[: num_before + row]])
            probs = to_probs(logits, GenerationSettings(temperature=1.0))[0]
            values, ids = probs.topk(3)
            assert [likely for likely, _ in trace.top[row]] == ids.tolist()
            assert [p for _, p in trace.top[row]] == pytest.approx(values.tolist(), abs=1e-6)
            assert trace.top[row][0][0] == token_id
        num_before += len(trace.token_ids)


def test_of_sampled_requests_they_are_those_it_draws_from(llm: Outdraft) -> None:
    _, traces = trace_of(llm, drafter="suffix", temperature=0.7, top_k=2, seed=1)
    for trace in traces:
        for top in trace.top:
            assert len(top) == 2  # the third has been filtered out
            assert sum(prob for _, prob in top) == pytest.approx(1.0, abs=1e-6)


def test_requests_of_a_batch_have_their_own_lines(llm: Outdraft) -> None:
    results, traces = trace_of(llm, PROMPTS, drafter="suffix")
    request_ids = sorted({trace.request_id for trace in traces})
    for request_id, result in zip(request_ids, results, strict=True):
        own = [trace for trace in traces if trace.request_id == request_id]
        assert [trace.step for trace in own] == list(range(result.stats.steps + 1))
        assert "".join(trace.text for trace in own) == result.text
    assert max(trace.seqs for trace in traces) == len(PROMPTS)


def test_half_a_character_at_the_end_belongs_to_the_last_token(llm: Outdraft) -> None:
    text = llm.generate("hello", max_new_tokens=60, drafter="none")
    half = next(n for n in range(1, 60) if text.token_ids[n - 1] == PIECES.index(b"\xc3"))
    result, traces = trace_of(llm, max_new_tokens=half)
    assert result.text.endswith("\ufffd")
    assert traces[-1].pieces[-1].endswith("\ufffd")


def test_the_pieces_know_nothing_of_stop_strings(llm: Outdraft) -> None:
    whole = llm.generate("hello", max_new_tokens=60).text
    stop = whole[30:33]
    result, traces = trace_of(llm, drafter="suffix", stop=stop)
    pieces = "".join("".join(trace.pieces) for trace in traces)
    assert result.text == "".join(trace.text for trace in traces)
    assert pieces.startswith(result.text + stop)


# --- who watches, and who does not ----------------------------------------------------------------


def test_watching_changes_nothing(llm: Outdraft) -> None:
    watched, _ = trace_of(llm, PROMPTS, drafter="suffix")
    alone = llm.generate(PROMPTS, drafter="suffix", max_new_tokens=60)
    assert [result.token_ids for result in watched] == [result.token_ids for result in alone]


def test_nothing_is_recorded_while_nobody_watches(
    llm: Outdraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise AssertionError("a record was made")

    monkeypatch.setattr(step_module, "StepRecord", fail)
    assert llm.generate("hello", max_new_tokens=20).stats.steps > 0
    with pytest.raises(AssertionError, match="a record was made"):
        trace_of(llm)


def test_an_observer_sees_a_step_that_is_committed(llm: Outdraft) -> None:
    lens: list[tuple[int, int]] = []
    sequence = make_sequence([1, 2, 3], max_new_tokens=12, eos_ids=(EOS,))

    def watch(record: StepRecord) -> None:
        (seq,) = record.batch
        lens.append((len(seq.new_ids), sum(len(commit.token_ids) for commit in record.commits)))
        assert record.logits.shape[0] == len(record.trees) == len(record.verdicts) == 1
        assert not record.logits.requires_grad

    engine = Engine(llm.target, llm.drafter("suffix"), llm.settings, on_step=watch)
    engine.add(sequence)
    while not engine.is_idle:
        engine.step()
    new = [committed for _, committed in lens]
    assert [total for total, _ in lens] == list(itertools.accumulate(new))


def test_what_an_observer_raises_leaves_nothing_behind(llm: Outdraft) -> None:
    def fail(record: StepRecord) -> None:
        raise RuntimeError("no room on disk")

    with pytest.raises(RuntimeError, match="no room"):
        llm.generate("hello", on_step=fail, max_new_tokens=9)
    assert llm.generate("hello", max_new_tokens=9).stats.tokens == 9


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trace",
    [
        make_trace(),
        make_trace(finish_reason="stop", question_id="q", method="m", repeat=0, turn=1),
        make_trace(tree=DraftTree(), path=(0,), target_ids=(4,), top=((),)),
    ],
)
def test_a_line_is_read_as_it_was_written(tmp_path: Path, trace: StepTrace) -> None:
    path = tmp_path / "new" / "trace.jsonl"
    with TraceWriter(path) as writer:
        writer([trace, trace])
    assert list(read_trace(path)) == [trace, trace]


def test_lines_of_a_run_are_read_as_they_were_written(llm: Outdraft, tmp_path: Path) -> None:
    _, traces = trace_of(llm, PROMPTS, drafter="suffix")
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as writer:
        writer(traces)
    read = list(read_trace(path))
    again = [StepTrace.from_json(json.loads(json.dumps(trace.to_json()))) for trace in traces]
    assert read == again
    assert [trace.tree for trace in read] == [trace.tree for trace in traces]
    assert all(len(line) < 8000 for line in path.read_text().splitlines())


def test_a_writer_begins_anew_or_goes_on_behind_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    first, second = make_trace(step=1), make_trace(step=2)
    with TraceWriter(path) as writer:
        writer([first])
    path.write_bytes(path.read_bytes() + b'{"torn": ')
    assert list(read_trace(path)) == [first]
    with TraceWriter(path, goes_on=True) as writer:
        writer([second])
    assert list(read_trace(path)) == [first, second]
    with TraceWriter(path) as writer:
        writer([second])
    assert list(read_trace(path)) == [second]


def test_a_line_of_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as writer:
        writer([make_trace()])
    path.write_text(path.read_text() + '{"step": 1}\n')
    with pytest.raises(SettingsError, match=r"trace\.jsonl, line 2 is no line of a trace"):
        list(read_trace(path))


def test_files_that_are_not_there_or_cannot_be_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"gone\.jsonl cannot be read"):
        list(read_trace(tmp_path / "gone.jsonl"))
    with pytest.raises(SettingsError, match=r"cannot be written .*name another file"):
        TraceWriter(tmp_path)


def test_a_trace_in_half_precision_is_computed_in_full() -> None:
    from outdraft.trace import _likeliest

    logits = torch.tensor([[0.0, 10.0, 9.0]], dtype=torch.bfloat16)
    ((first, *_),) = _likeliest(logits, GenerationSettings())
    assert first == (1, pytest.approx(0.7310, abs=1e-4))


def test_the_schema_names_every_field_of_a_line() -> None:
    page = (Path(__file__).parents[2] / "docs" / "trace.md").read_text()
    rows = re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    whole = make_trace(finish_reason="stop", question_id="q", method="m", repeat=0, turn=1)
    assert documented == set(whole.to_json())
