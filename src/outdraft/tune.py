"""Which drafters pay for a model on this machine, and what it learnt by finding out.

Every prompt is answered plainly and by each way of guessing, one right after the other, so that
whatever slows the machine down for a while slows all of them down. All share one record of costs
and of judged guesses; both go into the profile that later runs start from.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence as Seq
from dataclasses import dataclass, field

from outdraft.errors import SettingsError
from outdraft.generate import Outdraft
from outdraft.models.target import CausalLM
from outdraft.plan import Priced
from outdraft.plan.cost_file import measure_costs
from outdraft.plan.profile import Finding, Profile
from outdraft.results import Result
from outdraft.settings import AUTO_DRAFTER, GenerationSettings
from outdraft.text.prompts import Prompt

PLAIN, AUTO = "none", "auto"
_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """What is tried.

    Args:
        drafters: besides plain decoding, the parts of `auto` one by one, and `auto` itself.
        temperatures: at which every prompt is answered.

    Raises:
        SettingsError: a temperature or a length is none, or no temperature is named.
    """

    drafters: tuple[str, ...] = ()
    temperatures: tuple[float, ...] = (0.0,)
    max_new_tokens: int = 96

    def __post_init__(self) -> None:
        if not self.temperatures:
            raise SettingsError("temperatures=(): name at least one; 0 is greedy decoding")
        for temperature in self.temperatures:
            self.generation(temperature)

    @property
    def ways(self) -> list[str]:
        """All specs of drafters that are tried."""
        # Nobody says in advance what the answers to these prompts are.
        parts = [part for part in AUTO_DRAFTER.split(",") if part != "prediction"]
        return list(dict.fromkeys([*parts, AUTO, *self.drafters]))

    def generation(self, temperature: float) -> GenerationSettings:
        """The seed is fixed, so that all ways write alike."""
        return GenerationSettings(
            max_new_tokens=self.max_new_tokens, temperature=temperature, seed=0
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it has come: `done` of `total` answers, and who gives the next one."""

    done: int
    total: int
    drafter: str = ""


def tune(
    llm: Outdraft,
    prompts: Seq[Prompt],
    settings: TuneSettings,
    *,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Profile:
    """Measures passes, answers the prompts in every way, and says what came of it.

    Nothing is kept before the end: stopped at any point, it leaves no trace.

    Raises:
        SettingsError: there are no prompts, one is too long, or the target is no language model
            whose passes can be measured.
        DrafterError: a drafter is unknown or does not fit the model.
    """
    if not prompts:
        raise SettingsError("there are no prompts to tune with; give at least one")
    if not isinstance(llm.target, CausalLM):
        raise SettingsError(
            f"passes of a {type(llm.target).__name__} cannot be measured; tune a model that "
            "`outdraft.load` made"
        )
    pricing = Priced(measure_costs(llm.target))
    tuned = llm.with_engine(adaptive=True, pricing=pricing)
    ways = settings.ways
    for way in ways:
        tuned.drafter(way)  # an unfit one is refused before anything runs
    _warm_up(tuned, prompts[0], [PLAIN, *ways])
    tallies = {(way, t): _Tally() for way in [PLAIN, *ways] for t in settings.temperatures}
    answers = list(_schedule(prompts, [PLAIN, *ways], settings.temperatures))
    for done, (prompt, way, temperature) in enumerate(answers):
        on_progress(Progress(done, len(answers), way))
        generation = settings.generation(temperature).model_dump()
        result = tuned.generate([prompt], drafter=way, **generation)[0]
        tallies[way, temperature].add(result)
    on_progress(Progress(len(answers), len(answers)))
    return Profile(
        costs=pricing.costs,
        calibrator=pricing.calibrator,
        findings=tuple(
            tallies[way, temperature].finding(way, temperature, tallies[PLAIN, temperature])
            for temperature in settings.temperatures
            for way in ways
        ),
        made=time.strftime("%Y-%m-%d %H:%M"),
        num_prompts=len(prompts),
    )


def _schedule(
    prompts: Seq[Prompt], ways: Seq[str], temperatures: Seq[float]
) -> Iterator[tuple[Prompt, str, float]]:
    """Each prompt in all ways, another one first each time."""
    for number, (prompt, temperature) in enumerate(itertools.product(prompts, temperatures)):
        first = number % len(ways)
        for way in (*ways[first:], *ways[:first]):
            yield prompt, way, temperature


def _warm_up(llm: Outdraft, prompt: Prompt, ways: Seq[str]) -> None:
    """Short answers that nobody counts."""
    for way in ways:
        llm.generate([prompt], drafter=way, max_new_tokens=_WARM_UP_TOKENS)


@dataclass(slots=True)
class _Tally:
    """What the answers of one way come to, from their first tokens on."""

    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    plain_seconds: float = field(default=0.0)

    def add(self, result: Result) -> None:
        stats = result.stats
        self.tokens += stats.tokens - 1
        self.steps += stats.steps
        self.seconds += stats.seconds - stats.first_token_seconds
        self.plain_seconds += stats.expected_plain_seconds

    def finding(self, drafter: str, temperature: float, plain: _Tally) -> Finding:
        """Beside plain decoding; answers of a single token tell nothing, and count as plain."""
        has_both = min(self.seconds, plain.seconds, self.plain_seconds) > 0.0 < self.tokens
        plain_each = plain.seconds / max(1, plain.tokens)
        own_each = self.seconds / max(1, self.tokens)
        return Finding(
            drafter=drafter,
            temperature=temperature,
            tokens_per_step=self.tokens / self.steps if self.steps else 1.0,
            expected_speedup=self.plain_seconds / self.seconds if has_both else 1.0,
            measured_speedup=plain_each / own_each if has_both and plain.tokens else 1.0,
        )
