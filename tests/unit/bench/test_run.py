from __future__ import annotations

import functools
import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence as Seq
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from outdraft.bench import records as records_module, run as run_module
from outdraft.bench.methods import Method, make_methods
from outdraft.bench.questions import Question
from outdraft.bench.records import Key, Record, Results, prompt_key
from outdraft.bench.run import (
    BenchSettings,
    Progress,
    converse,
    describe_run,
    make_batches,
    open_results,
    run_bench,
)
from outdraft.errors import SettingsError
from outdraft.generate import Outdraft
from outdraft.models.table import TableTarget
from outdraft.settings import AUTO_DRAFTER, GenerationSettings
from support.benches import QUESTIONS, echo_method, toy_llm
from support.toys import LetterTokenizer

GENERATION = GenerationSettings(max_new_tokens=4, seed=0)
A, B, C = echo_method("a"), echo_method("b"), echo_method("c")


@pytest.fixture
def llm(table: TableTarget) -> Outdraft:
    return toy_llm(table)


def go(
    llm: Outdraft,
    folder: Path,
    methods: Seq[Method] = (A, B),
    questions: Seq[Question] = QUESTIONS,
    on_progress: Callable[[Progress], None] = lambda _: None,
    **options: Any,
) -> Results:
    settings = BenchSettings(GENERATION, **options)
    folder.mkdir(exist_ok=True)
    results = Results(folder)
    run_bench(llm, methods, questions, settings, results, on_progress=on_progress)
    return results


def all_keys(methods: Seq[Method], questions: Seq[Question], repeat: int = 1) -> set[Key]:
    return {
        Key(q.question_id, method.name, i)
        for q in questions
        for method in methods
        for i in range(repeat)
    }


def check_whole(folder: Path, expected: set[Key]) -> list[Record]:
    """Every record once, and every prompt that a turn names once."""
    results = Results(folder)
    counted = Counter(record.key for record in results.records)
    assert counted == dict.fromkeys(expected, 1)
    lines = (folder / "prompts.jsonl").read_text().splitlines()
    prompts = Counter(json.loads(line)["prompt"] for line in lines)
    named = {turn.prompt for record in results.records for turn in record.turns}
    assert set(prompts) >= named
    assert set(prompts.values()) == {1}
    return results.records


# --- order ----------------------------------------------------------------------------------------


def order(records: Seq[Record]) -> list[str]:
    return [f"{record.question_id}{record.method}{record.repeat}" for record in records]


def test_methods_are_interleaved_and_rotated(llm: Outdraft, tmp_path: Path) -> None:
    results = go(llm, tmp_path, [A, B, C], QUESTIONS[:3], repeat=2)
    # one of each group in turn: w1, r1, w2
    assert order(results.records) == [
        *("w1a0", "w1b0", "w1c0", "r1b0", "r1c0", "r1a0", "w2c0", "w2a0", "w2b0"),
        *("w1b1", "w1c1", "w1a1", "r1c1", "r1a1", "r1b1", "w2a1", "w2b1", "w2c1"),
    ]


def test_batches_are_of_one_group_and_go_round_the_groups() -> None:
    batches = make_batches(QUESTIONS, 2)
    assert [[q.question_id for q in batch] for batch in batches] == [
        ["w1", "w2"],
        ["r1", "r2"],
        ["r3"],
    ]


def test_every_repeat_and_the_warm_up_start_afresh(llm: Outdraft, tmp_path: Path) -> None:
    starts: list[str] = []
    methods = [echo_method("a", starts=starts), echo_method("b", starts=starts)]
    go(llm, tmp_path, methods, repeat=2)
    assert starts == ["a", "b", "a", "b", "b", "a"]


def test_nothing_is_warmed_up_or_answered_if_all_is_there(llm: Outdraft, tmp_path: Path) -> None:
    go(llm, tmp_path)
    before = (tmp_path / "results.jsonl").read_bytes()
    starts: list[str] = []
    progress: list[Progress] = []
    methods = [echo_method("a", starts=starts), echo_method("b", starts=starts)]
    go(llm, tmp_path, methods, on_progress=progress.append)
    assert starts == []
    assert (tmp_path / "results.jsonl").read_bytes() == before
    assert progress == [Progress(10, 10)]


