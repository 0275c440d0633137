"""From records to figures. Pure functions: the same records give the same figures.

What each figure means, and the identities that hold between them, is in `docs/benchmarks.md`. A
figure that needs a baseline is `None` where the baseline was not run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence as Seq
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

from outdraft.bench.methods import HF, PLAIN
from outdraft.bench.records import DrafterCounts, Key, Record

Pair = tuple[Record, Record]
"""What the baseline and a method made of one question in one repeat."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spread:
    """The least and the greatest of the repeats' own figures."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times faster than a baseline, over the questions that both answered.

    Args:
        ratio_of_sums: of the time of all questions together; long answers weigh more.
        median_of_ratios: of the questions' own ratios; each weighs the same.
        repeats: of the ratio of sums; `None` if there was one repeat alone.
        questions: that both answered.
    """

    ratio_of_sums: float
    median_of_ratios: float
    repeats: Spread | None
    questions: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token in which an answer differs from plain decoding's, all counted from 0."""

    question_id: str
    repeat: int
    turn: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFigures:
    """What one of a method's drafters did; a guess that several made counts for each.

    Args:
        acceptance: accepted / judged.
        seconds: `None` where answers were given together.
    """

    name: str
    asked: int
    drafted: int
    judged: int
    accepted: int
    acceptance: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one method did on one question, one group, or all of them.

    Args:
        group: `None` where all groups are taken together.
        question_id: `None` unless these are the figures of a single question.
        answers, failed: records without and with an error; all that follows is of the former.
        turns: texts written; an answer has one or several.
        identical: answers with the very tokens of plain decoding's; those without are in
            `differences`.
        expected_tokens: what the plans of all steps expected, the steps' own tokens included.
        expected_over_measured: that, over the tokens that these steps brought.
        drafters: each drafter by itself, in the order in which they first appear; none where an
            answer does not tell.
    """

    group: str | None
    question_id: str | None
    method: str
    answers: int
    failed: int
    turns: int
    tokens: int
    passes: int
    seconds: float
    drafted: int | None
    accepted: int | None
    expected_tokens: float | None
    expected_over_measured: float | None
    tokens_per_step: float | None
    rows_per_step: float | None
    tokens_per_second: float | None
    tokens_per_second_repeats: Spread | None
    first_token_seconds: float | None
    judged_by_depth: tuple[int, ...]
    accepted_by_depth: tuple[int, ...]
    acceptance_by_depth: tuple[float, ...]
    draft_share: float | None
    target_share: float | None
    elsewhere_share: float | None
    speedup: Speedup | None
    speedup_vs_hf: Speedup | None
    identical: int | None
    differences: tuple[Difference, ...]
    drafters: tuple[DrafterFigures, ...]


@dataclass(frozen=True, slots=True)
class Tables:
    """All figures of a run; in each table, methods stand in the order of the run."""

    overall: tuple[Figures, ...]
    groups: tuple[Figures, ...]
    questions: tuple[Figures, ...]
    peak_rss_bytes: int | None


def make_tables(records: Seq[Record], methods: Seq[str], *, is_greedy: bool = True) -> Tables:
    """The figures of all, of each group and of each question.

    Args:
        is_greedy: whether all methods have to write the same text. When sampling, the baselines of
            transformers draw with other random numbers, and their texts are not compared.
    """

    def table(parts: Mapping[tuple[str | None, str | None], Seq[Record]]) -> tuple[Figures, ...]:
        return tuple(
            make_figures(
                part,
                method,
                group=group,
                question_id=question_id,
                compares_texts=is_greedy or not method.startswith(HF),
            )
            for (group, question_id), part in parts.items()
            for method in methods
        )

    peaks = [record.peak_rss_bytes for record in records if record.peak_rss_bytes is not None]
    return Tables(
        overall=table({(None, None): records}),
        groups=table(_parts(records, lambda record: (record.group, None))),
        questions=table(_parts(records, lambda record: (record.group, record.question_id))),
        peak_rss_bytes=max(peaks, default=None),
    )


def make_figures(
    records: Seq[Record],
    method: str,
    *,
    group: str | None = None,
    question_id: str | None = None,
    compares_texts: bool = True,
) -> Figures:
    """The figures of one method over some records, its baselines' among them."""
    own = [record for record in records if record.method == method]
    done = [record for record in own if record.is_ok]
    found = pairs(records, method, PLAIN) if compares_texts else []
    differences = [first_difference(*pair) for pair in found]
    return Figures(
        group=group,
        question_id=question_id,
        method=method,
        answers=len(done),
        failed=len(own) - len(done),
        tokens_per_second=_tokens_per_second(done),
        tokens_per_second_repeats=_spread(done, lambda record: record.repeat, _tokens_per_second),
        speedup=_speedup(records, method, PLAIN),
        speedup_vs_hf=_speedup(records, method, HF),
        identical=differences.count(None) if found else None,
        differences=tuple(difference for difference in differences if difference is not None),
        drafters=_drafters(done),
        **_counts(done),
        **_times(done),
    )


