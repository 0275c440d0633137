"""The run itself: every method answers every question, one right after the other.

Methods are interleaved question by question (A B C, B C A, C A B, ...), so that whatever slows the
machine down for a while slows all of them down. Repeats are whole runs, one after the other.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence as Seq
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from outdraft.bench.machine import describe_machine, describe_versions, peak_rss_bytes
from outdraft.bench.methods import AnswerPrompts, Method
from outdraft.bench.questions import Question, by_group, fingerprint
from outdraft.bench.records import Key, Record, Results, Turn, prompt_key, replace_file, to_lines
from outdraft.bench.trace import BenchTrace
from outdraft.errors import SettingsError
from outdraft.generate import Outdraft
from outdraft.models.target import CausalLM
from outdraft.settings import GenerationSettings
from outdraft.text.prompts import Tokenizer, to_prompt_ids

SCHEMA = 1
_WARM_UP_TOKENS = 16
# What may differ between the two halves of a resumed run.
_NOT_COMPARED = {"schema", "started", "command", "questions.source"}


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """How questions are put.

    Args:
        generation: of every request. The seed is fixed, so that repeats differ in time alone.
        batch: questions answered together; a batch has questions of one group.
        repeat: runs over all questions.

    Raises:
        SettingsError: a count is below 1, or there is no seed.
    """

    generation: GenerationSettings = field(default_factory=lambda: GenerationSettings(seed=0))
    batch: int = 1
    repeat: int = 1

    def __post_init__(self) -> None:
        for name in ("batch", "repeat"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name}={getattr(self, name)}: takes at least 1")
        if self.generation.seed is None:
            raise SettingsError("seed=None: give a seed, so that all methods draw alike")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come: `done` of `total` batches, and what comes next."""

    done: int
    total: int
    method: str = ""
    group: str = ""


def run_bench(
    llm: Outdraft,
    methods: Seq[Method],
    questions: Seq[Question],
    settings: BenchSettings,
    results: Results,
    *,
    on_progress: Callable[[Progress], None],
    trace: BenchTrace | None = None,
) -> None:
    """Answers what is not answered yet, and appends each answer to the results as it comes.

    Stopped at any point, by Ctrl-C or worse, it can be called again with the results of the folder:
    nothing is lost and nothing stands there twice. A question on which a method fails is recorded
    with the error, and the run goes on.

    Args:
        trace: is told what is answered; the methods have to have it as their observer.
    """
    batches = make_batches(questions, settings.batch)
    runs = list(_schedule(batches, methods, settings.repeat))
    results.keep_only({key for run in runs for key in _keys_of_whole(run, results)})
    left = [run for run in runs if not _keys_of_whole(run, results)]
    session = results.next_session
    if left:
        _warm_up(llm, methods, batches[0], settings)
    answers: dict[tuple[str, int], AnswerPrompts] = {}
    for done, run in enumerate(left, start=len(runs) - len(left)):
        on_progress(Progress(done, len(runs), run.method.name, run.batch[0].group))
        place = (run.method.name, run.repeat)
        if place not in answers:
            answers[place] = run.method.start()
        if trace is not None:
            trace.begin(run.batch, *place)
        told = converse(answers[place], llm.tokenizer, run.batch, settings.generation)
        records = [_record(run, index, told, session) for index in range(len(run.batch))]
        results.append(records, told.prompts)
        if trace is not None:
            trace.end()
    on_progress(Progress(len(runs), len(runs)))


def make_batches(questions: Seq[Question], size: int) -> list[tuple[Question, ...]]:
    """Batches of one group each, one group after the other and round again.

    So a run that is stopped early has seen something of every group.
    """
    queues = [
        [tuple(group[start : start + size]) for start in range(0, len(group), size)]
        for group in by_group(questions).values()
    ]
    rounds = itertools.zip_longest(*queues)
    return [batch for one_round in rounds for batch in one_round if batch is not None]


# --- the order of things --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    """A batch that one method answers, in one of the repeats."""

    batch: tuple[Question, ...]
    method: Method
    repeat: int

    @property
    def keys(self) -> set[Key]:
        return {Key(q.question_id, self.method.name, self.repeat) for q in self.batch}


def _schedule(
    batches: Seq[tuple[Question, ...]], methods: Seq[Method], repeats: int
) -> Iterator[_Run]:
    for repeat in range(repeats):
        for number, batch in enumerate(batches):
            first = (number + repeat) % len(methods)
            for method in (*methods[first:], *methods[:first]):
                yield _Run(batch, method, repeat)


def _keys_of_whole(run: _Run, results: Results) -> set[Key]:
    """The keys of a batch that is recorded with all its questions; none if one is missing."""
    return run.keys if all(key in results for key in run.keys) else set()


def _warm_up(
    llm: Outdraft, methods: Seq[Method], batch: Seq[Question], settings: BenchSettings
) -> None:
    """Short answers that nobody counts; what fails here fails again where it is recorded."""
    length = min(_WARM_UP_TOKENS, settings.generation.max_new_tokens)
    generation = settings.generation.replace(max_new_tokens=length)
    for method in methods:
        converse(method.start(), llm.tokenizer, batch, generation)


# --- one conversation -----------------------------------------------------------------------------


@dataclass(slots=True)
class Told:
    """What came of some conversations held at once.

    Attributes:
        turns: per question, those that were answered.
        prompts: token ids of all prompts, by the key that turns name.
        error: what ended them early.
    """

    turns: list[list[Turn]]
    prompts: dict[str, Seq[int]] = field(default_factory=dict)
    error: str | None = None


