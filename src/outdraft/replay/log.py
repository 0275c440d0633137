"""Answers that are already known: of a bench run, or of anybody's log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdraft.errors import SettingsError
from outdraft.text.prompts import Tokenizer, to_prompt_ids

NO_LIMIT = 1 << 30
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
    max_new_tokens: int = NO_LIMIT
    max_context: int = NO_LIMIT
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
        is_priced: whether the run read as many guesses as paid; `None` if the log does not say.
        model, dtype: of the run, by which costs are found; `None` if the log does not say.
    """

    answers: Mapping[str, Seq[KnownAnswer]]
    drafters: tuple[str, ...]
    vocab_size: int
    max_draft_nodes: int | None = None
    is_priced: bool | None = None
    model: str | None = None
    dtype: str | None = None

    def answers_for(self, spec: str) -> Seq[KnownAnswer]:
        """The answers measured with this drafter; else plain decoding's, or the first there are."""
        for method in (spec, "plain"):
            if method in self.answers:
                return self.answers[method]
        return next(iter(self.answers.values()))


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
        engine, model = run["settings"]["engine"], run["model"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{path.parent} is no whole folder of outdraft bench ({error!r}); restore it, or "
            "replay another log"
        ) from error
    if not answers:
        raise SettingsError(f"{path} holds no answers; run outdraft bench to its end first")
    return Log(
        answers,
        drafters,
        model["vocab_size"],
        engine["max_draft_nodes"],
        engine["adaptive"],
        model["name"],
        model["dtype"],
    )


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
                max_new_tokens=NO_LIMIT if has_end else len(token_ids),
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
