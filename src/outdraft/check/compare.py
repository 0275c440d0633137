"""Runs every prompt plainly and drafted, and compares what comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass, field

from outdraft.check.judge import Judge
from outdraft.check.prompts import to_chat
from outdraft.draft import drafter_names
from outdraft.errors import SettingsError
from outdraft.generate import Outdraft
from outdraft.interfaces import Drafter
from outdraft.results import Result
from outdraft.settings import GenerationSettings
from outdraft.text.prompts import Prompt, to_prompt_ids

_PLAIN = "none"
ALL = "all"


@dataclass(frozen=True, slots=True)
class Candidate:
    """The token that one of two runs chose, and its score; see `judge`."""

    token_id: int
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a drafted run differs from the plain one.

    Behind it the texts have different pasts, so comparing them further would teach nothing.

    Args:
        position: which new token, from 0.
        fault: why it is a fault; `None` for a tie.
        plain, drafted, gap, tolerance: the two tokens, the distance of their scores and what
            rounding explains; `None` where the tokens are equal and something else differs.
    """

    position: int
    fault: str | None
    plain: Candidate | None = None
    drafted: Candidate | None = None
    gap: float | None = None
    tolerance: float | None = None


@dataclass(slots=True)
class Comparison:
    """One drafter at one temperature over all prompts.

    Attributes:
        prompts: runs compared.
        compared: new tokens compared: all, or those up to and with the first difference.
        tokens, passes, drafted, accepted: of the drafted runs, as in `Stats`.
        differences: by the index of the prompt; runs that are identical have none.
    """

    drafter: str
    temperature: float
    prompts: int = 0
    compared: int = 0
    tokens: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    differences: dict[int, Difference] = field(default_factory=dict)

    def add(self, result: Result, difference: Difference | None) -> None:
        """Takes in the drafted run of the next prompt."""
        stats = result.stats
        self.tokens += stats.tokens
        self.passes += stats.steps + 1  # the prompt's pass gives the first token
        self.drafted += stats.drafted
        self.accepted += stats.accepted
        if difference is None:
            self.compared += stats.tokens
        else:
            self.compared += difference.position + 1
            self.differences[self.prompts] = difference
        self.prompts += 1

    @property
    def identical(self) -> int:
        return self.prompts - len(self.differences)

    @property
    def ties(self) -> int:
        return len(self.differences) - self.faults

    @property
    def faults(self) -> int:
        return sum(difference.fault is not None for difference in self.differences.values())

    @property
    def tokens_per_step(self) -> float:
        """Tokens per target pass of the drafted runs; plain decoding has exactly 1."""
        return self.tokens / self.passes


def chosen_drafters(names: str) -> list[str]:
    """The drafters that `"all"` or a list separated by commas names, each on its own.

    Raises:
        SettingsError: one is unknown, or is plain decoding itself.
    """
    known = [name for name in drafter_names() if name != _PLAIN]
    if names == ALL:
        return known
    chosen = list(dict.fromkeys(spec.strip() for spec in names.split(",")))
    for spec in chosen:
        if spec.partition(":")[0] not in known:
            raise SettingsError(
                f"drafter={spec!r} cannot be held against plain decoding; choose {ALL} or some of "
                f"{', '.join(known)}"
            )
    return chosen


