"""A run of a drafter on known answers, without the target.

A target that knows the answer stands in for it, under the very engine that generates: drafts,
plans, verdicts and commits are those of a real run, and only the pass itself costs nothing. What a
drafter guesses from token ids alone is therefore what it would have guessed. How long the passes
would have taken follows from their costs on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from outdraft.draft import DrafterContext, drafter_names, make_drafter
from outdraft.engine import Engine
from outdraft.errors import CacheError, DrafterError
from outdraft.interfaces import Drafter, KVCache, TargetModel
from outdraft.models.table import TableCache
from outdraft.plan.cost_model import CostModel
from outdraft.plan.offer import Offer
from outdraft.plan.pricing import Priced, size_of_pass
from outdraft.replay.log import NO_LIMIT, KnownAnswer, Log
from outdraft.sequence import Sequence
from outdraft.settings import AUTO_ID_ONLY, EngineSettings, GenerationSettings
from outdraft.text.prompts import Tokenizer
from outdraft.types import Commit, Plan, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a drafter would have done on some answers.

    Args:
        group: `None` where all groups are taken together.
        passes: target passes, the prompts' own included.
        drafted: guesses that these passes read.
        seconds: that the steps behind the prompts would have taken on this machine, and
        plain_seconds: that plain decoding would have; `None` where its costs are not known.
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
    seconds: float | None = None
    plain_seconds: float | None = None

    @property
    def speedup(self) -> float | None:
        """Time of plain decoding / time with this drafter, the reading of prompts left out."""
        if self.seconds is None or self.plain_seconds is None:
            return None
        return self.plain_seconds / self.seconds

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


class PricedOnPaper(Priced):
    """Prices guesses as a run does, with passes that take what the costs say and not a bit more."""

    seconds = 0.0
    """Of all steps so far: passes by their costs, drafting as it was timed."""

    def _learn(
        self, offer: Offer, plan: Plan, batch: Seq[Sequence], commits: Seq[Commit], seconds: float
    ) -> None:
        seconds = self.costs.seconds(size_of_pass(plan, batch, commits))
        self.seconds += seconds + sum(draft.seconds for draft in offer.drafts)
        super()._learn(offer, plan, batch, commits, seconds)


def replay(
    log: Log,
    spec: str,
    max_draft_nodes: int,
    tokenizer: Tokenizer | None = None,
    *,
    costs: CostModel | None = None,
) -> list[Prediction]:
    """What a fresh drafter does on the answers one after the other: per group, then altogether.

    Args:
        costs: of the target's passes, by which guesses are priced and time is predicted; without
            them all guesses are read.

    Raises:
        DrafterError: the drafter is unknown, or guesses from more than token ids.
    """
    drafter = id_only_drafter(spec, log, tokenizer)
    answers = log.answers_for(spec)
    settings = EngineSettings(max_draft_nodes=max_draft_nodes)
    pricing = None if costs is None else PricedOnPaper(CostModel.from_json(costs.to_json()))
    is_measured = (
        spec in log.answers
        and max_draft_nodes == log.max_draft_nodes
        and log.is_priced == (pricing is not None)
    )
    single = []
    for request_id, answer in enumerate(answers):
        before = 0.0 if pricing is None else pricing.seconds
        target = KnownTarget(
            [*answer.prompt_ids, *answer.token_ids],
            vocab_size=log.vocab_size,
            max_context=answer.max_context,
        )
        engine = Engine(target, drafter, settings, pricing=pricing)
        sequence = _run(answer, request_id, engine)
        single.append(
            Prediction(
                drafter=spec,
                group=answer.group,
                answers=1,
                tokens=sequence.stats.tokens,
                passes=sequence.stats.steps + 1,
                drafted=sequence.stats.drafted,
                measured_passes=answer.measured_passes if is_measured else None,
                seconds=None if pricing is None else pricing.seconds - before,
                plain_seconds=None if pricing is None else sequence.stats.expected_plain_seconds,
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
        stand_in = KnownTarget([0], vocab_size=log.vocab_size, max_context=NO_LIMIT)
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


def _run(answer: KnownAnswer, request_id: int, engine: Engine) -> Sequence:
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
    seconds = [one.seconds for one in part if one.seconds is not None]
    plain_seconds = [one.plain_seconds for one in part if one.plain_seconds is not None]
    return Prediction(
        drafter=spec,
        group=group,
        answers=len(part),
        tokens=sum(one.tokens for one in part),
        passes=sum(one.passes for one in part),
        drafted=sum(one.drafted for one in part),
        measured_passes=sum(measured) if len(measured) == len(part) else None,
        seconds=sum(seconds) if seconds else None,
        plain_seconds=sum(plain_seconds) if plain_seconds else None,
    )
