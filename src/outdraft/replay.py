"""How many tokens per step a drafter would have brought on answers that are already known.

The target is not run. A target that knows the answer stands in for it, under the very engine that
generates: drafts, plans, verdicts and commits are those of a real run, and only the pass itself
costs nothing. What a drafter guesses from token ids alone is therefore what it would have guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outdraft.draft import DrafterContext, drafter_names, make_drafter
from outdraft.engine import Engine
from outdraft.errors import CacheError, DrafterError, SettingsError
from outdraft.interfaces import Drafter, KVCache, TargetModel
from outdraft.models.table import TableCache
from outdraft.sequence import Sequence
from outdraft.settings import AUTO_ID_ONLY, EngineSettings, GenerationSettings
from outdraft.text.prompts import Tokenizer, to_prompt_ids
from outdraft.types import Rows

_NO_LIMIT = 1 << 30
_BASELINES = ("plain", "hf", "hf-lookup", "hf-assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAnswer:
    """A prompt and the answer it was given.

    Args:
        token_ids: of the answer, the one that ended it included.
        has_end: whether the last token ended the text; else a length did.
        max_new_tokens, max_context: the limits of the run, which bound the last drafts.
        measured_passes: target passes the run took, the prompt's own included.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    group: str
    has_end: bool
    max_new_tokens: int = _NO_LIMIT
    max_context: int = _NO_LIMIT
    measured_passes: int | None = None