def converse(
    answer: AnswerPrompts,
    tokenizer: Tokenizer,
    questions: Seq[Question],
    settings: GenerationSettings,
) -> Told:
    """Puts all turns of some questions, the first ones together, then the second ones, and so on.

    Each conversation goes on from the method's own answers.
    """
    told = Told([[] for _ in questions])
    chats: list[list[Mapping[str, str]]] = [list(question.history) for question in questions]
    try:
        for turn in range(max(len(question.turns) for question in questions)):
            asked = [i for i, question in enumerate(questions) if turn < len(question.turns)]
            for i in asked:
                chats[i].append({"role": "user", "content": questions[i].turns[turn]})
            prompts = [_prompt_ids(tokenizer, chats[i]) for i in asked]
            for i, done in zip(asked, _timed(answer, prompts, settings, told), strict=True):
                told.turns[i].append(done)
                chats[i].append({"role": "assistant", "content": done.text})
    except Exception as error:  # noqa: BLE001  # it is what the results say of this question
        told.error = f"{type(error).__name__}: {error}"
    return told


def _timed(
    answer: AnswerPrompts, prompts: Seq[list[int]], settings: GenerationSettings, told: Told
) -> list[Turn]:
    started_at = time.perf_counter()
    answers = answer(prompts, settings)
    seconds = (time.perf_counter() - started_at) / len(prompts)
    told.prompts.update({prompt_key(ids): ids for ids in prompts})
    return [
        Turn(
            **{each.name: getattr(given, each.name) for each in fields(given)},
            prompt=prompt_key(ids),
            prompt_tokens=len(ids),
            seconds=seconds,
        )
        for given, ids in zip(answers, prompts, strict=True)
    ]


def _prompt_ids(tokenizer: Tokenizer, chat: Seq[Mapping[str, str]]) -> list[int]:
    """Through the chat template; a model without one reads the bare texts, a blank line apart."""
    if tokenizer.chat_template is not None:
        return to_prompt_ids(tokenizer, chat)
    return to_prompt_ids(tokenizer, "".join(f"{message['content']}\n\n" for message in chat))


def _record(run: _Run, index: int, told: Told, session: int) -> Record:
    question = run.batch[index]
    return Record(
        question_id=question.question_id,
        group=question.group,
        method=run.method.name,
        repeat=run.repeat,
        session=session,
        batch=len(run.batch),
        turns=tuple(told.turns[index]),
        error=told.error,
        peak_rss_bytes=peak_rss_bytes(),
    )


# --- what was run ---------------------------------------------------------------------------------


def describe_run(
    llm: Outdraft,
    methods: Seq[Method],
    questions: Seq[Question],
    settings: BenchSettings,
    *,
    source: str,
    command: Seq[str] = (),
) -> dict[str, Any]:
    """All that a reader of the results has to know, and that must not change on the way."""
    generation = settings.generation
    groups = {group: len(members) for group, members in by_group(questions).items()}
    return {
        "schema": SCHEMA,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": list(command),
        "machine": describe_machine(llm.target.device),
        "versions": describe_versions(),
        "model": {
            "name": llm.name,
            "dtype": _dtype(llm),
            "packing": _packing(llm),
            "vocab_size": llm.target.vocab_size,
            "max_context": llm.target.max_context,
        },
        "settings": {
            "max_new_tokens": generation.max_new_tokens,
            "temperature": generation.temperature,
            "seed": generation.seed,
            "batch": settings.batch,
            "repeat": settings.repeat,
            "warm_up_tokens": _WARM_UP_TOKENS,
            "engine": {**llm.settings.model_dump(), "adaptive": llm.prices_guesses},
        },
        "methods": [{"name": method.name, "drafter": method.drafter} for method in methods],
        "questions": {"source": source, "sha256": fingerprint(questions), "groups": groups},
    }


def _dtype(llm: Outdraft) -> str:
    """The precision the target computes in; fake targets use float64."""
    dtype = llm.target.model.dtype if isinstance(llm.target, CausalLM) else "float64"
    return str(dtype).removeprefix("torch.")


def _packing(llm: Outdraft) -> str | None:
    """How the target was prepared for this machine; passes take another time without it."""
    packing = llm.target.packing if isinstance(llm.target, CausalLM) else None
    return None if packing is None else str(packing)


def open_results(folder: Path, description: Mapping[str, Any], questions: Seq[Question]) -> Results:
    """The folder's results, to be gone on with; a new folder is made.

    Raises:
        SettingsError: the folder holds results of another run; all differences are named.
    """
    path = folder / "run.json"
    folder.mkdir(parents=True, exist_ok=True)
    if path.exists():
        _refuse_other_run(path, description)
    elif (folder / "results.jsonl").exists():
        raise SettingsError(f"{folder} has results but no run.json; give -o another folder")
    else:
        replace_file(folder / "questions.jsonl", to_lines(q.to_json() for q in questions))
        replace_file(path, json.dumps(description, indent=2) + "\n")
    return Results(folder)


def _refuse_other_run(path: Path, description: Mapping[str, Any]) -> None:
    there = _flat(json.loads(path.read_text(encoding="utf-8")))
    here = _flat(json.loads(json.dumps(description)))
    differences = [
        f"{name} was {there.get(name)!r} and is {here.get(name)!r}"
        for name in dict.fromkeys([*there, *here])
        if name not in _NOT_COMPARED and there.get(name) != here.get(name)
    ]
    if differences:
        raise SettingsError(
            f"{path.parent} holds results of another run: {'; '.join(differences)}; go on with "
            "the same settings, or give -o another folder"
        )


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested names joined by dots."""
    flat: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, Mapping):
            flat |= _flat(item, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = item
    return flat
