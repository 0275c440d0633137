from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import pytest
import torch

from outdraft.bench.methods import make_methods
from outdraft.bench.questions import Question
from outdraft.bench.run import BenchSettings, describe_run, open_results, run_bench
from outdraft.draft import registry
from outdraft.draft.prompt_lookup import PromptLookup
from outdraft.errors import CacheError, DrafterError, SettingsError
from outdraft.generate import Outdraft
from outdraft.interfaces import Drafter
from outdraft.models.cache import PositionCache
from outdraft.models.table import TableCache, TableTarget
from outdraft.plan.cost_model import CostModel, PassSize
from outdraft.replay import (
    KnownTarget,
    Prediction,
    id_only_specs,
    is_bench_log,
    read_bench_log,
    read_log,
    replay,
)
from outdraft.sequence import Sequence
from outdraft.settings import AUTO_DRAFTER, AUTO_ID_ONLY, EngineSettings, GenerationSettings
from outdraft.types import Budget, Commit, DraftTree, Rows
from support.benches import QUESTIONS, toy_llm
from support.toys import EOS, LetterTokenizer

DRAFTERS = ["prompt-lookup", "suffix", "suffix,prompt-lookup"]
# Texts that end by themselves, texts that a length ends, and several turns.
MANY = [QUESTIONS[0], *QUESTIONS[2:4], Question("q1", "qa", ("noon",))]


@pytest.fixture(scope="module")
def table() -> TableTarget:
    """One whose texts end in part by themselves, in part by their length."""
    return TableTarget(16, fade=0.9, seed=60)


def bench(
    folder: Path,
    llm: Outdraft,
    drafters: Seq[str] = ("suffix",),
    questions: Seq[Question] = MANY,
    **options: Any,
) -> Path:
    """A bench run; returns its results.jsonl."""
    generation = GenerationSettings(
        max_new_tokens=options.pop("max_new_tokens", 24),
        temperature=options.pop("temperature", 0.0),
        seed=0,
    )
    settings = BenchSettings(generation, **options)
    methods = make_methods(llm, drafters=drafters, baselines=["plain"])
    run = describe_run(llm, methods, questions, settings, source="toys")
    results = open_results(folder, run, questions)
    run_bench(llm, methods, questions, settings, results, on_progress=lambda _: None)
    return folder / "results.jsonl"