def test_progress_says_what_comes_next(llm: Outdraft, tmp_path: Path) -> None:
    progress: list[Progress] = []
    go(llm, tmp_path, questions=QUESTIONS[:1], on_progress=progress.append)
    group = "multi-turn conversation"
    assert progress == [
        Progress(0, 2, "a", group),
        Progress(1, 2, "b", group),
        Progress(2, 2),
    ]


# --- conversations --------------------------------------------------------------------------------


def test_each_turn_is_put_behind_the_answers_before_it(llm: Outdraft) -> None:
    history = ({"role": "assistant", "content": "mn"},)
    question = Question("x", "qa", ("bc", "de"), history)
    told = converse(A.start(), llm.tokenizer, [question], GENERATION)
    first, second = told.turns[0]
    read = [told.prompts[turn.prompt] for turn in (first, second)]
    tokenizer = LetterTokenizer()
    # `a` opens an assistant's message and `b` a user's
    assert read[0] == tokenizer("amnbbc", add_special_tokens=False)["input_ids"]
    assert first.text == "nbbc"
    assert read[1] == tokenizer("amnbbcanbbcbde", add_special_tokens=False)["input_ids"]
    assert (first.prompt_tokens, second.prompt_tokens) == (6, 14)


def test_a_model_without_template_reads_the_bare_texts() -> None:
    class Bare(LetterTokenizer):
        def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
            assert add_special_tokens
            return super().__call__(text.replace("\n", "o"))

    told = converse(
        A.start(), Bare(has_template=False), [Question("x", "qa", ("bc", "de"))], GENERATION
    )
    prompts = [told.prompts[turn.prompt] for turn in told.turns[0]]
    assert prompts[0] == LetterTokenizer()("bcoo")["input_ids"]
    assert prompts[1] == LetterTokenizer()("bcoo" + told.turns[0][0].text + "oodeoo")["input_ids"]


def test_turns_of_several_questions_go_together(llm: Outdraft) -> None:
    sizes = []

    def answer(prompts: Seq[Seq[int]], settings: GenerationSettings) -> Any:
        sizes.append(len(prompts))
        return A.start()(prompts, settings)

    questions = [Question(str(n), "qa", ("bc",) * n) for n in (1, 3, 2)]
    told = converse(answer, llm.tokenizer, questions, GENERATION)
    assert sizes == [3, 2, 1]
    assert [len(turns) for turns in told.turns] == [1, 3, 2]