def _counts(done: Seq[Record]) -> dict[str, Any]:
    turns = [turn for record in done for turn in record.turns]
    tokens = sum(record.tokens for record in done)
    passes = sum(turn.passes for turn in turns)
    steps = passes - len(turns)  # the passes that read prompts are no steps
    expected, of_steps = _sum(turn.expected_tokens for turn in turns), tokens - len(turns)
    judged = _sum_by_depth(turn.judged_by_depth or () for turn in turns)
    accepted = _sum_by_depth(turn.accepted_by_depth or () for turn in turns)
    return {
        "turns": len(turns),
        "tokens": tokens,
        "passes": passes,
        "drafted": _sum(turn.drafted for turn in turns),
        "accepted": _sum(turn.accepted for turn in turns),
        "expected_tokens": expected,
        "expected_over_measured": expected / of_steps if expected and of_steps else None,
        "tokens_per_step": tokens / passes if passes else None,
        "rows_per_step": sum(turn.rows for turn in turns) / steps if steps else None,
        "judged_by_depth": judged,
        "accepted_by_depth": accepted,
        "acceptance_by_depth": tuple(a / j for a, j in zip(accepted, judged, strict=True)),
    }


def _drafters(done: Seq[Record]) -> tuple[DrafterFigures, ...]:
    counts = [turn.drafters for record in done for turn in record.turns]
    by_name: dict[str, list[DrafterCounts]] = {}
    for own in counts:
        if own is None:
            return ()
        for name, count in own.items():
            by_name.setdefault(name, []).append(count)
    return tuple(_drafter(name, own) for name, own in by_name.items())


def _drafter(name: str, counts: Seq[DrafterCounts]) -> DrafterFigures:
    judged = sum(count.judged for count in counts)
    accepted = sum(count.accepted for count in counts)
    return DrafterFigures(
        name=name,
        asked=sum(count.asked for count in counts),
        drafted=sum(count.drafted for count in counts),
        judged=judged,
        accepted=accepted,
        acceptance=accepted / judged if judged else None,
        seconds=_sum(count.seconds for count in counts),
    )


def _times(done: Seq[Record]) -> dict[str, Any]:
    turns = [turn for record in done for turn in record.turns]
    seconds = sum(record.seconds for record in done)
    draft = _sum(turn.draft_seconds for turn in turns)
    target = _sum(turn.target_seconds for turn in turns)
    is_known = draft is not None and target is not None and seconds > 0
    return {
        "seconds": seconds,
        "first_token_seconds": median(t.first_token_seconds for t in turns) if turns else None,
        "draft_share": draft / seconds if draft is not None and seconds else None,
        "target_share": target / seconds if target is not None and seconds else None,
        "elsewhere_share": (seconds - draft - target) / seconds if is_known else None,
    }


# --- against a baseline ---------------------------------------------------------------------------


def pairs(records: Seq[Record], method: str, baseline: str) -> list[Pair]:
    """What baseline and method made of the same question in the same repeat, where both did."""
    done = {record.key: record for record in records if record.is_ok}
    found = []
    for key, record in done.items():
        before = done.get(Key(key.question_id, baseline, key.repeat))
        if key.method == method and before is not None:
            found.append((before, record))
    return found


def first_difference(plain: Record, record: Record) -> Difference | None:
    """Where an answer leaves plain decoding's; behind that place nothing can be compared."""
    for turn, (before, after) in enumerate(zip(plain.turns, record.turns, strict=True)):
        if before.token_ids == after.token_ids:
            continue
        both = zip(before.token_ids, after.token_ids, strict=False)
        shorter = min(len(before.token_ids), len(after.token_ids))
        position = next((i for i, (one, other) in enumerate(both) if one != other), shorter)
        return Difference(record.question_id, record.repeat, turn, position)
    return None


def _speedup(records: Seq[Record], method: str, baseline: str) -> Speedup | None:
    found = pairs(records, method, baseline)
    if not found:
        return None
    by_question = _parts(found, lambda pair: pair[1].question_id)
    return Speedup(
        ratio_of_sums=_gain(found),
        median_of_ratios=median(_gain(part) for part in by_question.values()),
        repeats=_spread(found, lambda pair: pair[1].repeat, _gain),
        questions=len(by_question),
    )


def _gain(found: Seq[Pair]) -> float:
    """Time per token of the baseline / of the method: where the texts are equal, of wall times."""
    before, after = zip(*found, strict=True)
    return _seconds_per_token(before) / _seconds_per_token(after)


def _seconds_per_token(done: Seq[Record]) -> float:
    return sum(record.seconds for record in done) / sum(record.tokens for record in done)


def _tokens_per_second(done: Seq[Record]) -> float | None:
    return 1.0 / _seconds_per_token(done) if done else None


# --- sums -----------------------------------------------------------------------------------------


def _parts(items: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Items by key, in the order in which keys first appear."""
    parts: dict[Hashable, list[T]] = {}
    for item in items:
        parts.setdefault(key(item), []).append(item)
    return parts


def _spread(
    items: Seq[T], repeat_of: Callable[[T], int], figure: Callable[[Seq[T]], float | None]
) -> Spread | None:
    figures = [figure(part) for part in _parts(items, repeat_of).values()]
    known = [value for value in figures if value is not None]
    return Spread(min(known), max(known)) if len(known) > 1 else None


def _sum(values: Iterable[Any]) -> Any:
    """The sum, or `None` if one of the values is unknown."""
    known = list(values)
    return None if None in known else sum(known)


def _sum_by_depth(counts: Iterable[Seq[int]]) -> tuple[int, ...]:
    total: list[int] = []
    for by_depth in counts:
        total.extend([0] * (len(by_depth) - len(total)))
        for depth, count in enumerate(by_depth):
            total[depth] += count
    return tuple(total)