@dataclass(frozen=True, slots=True)
class Log:
    """Known answers, and what a replay of them needs.

    Args:
        answers: of each method, in the order in which they were written; a log that is no bench
            run has one method.
        drafters: specs of the methods that were measured with a drafter.
        vocab_size: tokens a drafter may guess.
        max_draft_nodes: of the run; `None` if the log does not say.
    """

    answers: Mapping[str, Seq[KnownAnswer]]
    drafters: tuple[str, ...]
    vocab_size: int
    max_draft_nodes: int | None = None

    def answers_for(self, spec: str) -> Seq[KnownAnswer]:
        """The answers measured with this drafter; else plain decoding's, or the first there are."""
        for method in (spec, "plain"):
            if method in self.answers:
                return self.answers[method]
        return next(iter(self.answers.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a drafter would have done on some answers.

    Args:
        group: `None` where all groups are taken together.
        passes: target passes, the prompts' own included.
        drafted: guesses that these passes read.
        measured_passes: of the run that the log keeps; `None` if it was not run with this drafter
            and this many guesses.
    """

    drafter: str
    group: str | None
    answers: int
    tokens: int
    passes: int
    drafted: int
    measured_passes: int | None

    @property
    def tokens_per_step(self) -> float:
        """Tokens per target pass, as the measured figure of that name."""
        return self.tokens / self.passes

    @property
    def measured_tokens_per_step(self) -> float | None:
        return None if self.measured_passes is None else self.tokens / self.measured_passes


class KnownTarget(TargetModel):
    """Says one known text, token by token, whatever it is given to read.

    Behind a right guess that is what the real target said. Behind a wrong one it is not, and
    nobody asks: verification ends there.
    """

    def __init__(self, token_ids: Seq[int], *, vocab_size: int, max_context: int) -> None:
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.device = torch.device("cpu")
        self._token_ids = torch.tensor(token_ids)

    def new_cache(self) -> TableCache:
        return TableCache()

    def forward(
        self, rows: Rows, cache: KVCache, *, first_seq: int = 0, logits_to_keep: int = 0
    ) -> Tensor:
        if not isinstance(cache, TableCache):
            raise CacheError(f"a known text needs its own cache, not a {type(cache).__name__}")
        for i in range(rows.num_seqs):
            read = zip(rows.token_ids[i].tolist(), rows.position_ids[i].tolist(), strict=True)
            cache.take(first_seq + i, list(read))
        positions = rows.position_ids[:, -logits_to_keep:] + 1
        said = self._token_ids[positions.clamp(max=len(self._token_ids) - 1)]
        logits = torch.zeros(*said.shape, self.vocab_size)
        return logits.scatter_(2, said[..., None], 1.0)


# --- replaying ------------------------------------------------------------------------------------


def replay(
    log: Log, spec: str, max_draft_nodes: int, tokenizer: Tokenizer | None = None
) -> list[Prediction]:
    """What a fresh drafter does on the answers one after the other: per group, then altogether.

    Raises:
        DrafterError: the drafter is unknown, or guesses from more than token ids.
    """
    drafter = id_only_drafter(spec, log, tokenizer)
    answers = log.answers_for(spec)
    is_measured = spec in log.answers and max_draft_nodes == log.max_draft_nodes
    single = []
    for request_id, answer in enumerate(answers):
        sequence = _run(answer, drafter, request_id, log.vocab_size, max_draft_nodes)
        single.append(
            Prediction(
                drafter=spec,
                group=answer.group,
                answers=1,
                tokens=sequence.stats.tokens,
                passes=sequence.stats.steps + 1,
                drafted=sequence.stats.drafted,
                measured_passes=answer.measured_passes if is_measured else None,
            )
        )
    groups = dict.fromkeys(answer.group for answer in answers)
    return [_sum(spec, group, single) for group in (*groups, None)]


def id_only_drafter(spec: str, log: Log, tokenizer: Tokenizer | None) -> Drafter:
    """A fresh drafter of that name, which needs nothing but token ids.

    Raises:
        DrafterError: it is unknown, or needs more.
    """
    context = None
    if tokenizer is not None:
        stand_in = KnownTarget([0], vocab_size=log.vocab_size, max_context=_NO_LIMIT)
        context = DrafterContext(stand_in, tokenizer)
    drafter = make_drafter(AUTO_ID_ONLY if spec == "auto" else spec, context)
    if drafter.wants_logits:
        raise DrafterError(
            f"drafter {spec!r} guesses from the target's logits, which a log does not have; "
            "measure it with outdraft bench"
        )
    return drafter


def id_only_specs(log: Log, tokenizer: Tokenizer | None) -> list[str]:
    """All drafters that can be replayed as they are: those of the log, then those known by name."""
    specs = []
    for spec in dict.fromkeys([*log.drafters, *drafter_names()]):
        try:
            drafter = id_only_drafter(spec, log, tokenizer)
        except DrafterError:
            continue  # it needs an argument, a model or logits; named by the user, it is an error
        if drafter.name != "none":
            specs.append(spec)
    return specs


def _run(
    answer: KnownAnswer, drafter: Drafter, request_id: int, vocab_size: int, max_draft_nodes: int
) -> Sequence:
    text = [*answer.prompt_ids, *answer.token_ids]
    target = KnownTarget(text, vocab_size=vocab_size, max_context=answer.max_context)
    engine = Engine(target, drafter, EngineSettings(max_draft_nodes=max_draft_nodes))
    # The token that ended the answer stands nowhere else in it, so it alone is enough to end it.
    sequence = Sequence(
        request_id,
        answer.prompt_ids,
        GenerationSettings(max_new_tokens=answer.max_new_tokens),
        seed=0,
        eos_ids=frozenset(answer.token_ids[-1:] if answer.has_end else ()),
        max_context=answer.max_context,
        decode=lambda _: "",
    )
    engine.add(sequence)
    while not engine.is_idle:
        engine.step()
    assert tuple(sequence.new_ids) == answer.token_ids
    return sequence


def _sum(spec: str, group: str | None, single: Seq[Prediction]) -> Prediction:
    part = [one for one in single if group in {None, one.group}]
    measured = [one.measured_passes for one in part if one.measured_passes is not None]
    return Prediction(
        drafter=spec,
        group=group,
        answers=len(part),
        tokens=sum(one.tokens for one in part),
        passes=sum(one.passes for one in part),
        drafted=sum(one.drafted for one in part),
        measured_passes=sum(measured) if len(measured) == len(part) else None,
    )


# --- logs -----------------------------------------------------------------------------------------


def is_bench_log(path: Path) -> bool:
    """Whether this is the results.jsonl of a bench run, which has its token ids beside it."""
    return path.name == "results.jsonl" and path.with_name("run.json").is_file()


def read_bench_log(path: Path) -> Log:
    """The answers of a bench run, those of its first repeat.

    Raises:
        SettingsError: the files beside it are missing or damaged.
    """
    try:
        run = json.loads(path.with_name("run.json").read_text(encoding="utf-8"))
        lines = path.with_name("prompts.jsonl").read_text(encoding="utf-8").splitlines()
        prompts = {prompt["prompt"]: prompt["token_ids"] for prompt in map(json.loads, lines)}
        answers: dict[str, list[KnownAnswer]] = {}
        for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if record["repeat"] == 0 and record["error"] is None:
                told = answers.setdefault(record["method"], [])
                told += [_known(turn, record["group"], prompts, run) for turn in record["turns"]]
        methods = [method["name"] for method in run["methods"]]
        drafters = tuple(name for name in methods if name not in _BASELINES)
        nodes = run["settings"]["engine"]["max_draft_nodes"]
        vocab_size = run["model"]["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{path.parent} is no whole folder of outdraft bench ({error!r}); restore it, or "
            "replay another log"
        ) from error
    if not answers:
        raise SettingsError(f"{path} holds no answers; run outdraft bench to its end first")
    return Log(answers, drafters, vocab_size, nodes)


def _known(
    turn: Mapping[str, Any],
    group: str,
    prompts: Mapping[str, Seq[int]],
    run: Mapping[str, Any],
) -> KnownAnswer:
    return KnownAnswer(
        prompt_ids=tuple(prompts[turn["prompt"]]),
        token_ids=tuple(turn["token_ids"]),
        group=group,
        has_end=turn["finish_reason"] == "stop",
        max_new_tokens=run["settings"]["max_new_tokens"],
        max_context=run["model"]["max_context"],
        measured_passes=turn["passes"],
    )


def read_log(
    path: Path, tokenizer: Tokenizer, *, vocab_size: int, eos_id: int | None, is_raw: bool = False
) -> Log:
    """Prompts and answers as text: objects with `prompt` and `answer`, or with `messages`.

    An answer is taken to have ended by itself, unless its `finish_reason` is `length`.

    Args:
        is_raw: prompts go to the model as they stand and not as a chat's first message.

    Raises:
        SettingsError: the file cannot be read or a line is no answer; the line is named.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}; check the path") from error
    answers = []
    for where, fields in _objects(text, str(path)):
        prompt, answer = _prompt_and_answer(fields, where)
        is_chat = not isinstance(prompt, str)
        if not is_chat and not is_raw and tokenizer.chat_template is not None:
            prompt = [{"role": "user", "content": prompt}]
        token_ids = list(tokenizer(answer, add_special_tokens=False)["input_ids"])
        has_end = eos_id is not None and fields.get("finish_reason", "stop") != "length"
        answers.append(
            KnownAnswer(
                prompt_ids=tuple(to_prompt_ids(tokenizer, prompt)),
                token_ids=_ended(token_ids, eos_id) if has_end else tuple(token_ids),
                group=str(fields.get("group", fields.get("category", "answers"))),
                has_end=has_end,
                max_new_tokens=_NO_LIMIT if has_end else len(token_ids),
            )
        )
    if not answers:
        raise SettingsError(f"{path} holds no answers; write one a line")
    return Log({"log": answers}, (), vocab_size)


def _ended(token_ids: Seq[int], eos_id: int | None) -> tuple[int, ...]:
    """Up to the first token that ends a text, which is added where there is none."""
    assert eos_id is not None
    ids = [*token_ids, eos_id]
    return tuple(ids[: ids.index(eos_id) + 1])


def _objects(text: str, source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{source}, line {number}"
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise SettingsError(
                f"{where}, column {error.colno}: no JSON ({error.msg}); write one object a line"
            ) from error
        if not isinstance(value, dict):
            raise SettingsError(f"{where}: no JSON object; write one a line")
        yield where, value


def _prompt_and_answer(fields: Mapping[str, Any], where: str) -> tuple[Any, str]:
    messages = fields.get("messages")
    if isinstance(messages, list) and len(messages) > 1 and _is_answer(messages[-1]):
        return messages[:-1], messages[-1]["content"]
    prompt, answer = fields.get("prompt"), fields.get("answer")
    if isinstance(prompt, str) and prompt and isinstance(answer, str) and answer:
        return prompt, answer
    raise SettingsError(
        f"{where}: neither the texts 'prompt' and 'answer' nor 'messages' that end with the "
        "assistant's are there; write one of them"
    )


def _is_answer(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return False
    return isinstance(message.get("content"), str) and bool(message["content"])
