"""What is measured: a name, and a function that answers prompts and says what that took.

A drafter may learn from one request for the next, so every repeat, and the warm-up before them,
starts with a drafter that has seen nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass

from outdraft.bench.records import Answer, DrafterCounts
from outdraft.draft import DrafterContext, make_drafter
from outdraft.errors import SettingsError
from outdraft.generate import Outdraft
from outdraft.interfaces import Drafter, TargetModel
from outdraft.results import Result
from outdraft.settings import AUTO_DRAFTER, GenerationSettings
from outdraft.text.detokenizer import text_decoder
from outdraft.trace import OnStep

PLAIN, HF = "plain", "hf"
BASELINES = (PLAIN, HF, "hf-lookup", "hf-assistant")

AnswerPrompts = Callable[[Seq[Seq[int]], GenerationSettings], list[Answer]]
"""From the token ids of some prompts, answered as one batch, to their answers."""


@dataclass(frozen=True, slots=True)
class Method:
    """One way to answer.

    Args:
        name: as the figures show it.
        drafter: name of the method that guesses.
        start: makes a fresh function that answers, without memory of earlier prompts.
    """

    name: str
    drafter: str
    start: Callable[[], AnswerPrompts]


def make_methods(
    llm: Outdraft,
    *,
    drafters: Seq[str] = (),
    baselines: Seq[str] = (),
    assistant: str | None = None,
    stock: TargetModel | None = None,
    on_step: OnStep | None = None,
) -> list[Method]:
    """The methods of these names, baselines first.

    Args:
        drafters: specs as `make_drafter` takes them, or `auto`.
        assistant: the model that `hf-assistant` guesses with.
        stock: the model for the baselines of transformers, where it is not that of `llm`.
        on_step: is told of every step of this engine; transformers has none to tell of.

    Raises:
        SettingsError: a name is unknown or stands twice, or a baseline cannot be had here.
        DrafterError: a drafter is unknown or does not fit.
    """
    names = [*baselines, *drafters]
    if not names:
        raise SettingsError("there is nothing to measure; name a drafter or a baseline")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise SettingsError(f"{twice[0]!r} is named twice; name each method once")
    methods = []
    for name in baselines:
        if name == PLAIN:
            methods.append(_drafting(llm, name, "none", on_step))
        elif name in BASELINES:
            methods.append(_of_transformers(llm, name, assistant, stock))
        else:
            raise SettingsError(
                f"baseline={name!r}: there is no such baseline, only {', '.join(BASELINES)}"
            )
    return methods + [_drafting(llm, spec, spec, on_step) for spec in drafters]


def _drafting(llm: Outdraft, name: str, spec: str, on_step: OnStep | None) -> Method:
    def make() -> Drafter:
        context = DrafterContext(llm.target, llm.tokenizer)
        return make_drafter(AUTO_DRAFTER if spec == "auto" else spec, context)

    spare = [make()]  # one is made at once, so that a wrong spec is found before anything runs

    def start() -> AnswerPrompts:
        drafter = spare.pop() if spare else make()

        def answer(prompts: Seq[Seq[int]], settings: GenerationSettings) -> list[Answer]:
            asked = [list(prompt) for prompt in prompts]
            given = settings.model_dump()
            results = llm.generate(asked, drafter=drafter, on_step=on_step, **given)
            return [_answer(result, is_alone=len(prompts) == 1) for result in results]

        return answer

    return Method(name, spare[0].name, start)


def _answer(result: Result, *, is_alone: bool) -> Answer:
    stats = result.stats
    return Answer(
        token_ids=result.token_ids,
        text=result.text,
        finish_reason=result.finish_reason,
        passes=stats.steps + 1,
        rows=stats.steps + stats.drafted,
        first_token_seconds=stats.first_token_seconds,
        drafted=stats.drafted,
        accepted=stats.accepted,
        judged_by_depth=tuple(stats.judged_by_depth),
        accepted_by_depth=tuple(stats.accepted_by_depth),
        draft_seconds=stats.draft_seconds if is_alone else None,
        target_seconds=stats.target_seconds if is_alone else None,
        expected_tokens=stats.expected_tokens,
        drafters={
            name: DrafterCounts(
                asked=own.asked,
                drafted=own.drafted,
                judged=own.judged,
                accepted=own.accepted,
                seconds=own.seconds if is_alone else None,
            )
            for name, own in stats.drafters.items()
        },
    )


def _of_transformers(
    llm: Outdraft, name: str, assistant: str | None, stock: TargetModel | None
) -> Method:
    from outdraft.integrations.baselines import Baseline

    baseline = Baseline(name, stock or llm.target, llm.tokenizer, assistant)
    decode = text_decoder(llm.tokenizer)

    def answer(prompts: Seq[Seq[int]], settings: GenerationSettings) -> list[Answer]:
        return [
            Answer(
                token_ids=generated.token_ids,
                text=decode(generated.token_ids),
                finish_reason=generated.finish_reason,
                passes=generated.passes,
                rows=generated.rows,
                first_token_seconds=generated.first_token_seconds,
                target_seconds=generated.target_seconds if len(prompts) == 1 else None,
            )
            for generated in baseline.generate(prompts, settings)
        ]

    return Method(name, name, lambda: answer)