def counts(path: Path, method: str) -> dict[str, int]:
    """What was measured, straight from the file."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    turns = [
        turn
        for record in records
        if record["method"] == method and record["repeat"] == 0 and record["error"] is None
        for turn in record["turns"]
    ]
    return {
        "tokens": sum(len(turn["token_ids"]) for turn in turns),
        "passes": sum(turn["passes"] for turn in turns),
        "drafted": sum(turn["drafted"] for turn in turns),
    }


def predicted(predictions: Seq[Prediction]) -> dict[str, int]:
    total = predictions[-1]
    assert total.group is None
    return {"tokens": total.tokens, "passes": total.passes, "drafted": total.drafted}


# --- the prediction is the measurement ------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("max_draft_nodes", [0, 4, 15])
def test_the_prediction_equals_what_was_measured(
    table: TableTarget, tmp_path: Path, temperature: float, max_draft_nodes: int
) -> None:
    llm = toy_llm(table, settings=EngineSettings(max_draft_nodes=max_draft_nodes))
    path = bench(tmp_path, llm, DRAFTERS, temperature=temperature)
    log = read_bench_log(path)
    assert log.max_draft_nodes == max_draft_nodes
    ends = {answer.has_end for answers in log.answers.values() for answer in answers}
    assert ends == {True, False}
    for spec in DRAFTERS:
        predictions = replay(log, spec, max_draft_nodes)
        measured = counts(path, spec)
        assert predicted(predictions) == measured
        assert predictions[-1].measured_passes == measured["passes"]
        assert predictions[-1].tokens_per_step == predictions[-1].measured_tokens_per_step
        if max_draft_nodes:
            assert predictions[-1].tokens_per_step > 1.0


def test_groups_add_up_to_all(table: TableTarget, tmp_path: Path) -> None:
    log = read_bench_log(bench(tmp_path, toy_llm(table)))
    *groups, total = replay(log, "suffix", 15)
    assert [group.group for group in groups] == [
        "multi-turn conversation",
        "retrieval-augmented generation",
        "question answering",
    ]
    for name in ("answers", "tokens", "passes", "drafted", "measured_passes"):
        assert getattr(total, name) == sum(getattr(group, name) for group in groups)


def test_questions_answered_together_are_predicted_too(table: TableTarget, tmp_path: Path) -> None:
    path = bench(tmp_path, toy_llm(table), batch=3)
    assert predicted(replay(read_bench_log(path), "suffix", 15)) == counts(path, "suffix")


def test_the_end_of_the_context_is_predicted_too(tmp_path: Path) -> None:
    llm = toy_llm(TableTarget(16, fade=0.9, seed=56, max_context=20), eos_ids=[])
    path = bench(tmp_path, llm, max_new_tokens=100)
    assert predicted(replay(read_bench_log(path), "suffix", 15)) == counts(path, "suffix")


def test_the_first_repeat_stands_for_all(table: TableTarget, tmp_path: Path) -> None:
    path = bench(tmp_path, toy_llm(table), repeat=2)
    assert predicted(replay(read_bench_log(path), "suffix", 15)) == counts(path, "suffix")


class Remembering(PromptLookup):
    """Guesses from all requests it has seen, so that their order matters."""

    name = "remembering"

    def __init__(self) -> None:
        super().__init__()
        self._memory = self.new_index()

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        return [
            self.guess(self._memory, budget.max_nodes, max(depth, 0))
            if depth > 0
            else DraftTree(drafter=self.name)
            for depth in budget.max_depths
        ]

    def observe(self, sequence: Sequence, commit: Commit) -> None:
        self._memory.extend(commit.token_ids)


def test_a_drafter_that_learns_from_request_to_request_is_predicted_too(
    table: TableTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry._BUILT_IN, "remembering", lambda argument, context: Remembering())
    path = bench(tmp_path, toy_llm(table), ["remembering"], repeat=2)
    measured = counts(path, "remembering")
    assert predicted(replay(read_bench_log(path), "remembering", 15)) == measured
    assert measured["tokens"] > measured["passes"]


def test_a_drafter_that_was_not_measured_is_replayed_on_plain_decodings_answers(
    table: TableTarget, tmp_path: Path
) -> None:
    llm = toy_llm(table)
    log = read_bench_log(bench(tmp_path / "few", llm))
    prediction = replay(log, "prompt-lookup", 15)
    assert prediction[-1].measured_passes is prediction[-1].measured_tokens_per_step is None
    path = bench(tmp_path / "measured", llm, ["prompt-lookup"])
    assert predicted(prediction) == counts(path, "prompt-lookup")


def test_another_budget_is_predicted_as_well(table: TableTarget, tmp_path: Path) -> None:
    log = read_bench_log(bench(tmp_path / "15", toy_llm(table)))
    other = toy_llm(table, settings=EngineSettings(max_draft_nodes=3))
    prediction = replay(log, "suffix", 3)
    assert predicted(prediction) == counts(bench(tmp_path / "3", other), "suffix")
    assert prediction[-1].measured_passes is None  # what was measured is another budget's


# --- time -----------------------------------------------------------------------------------------


def flat_costs(seconds: float = 0.02, *, per_row: float = 0.0) -> CostModel:
    """Of passes that take as long whatever they read, or longer by so much for each further row."""
    sizes = [PassSize(1, rows, context) for rows in (1, 2, 4, 8, 16) for context in (10, 1000)]
    return CostModel.fit([(size, seconds + per_row * (size.num_rows - 1)) for size in sizes])


def test_where_rows_cost_nothing_the_speed_up_is_tokens_per_pass(
    table: TableTarget, tmp_path: Path
) -> None:
    log = read_bench_log(bench(tmp_path, toy_llm(table)))
    *groups, total = replay(log, "suffix", 15, costs=flat_costs(10.0))
    prompts = total.answers  # their own passes are left out, and so are the tokens these gave
    steps, tokens = total.passes - prompts, total.tokens - prompts
    assert total.seconds == pytest.approx(10.0 * steps, rel=0.01)
    assert total.plain_seconds == pytest.approx(10.0 * tokens, rel=0.01)
    assert total.speedup == pytest.approx(tokens / steps, rel=0.01)
    assert total.speedup > 1.2
    assert total.seconds == pytest.approx(sum(group.seconds or 0.0 for group in groups))


def test_where_rows_cost_as_much_as_passes_few_guesses_are_read(
    table: TableTarget, tmp_path: Path
) -> None:
    log = read_bench_log(bench(tmp_path, toy_llm(table)))
    cheap = replay(log, "suffix", 15, costs=flat_costs(10.0))[-1]
    dear = replay(log, "suffix", 15, costs=flat_costs(10.0, per_row=10.0))[-1]
    assert dear.drafted < cheap.drafted / 2
    assert dear.speedup == pytest.approx(1.0, abs=0.1)
    assert dear.tokens == cheap.tokens


def test_without_costs_no_time_is_predicted(table: TableTarget, tmp_path: Path) -> None:
    total = replay(read_bench_log(bench(tmp_path, toy_llm(table))), "suffix", 15)[-1]
    assert (total.seconds, total.plain_seconds, total.speedup) == (None, None, None)


def test_a_priced_prediction_stands_beside_a_priced_measurement_alone(
    table: TableTarget, tmp_path: Path
) -> None:
    log = read_bench_log(bench(tmp_path, toy_llm(table)))
    assert log.is_priced is False  # a table's passes have no price
    assert replay(log, "suffix", 15, costs=flat_costs())[-1].measured_passes is None
    priced = dataclasses.replace(log, is_priced=True)
    assert replay(priced, "suffix", 15, costs=flat_costs())[-1].measured_passes is not None
    assert replay(priced, "suffix", 15)[-1].measured_passes is None


def test_the_costs_given_stay_as_they_are(table: TableTarget, tmp_path: Path) -> None:
    costs = flat_costs()
    before = costs.to_json()
    replay(read_bench_log(bench(tmp_path, toy_llm(table))), "suffix", 15, costs=costs)
    assert costs.to_json() == before


def test_auto_is_the_part_of_the_default_that_needs_ids_alone(
    table: TableTarget, tmp_path: Path
) -> None:
    log = read_bench_log(bench(tmp_path, toy_llm(table), ["suffix"]))
    (*_, auto), (*_, suffix) = replay(log, "auto", 15), replay(log, "suffix", 15)
    assert auto.passes == suffix.passes == suffix.measured_passes
    assert AUTO_ID_ONLY in AUTO_DRAFTER.split(",")


# --- the target that knows ------------------------------------------------------------------------


def test_it_says_the_next_known_token_at_every_position() -> None:
    target = KnownTarget([3, 1, 4, 1, 5], vocab_size=9, max_context=99)
    cache = target.new_cache()
    cache.add()
    logits = target.forward(Rows.chain([3, 1, 4, 1, 5], 0, target.device), cache)
    assert logits.shape == (1, 5, 9)
    assert logits.argmax(dim=-1).tolist() == [[1, 4, 1, 5, 5]]
    cache.commit(0, [0, 1])
    last = target.forward(Rows.chain([8, 8], 2, target.device), cache, logits_to_keep=1)
    assert last.argmax(dim=-1).tolist() == [[5]]


def test_it_needs_its_own_cache() -> None:
    target = KnownTarget([1, 2], vocab_size=9, max_context=99)
    with pytest.raises(CacheError, match="needs its own cache, not a PositionCache"):
        target.forward(Rows.chain([1], 0, torch.device("cpu")), PositionCache([]))
    assert isinstance(target.new_cache(), TableCache)


# --- drafters -------------------------------------------------------------------------------------


class Nosy(Drafter):
    """Wants to see logits."""

    name = "nosy"
    wants_logits = True

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        raise AssertionError("nobody asks")


def needs_a_context(argument: str, context: Any) -> Drafter:
    if context is None:
        raise DrafterError("needs a tokenizer")
    return PromptLookup()


def test_drafters_that_need_more_than_ids_are_left_out_unless_named(
    table: TableTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("none", "prompt-lookup", "suffix", "prediction")
    few = {name: registry._BUILT_IN[name] for name in names}
    monkeypatch.setattr(
        registry,
        "_BUILT_IN",
        {
            **few,
            "recycling": lambda argument, context: Nosy(),
            "nosy": lambda argument, context: Nosy(),
            "needy": needs_a_context,
        },
    )
    log = read_bench_log(bench(tmp_path, toy_llm(table), ["suffix,prompt-lookup"]))
    expected = ["suffix,prompt-lookup", "prompt-lookup", "suffix", "prediction"]
    assert id_only_specs(log, None) == expected
    assert id_only_specs(log, LetterTokenizer()) == [*expected, "needy"]
    with pytest.raises(DrafterError, match="'nosy' guesses from the target's logits, which a log"):
        replay(log, "nosy", 15)


# --- logs -----------------------------------------------------------------------------------------


def log_of(tmp_path: Path, *lines: Any, **options: Any) -> Any:
    path = tmp_path / "log.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n")
    return read_log(path, LetterTokenizer(), vocab_size=16, eos_id=EOS, **options)


def test_prompts_are_put_as_chats_or_as_they_stand(tmp_path: Path) -> None:
    line = {"prompt": "cd", "answer": "ef"}
    (chat,) = log_of(tmp_path, line).answers["log"]
    (raw,) = log_of(tmp_path, line, is_raw=True).answers["log"]
    assert chat.prompt_ids == (1, 2, 3)  # b opens a user's message
    assert raw.prompt_ids == (0, 2, 3)  # a is the tokenizer's own beginning
    assert chat.token_ids == raw.token_ids == (4, 5, EOS)


def test_a_chat_ends_with_its_answer(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "cd"},
        {"role": "assistant", "content": "e"},
        {"role": "user", "content": "f"},
        {"role": "assistant", "content": "gh"},
    ]
    (known,) = log_of(tmp_path, {"messages": messages, "category": "mine"}).answers["log"]
    assert known.prompt_ids == (1, 2, 3, 0, 4, 1, 5)
    assert known.token_ids == (6, 7, EOS)
    assert known.group == "mine"


def test_an_answer_ends_by_itself_unless_a_length_ended_it(tmp_path: Path) -> None:
    line = {"prompt": "cd", "answer": "ef"}
    stopped, cut = log_of(
        tmp_path, {**line, "finish_reason": "stop"}, {**line, "finish_reason": "length"}
    ).answers["log"]
    assert (stopped.token_ids, stopped.has_end) == ((4, 5, EOS), True)
    assert (cut.token_ids, cut.has_end, cut.max_new_tokens) == ((4, 5), False, 2)


def test_an_answer_ends_at_its_first_end_token(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"prompt": "cd", "answer": "efgf"}\n')
    log = read_log(path, LetterTokenizer(), vocab_size=16, eos_id=5)
    assert log.answers["log"][0].token_ids == (4, 5)
    assert replay(log, "suffix", 15)[-1].tokens == 2


def test_a_text_log_is_predicted_as_generate_would_have_run(
    table: TableTarget, tmp_path: Path
) -> None:
    llm = toy_llm(table)
    prompts = ["bcdbcd", "efgefg", "noon", "bb"]
    results = [
        llm.generate([{"role": "user", "content": text}], drafter="suffix", max_new_tokens=24)
        for text in prompts
    ]
    assert {result.finish_reason for result in results} == {"stop", "length"}
    log = log_of(
        tmp_path,
        *(
            {"prompt": text, "answer": result.text, "finish_reason": result.finish_reason}
            for text, result in zip(prompts, results, strict=True)
        ),
    )
    total = replay(log, "suffix", llm.settings.max_draft_nodes)[-1]
    assert total.tokens == sum(result.stats.tokens for result in results)
    assert total.passes == sum(result.stats.steps + 1 for result in results)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{nonsense", "line 2, column 2: no JSON"),
        ("[]", "line 2: no JSON object"),
        ({"prompt": "cd"}, "line 2: neither the texts"),
        ({"prompt": "", "answer": "e"}, "line 2: neither the texts"),
        ({"prompt": "c", "answer": ""}, "line 2: neither the texts"),
        ({"messages": [{"role": "user", "content": "c"}]}, "line 2: neither the texts"),
        ({"messages": [{"role": "assistant", "content": "c"}]}, "line 2: neither the texts"),
    ],
)
def test_a_line_that_is_no_answer_is_named(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=rf"log\.jsonl, {message}"):
        log_of(tmp_path, {"prompt": "cd", "answer": "ef"}, line)


def test_an_empty_or_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"log\.jsonl holds no answers"):
        log_of(tmp_path, "")
    with pytest.raises(SettingsError, match=r"gone\.jsonl cannot be read"):
        read_log(tmp_path / "gone.jsonl", LetterTokenizer(), vocab_size=16, eos_id=EOS)


def test_a_bench_log_is_known_by_its_neighbours(table: TableTarget, tmp_path: Path) -> None:
    path = bench(tmp_path, toy_llm(table), ["suffix"], QUESTIONS[:1])
    assert is_bench_log(path)
    assert not is_bench_log(tmp_path / "prompts.jsonl")
    (tmp_path / "prompts.jsonl").unlink()
    with pytest.raises(SettingsError, match="is no whole folder of outdraft bench"):
        read_bench_log(path)
    (tmp_path / "run.json").unlink()
    assert not is_bench_log(path)


def test_a_bench_log_without_answers_is_refused(table: TableTarget, tmp_path: Path) -> None:
    path = bench(tmp_path, toy_llm(table), ["suffix"], QUESTIONS[:1])
    path.write_text("")
    with pytest.raises(SettingsError, match="holds no answers; run outdraft bench to its end"):
        read_bench_log(path)