def test_answers_given_together_share_their_wall_time(
    llm: Outdraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([10.0, 16.0, 20.0, 21.0])
    monkeypatch.setattr(run_module.time, "perf_counter", lambda: next(clock))
    questions = [Question(str(n), "qa", ("bc",) * n) for n in (1, 2, 1)]
    told = converse(A.start(), llm.tokenizer, questions, GENERATION)
    assert [[turn.seconds for turn in turns] for turns in told.turns] == [[2.0], [2.0, 1.0], [2.0]]


def test_records_say_how_many_were_answered_together(llm: Outdraft, tmp_path: Path) -> None:
    results = go(llm, tmp_path, [A], batch=2)
    assert {r.question_id: r.batch for r in results.records} == {
        "w1": 2,
        "w2": 2,
        "r1": 2,
        "r2": 2,
        "r3": 1,
    }


# --- failures -------------------------------------------------------------------------------------


def test_a_failure_is_recorded_and_the_run_goes_on(llm: Outdraft, tmp_path: Path) -> None:
    results = go(llm, tmp_path, [echo_method("a", fails_on="efg"), B])
    check_whole(tmp_path, all_keys([A, B], QUESTIONS))
    errors = {r.key: r.error for r in results.records if not r.is_ok}
    assert errors == {Key("r1", "a", 0): "ValueError: cannot answer befgefg"}


def test_a_conversation_that_fails_keeps_the_turns_before(llm: Outdraft) -> None:
    question = Question("x", "qa", ("bc", "mno"))
    told = converse(echo_method(fails_on="mno").start(), llm.tokenizer, [question], GENERATION)
    assert [turn.text for turn in told.turns[0]] == ["bbc"]
    assert told.error is not None
    assert told.error.startswith("ValueError: cannot answer")


def test_a_failed_answer_is_not_tried_again(llm: Outdraft, tmp_path: Path) -> None:
    go(llm, tmp_path, [echo_method("a", fails_on="efg"), B])
    before = (tmp_path / "results.jsonl").read_bytes()
    go(llm, tmp_path)
    assert (tmp_path / "results.jsonl").read_bytes() == before


# --- stopping and going on ------------------------------------------------------------------------


class Interrupter:
    """Raises KeyboardInterrupt before the n-th line that bench code runs, as Ctrl-C may."""

    FILES = (run_module.__file__, records_module.__file__)

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in self.FILES:
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt
        return self


def interrupted_at(line: int, work: Callable[[], object]) -> bool:
    """Whether the work ran as far as this line, where it was interrupted."""
    before = sys.gettrace()
    sys.settrace(Interrupter(line))
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


# A file may stay open if Ctrl-C comes between the body and the end of a `with`; a process that ends
# does not mind.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("batch", "questions", "every"),
    [(1, [QUESTIONS[0], QUESTIONS[2]], 1), (2, QUESTIONS[2:5], 4)],
)
def test_ctrl_c_at_any_line_loses_and_repeats_nothing(
    llm: Outdraft, tmp_path: Path, batch: int, questions: list[Question], every: int
) -> None:
    for line in itertools.count(1, every):
        folder = tmp_path / f"at-{line}"
        work = functools.partial(go, llm, folder, questions=questions, batch=batch)
        if not interrupted_at(line, work):
            break
        answered = {record.key: record for record in Results(folder).records}
        work()
        again = check_whole(folder, all_keys([A, B], questions))
        if batch == 1:
            assert {record.key: record for record in again if record.key in answered} == answered
    assert line > 200  # the run did pass through the code that was to be interrupted


@pytest.mark.parametrize("batch", [1, 2])
def test_a_file_torn_at_any_byte_is_made_whole(llm: Outdraft, tmp_path: Path, batch: int) -> None:
    go(llm, tmp_path, questions=QUESTIONS[:4], batch=batch)
    path = tmp_path / "results.jsonl"
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 89), len(whole) - 1]:
        path.write_bytes(whole[:size])
        go(llm, tmp_path, questions=QUESTIONS[:4], batch=batch)
        check_whole(tmp_path, all_keys([A, B], QUESTIONS[:4]))


def test_a_batch_is_answered_whole_or_not_at_all(llm: Outdraft, tmp_path: Path) -> None:
    go(llm, tmp_path, [A], QUESTIONS[:2], batch=2)
    path = tmp_path / "results.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    sizes = []

    def start() -> Any:
        def answer(prompts: Seq[Seq[int]], settings: GenerationSettings) -> Any:
            sizes.append(len(prompts))
            return A.start()(prompts, settings)

        return answer

    go(llm, tmp_path, [Method("a", "a", start)], QUESTIONS[:2], batch=2)
    assert sizes[-2:] == [2, 1]  # both first turns together, then w1's second one
    check_whole(tmp_path, all_keys([A], QUESTIONS[:2]))