def check(
    llm: Outdraft,
    prompts: Seq[Prompt],
    *,
    drafters: Seq[str | Drafter],
    temperatures: Seq[float] = (0.0,),
    max_new_tokens: int = 64,
    seed: int = 0,
    is_batched: bool = False,
    drafted_llm: Outdraft | None = None,
    on_run: Callable[[int], None] = lambda _: None,
) -> list[Comparison]:
    """Holds drafted runs against plain ones, token by token.

    Each prompt runs plainly once per temperature, alone; all drafters are compared with that run.
    Where the tokens are equal, the text and the reason of its end have to be, too.

    Args:
        prompts: texts become the message of a chat where the model has a chat template.
        seed: of every run, plain and drafted.
        is_batched: the drafted runs of all prompts share their passes, as one ragged batch.
        drafted_llm: does the drafted runs in place of `llm`; for faults on purpose.
        on_run: told, after each piece of work, how many runs it was.

    Raises:
        SettingsError: a setting is out of range, or a prompt is empty or too long.
        DrafterError: a drafter cannot be made for this model.
    """
    all_settings = [
        GenerationSettings(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
        for temperature in dict.fromkeys(temperatures)
    ]
    all_ids = [
        prompt_token_ids(llm, prompt, number) for number, prompt in enumerate(prompts, start=1)
    ]
    named = [llm.drafter(drafter) for drafter in drafters]  # refused before anything runs
    # All guesses are read, whether they pay or not: the more there are, the more is checked.
    llm = llm.with_engine(adaptive=False)
    drafting = llm if drafted_llm is None else drafted_llm.with_engine(adaptive=False)
    judge = Judge(llm.target, llm.settings)
    comparisons = []
    for settings in all_settings:
        plain = []
        for ids in all_ids:
            plain += _run(llm, [ids], _PLAIN, settings, on_run)
        for drafter in named:
            comparison = Comparison(drafter.name, settings.temperature)
            drafted = []
            for group in _groups(all_ids, plain, drafter, is_batched=is_batched):
                drafted += _run(drafting, group.ids, drafter, group.told(settings), on_run)
            for ids, pair in zip(all_ids, zip(plain, drafted, strict=True), strict=True):
                comparison.add(pair[1], _difference(llm, judge, settings, ids, pair))
            comparisons.append(comparison)
    return comparisons


@dataclass(frozen=True, slots=True)
class _Group:
    """Prompts that run together, and the answer expected of them, if a drafter is told."""

    ids: list[list[int]]
    prediction: str | None = None

    def told(self, settings: GenerationSettings) -> GenerationSettings:
        return settings.replace(prediction=self.prediction)


def _groups(
    all_ids: list[list[int]], plain: Seq[Result], drafter: Drafter, *, is_batched: bool
) -> list[_Group]:
    """`prediction` is told the plain answer without its middle, so that it errs and finds back."""
    if any(part.name == "prediction" for part in drafter.parts):
        return [
            _Group([ids], _without_middle(result.text))
            for ids, result in zip(all_ids, plain, strict=True)
        ]
    return [_Group(all_ids)] if is_batched else [_Group([ids]) for ids in all_ids]


def _without_middle(text: str) -> str:
    return text[: len(text) // 3] + text[len(text) // 2 :]


def prompt_token_ids(llm: Outdraft, prompt: Prompt, number: int) -> list[int]:
    """What a prompt is read as; errors call it by its number.

    Raises:
        SettingsError: it is empty, or longer than the target reads.
    """
    try:
        ids = to_prompt_ids(llm.tokenizer, to_chat(llm.tokenizer, prompt))
    except SettingsError as error:
        raise SettingsError(f"prompt {number}: {error}") from None
    if len(ids) >= llm.target.max_context:
        raise SettingsError(
            f"prompt {number} has {len(ids)} tokens and the target reads "
            f"{llm.target.max_context}; shorten it"
        )
    return ids


def _run(
    llm: Outdraft,
    group: Seq[list[int]],
    drafter: str | Drafter,
    settings: GenerationSettings,
    on_run: Callable[[int], None],
) -> list[Result]:
    results = llm.generate(list(group), drafter=drafter, **settings.model_dump())
    on_run(len(group))
    return results


def _difference(
    llm: Outdraft,
    judge: Judge,
    settings: GenerationSettings,
    prompt_ids: list[int],
    pair: tuple[Result, Result],
) -> Difference | None:
    """What is different between a plain and a drafted run; `None` if nothing is."""
    plain, drafted = (result.token_ids for result in pair)
    shorter = min(len(plain), len(drafted))
    position = next((i for i in range(shorter) if plain[i] != drafted[i]), shorter)
    if position == shorter:
        fault = _ending_fault(*pair)
        return None if fault is None else Difference(position - 1, fault)
    token_ids = (plain[position], drafted[position])
    seed = pair[0].seed
    verdict = judge.judge([*prompt_ids, *plain[:position]], token_ids, settings, seed)
    ours, theirs = (
        Candidate(token_id, _show(llm, token_id), score)
        for token_id, score in zip(token_ids, verdict.scores, strict=True)
    )
    return Difference(position, verdict.fault, ours, theirs, verdict.gap, verdict.tolerance)


def _ending_fault(plain: Result, drafted: Result) -> str | None:
    """What is wrong with runs whose tokens are equal as far as both go."""
    if len(plain.token_ids) != len(drafted.token_ids):
        return (
            f"the plain run ends after {len(plain.token_ids)} tokens and the drafted one after "
            f"{len(drafted.token_ids)}; as far as both go, they are equal"
        )
    for name in ("finish_reason", "text"):
        ours, theirs = getattr(plain, name), getattr(drafted, name)
        if ours != theirs:
            return f"equal tokens, but {name} is {ours!r} in the plain run and {theirs!r} drafted"
    return None


def _show(llm: Outdraft, token_id: int) -> str:
    text = llm.tokenizer.decode(
        [token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return str(text)