def test_sessions_are_numbered(llm: Outdraft, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(llm, tmp_path, on_progress=stop)
    results = go(llm, tmp_path)
    assert [record.session for record in results.records] == [0] * 3 + [1] * 7


# --- what was run ---------------------------------------------------------------------------------


def describe(llm: Outdraft, **changes: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        "methods": make_methods(llm, drafters=["auto"], baselines=["plain"]),
        "questions": QUESTIONS,
        "settings": BenchSettings(GENERATION),
        "source": "here",
        **changes,
    }
    methods, questions = options.pop("methods"), options.pop("questions")
    return describe_run(llm, methods, questions, options.pop("settings"), **options)


def test_a_description_has_what_a_reader_must_know(llm: Outdraft) -> None:
    run = describe(llm, command=["outdraft", "bench"])
    assert json.loads(json.dumps(run)) == run
    assert run["model"] == {
        "name": "table",
        "dtype": "float64",
        "packing": None,
        "vocab_size": 16,
        "max_context": 4096,
    }
    assert run["settings"]["max_new_tokens"] == 4
    assert run["settings"]["engine"]["max_draft_nodes"] == llm.settings.max_draft_nodes
    assert run["methods"] == [
        {"name": "plain", "drafter": "none"},
        {"name": "auto", "drafter": AUTO_DRAFTER},
    ]
    assert run["questions"]["groups"] == {
        "multi-turn conversation": 2,
        "retrieval-augmented generation": 3,
    }
    assert {"cpu", "cores", "threads", "device"} <= set(run["machine"])
    assert {"outdraft", "torch", "transformers"} <= set(run["versions"])
    assert run["command"] == ["outdraft", "bench"]


def test_results_go_on_with_the_same_settings_alone(llm: Outdraft, tmp_path: Path) -> None:
    open_results(tmp_path, describe(llm), QUESTIONS)
    later = describe(llm, source="elsewhere", command=["another"])
    open_results(tmp_path, {**later, "started": "tomorrow"}, QUESTIONS)
    written = json.loads((tmp_path / "run.json").read_text())
    assert written["questions"]["source"] == "here"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"questions": QUESTIONS[1:]}, "questions.sha256 was '.*' and is '.*'"),
        (
            {"settings": BenchSettings(GENERATION.replace(temperature=0.5), repeat=2)},
            r"settings.temperature was 0.0 and is 0.5; settings.repeat was 1 and is 2; go on",
        ),
        ({"methods": [A]}, "methods was .*'plain'.* and is .*'a'"),
    ],
)
def test_results_of_another_run_are_refused_with_all_differences(
    llm: Outdraft, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    open_results(tmp_path, describe(llm), QUESTIONS)
    with pytest.raises(SettingsError, match=f"results of another run: .*{message}"):
        open_results(tmp_path, describe(llm, **changes), changes.get("questions", QUESTIONS))


def test_results_without_a_description_are_refused(llm: Outdraft, tmp_path: Path) -> None:
    go(llm, tmp_path)
    with pytest.raises(SettingsError, match=r"has results but no run\.json"):
        open_results(tmp_path, describe(llm), QUESTIONS)


def test_the_questions_are_kept_with_their_groups(llm: Outdraft, tmp_path: Path) -> None:
    open_results(tmp_path / "new" / "folder", describe(llm), QUESTIONS)
    lines = (tmp_path / "new" / "folder" / "questions.jsonl").read_text().splitlines()
    assert [json.loads(line)["question_id"] for line in lines] == ["w1", "w2", "r1", "r2", "r3"]
    assert json.loads(lines[0])["group"] == "multi-turn conversation"


@pytest.mark.parametrize("name", ["batch", "repeat"])
def test_counts_start_at_1(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}=0: takes at least 1"):
        BenchSettings(GENERATION, **{name: 0})


def test_a_run_has_a_seed() -> None:
    with pytest.raises(SettingsError, match="seed=None: give a seed"):
        BenchSettings(GenerationSettings())


# --- for real -------------------------------------------------------------------------------------


def test_drafters_write_what_plain_decoding_writes(llm: Outdraft, tmp_path: Path) -> None:
    methods = make_methods(llm, drafters=["suffix", "prompt-lookup"], baselines=["plain"])
    for temperature in (0.0, 1.0):
        generation = GENERATION.replace(max_new_tokens=30, temperature=temperature)
        folder = tmp_path / str(temperature)
        folder.mkdir()
        results = Results(folder)
        settings = BenchSettings(generation, batch=2)
        run_bench(llm, methods, QUESTIONS, settings, results, on_progress=lambda _: None)
        texts = {
            record.key: [turn.token_ids for turn in record.turns] for record in results.records
        }
        assert len(texts) == 15
        for key, text in texts.items():
            assert text == texts[Key(key.question_id, "plain", 0)]
    assert any(turn.accepted for record in results.records for turn in record.turns)
    for record in results.records:
        for turn in record.turns:
            assert turn.prompt in {prompt_key(ids) for ids in _prompts(folder)}


def _prompts(folder: Path) -> list[list[int]]:
    lines = (folder / "prompts.jsonl").read_text().splitlines()
    return [json.loads(line)["token_ids"] for line in lines]
