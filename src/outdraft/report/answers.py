"""From a trace to answers that can be looked at: whose each token is, and what each step did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Literal

from outdraft.trace import StepTrace
from outdraft.types import Origin

MAX_QUESTIONS = 4
MAX_ANSWERS = 8

_MAX_LABEL = 24
_VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})

Fate = Literal["accepted", "refused", "unjudged"]
"""Of a guess; it is unjudged if its parent was not accepted."""


@dataclass(frozen=True, slots=True)
class Token:
    """A committed token in the text.

    Args:
        text: may be empty: an end of text, or part of a character.
        label: of the token itself, spaces and special tokens to be seen.
    """

    text: str
    label: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Guess:
    """A node of the step's tree."""

    label: str
    fate: Fate
    acceptance: float


@dataclass(frozen=True, slots=True)
class Branch:
    """Guesses that follow one another without a choice, and the branches that begin behind."""

    guesses: tuple[Guess, ...]
    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """What the target wrote after a row of the path, and the likeliest tokens there."""

    after: str
    wrote: str
    top: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an answer; milliseconds are those of the whole batch."""

    number: int
    rows: int
    seqs: int
    drafter: str
    tokens: tuple[Token, ...]
    branches: tuple[Branch, ...]
    choices: tuple[Choice, ...]
    milliseconds: float
    parts: Mapping[str, float]

    @property
    def accepted(self) -> int:
        return sum(token.origin == "drafted" for token in self.tokens)

    @property
    def last_origin(self) -> Origin:
        return self.tokens[-1].origin


@dataclass(frozen=True, slots=True)
class Answer:
    """One traced answer, with its steps in order."""

    question_id: str
    group: str
    method: str
    turn: int
    question: str
    steps: tuple[Step, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(step.tokens) for step in self.steps)

    @property
    def drafted_steps(self) -> tuple[Step, ...]:
        """All but the reading of the prompt, whose rows and time have another scale."""
        return tuple(step for step in self.steps if step.number > 0)


def choose_answers(
    traces: Seq[StepTrace], groups: Mapping[str, str], questions: Mapping[str, Seq[str]]
) -> tuple[list[Answer], int]:
    """A few answers to look at, and how many there are.

    One question of each group, its first turn, as answered by each method that guessed anything;
    if none did, by those that were traced.

    Args:
        groups: of each question.
    """
    by_answer: dict[tuple[str, str, int], list[StepTrace]] = {}
    for trace in traces:
        asked, method = trace.question_id, trace.method
        if asked is None or asked not in groups or method is None:
            continue  # a trace of something else than this run
        if trace.repeat == 0:
            by_answer.setdefault((asked, method, trace.turn or 0), []).append(trace)
    first_of_group: dict[str, str] = {}
    for question_id, _, _ in by_answer:
        first_of_group.setdefault(groups[question_id], question_id)
    chosen_questions = list(first_of_group.values())[:MAX_QUESTIONS]
    guessing = {place[1] for place, steps in by_answer.items() if any(step.tree for step in steps)}
    methods = guessing or {method for _, method, _ in by_answer}
    chosen = [
        (place, steps)
        for question_id in chosen_questions
        for place, steps in sorted(by_answer.items(), key=lambda item: item[0][1])
        if place[0] == question_id and place[1] in methods and place[2] == 0
    ]
    answers = [
        Answer(
            question_id=question_id,
            group=groups[question_id],
            method=method,
            turn=turn,
            question=_turn_of(questions.get(question_id, ()), turn),
            steps=make_steps(steps),
        )
        for (question_id, method, turn), steps in chosen[:MAX_ANSWERS]
    ]
    return answers, len(by_answer)


def make_steps(traces: Seq[StepTrace]) -> tuple[Step, ...]:
    """The steps of one answer; the texts of their tokens join to the answer's text."""
    texts = _texts(traces)
    return tuple(
        Step(
            number=trace.step,
            rows=trace.rows,
            seqs=trace.seqs,
            drafter=trace.tree.drafter,
            tokens=tuple(
                Token(next(texts), visible(trace.texts[token_id]), origin)
                for token_id, origin in zip(trace.token_ids, trace.origins, strict=True)
            ),
            branches=_branches(trace),
            choices=_choices(trace),
            milliseconds=trace.seconds.step * 1e3,
            parts=_parts(trace),
        )
        for trace in traces
    )


def visible(text: str) -> str:
    """A token's text on one line, with its spaces and line ends to be seen."""
    shown = "".join(char if char.isprintable() else "\ufffd" for char in text.translate(_VISIBLE))
    if len(shown) > _MAX_LABEL:
        shown = shown[: _MAX_LABEL - 1] + "…"
    return shown or "∅"


def _turn_of(turns: Seq[str], turn: int) -> str:
    return turns[turn] if turn < len(turns) else ""


def _texts(traces: Seq[StepTrace]) -> Iterator[str]:
    """Each token's part of the text that was shown; a stop string may have cut it short."""
    left = sum(len(trace.text) for trace in traces)
    for trace in traces:
        for piece in trace.pieces:
            yield piece[:left]
            left -= min(left, len(piece))


def _parts(trace: StepTrace) -> dict[str, float]:
    """Milliseconds, by what they were spent on."""
    seconds = trace.seconds
    rest = seconds.step - seconds.draft - seconds.plan - seconds.target
    parts = {"draft": seconds.draft, "plan": seconds.plan, "target": seconds.target, "rest": rest}
    return {name: 1e3 * value for name, value in parts.items()}


def _branches(trace: StepTrace) -> tuple[Branch, ...]:
    tree = trace.tree
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(node)
    accepted = {row - 1 for row in trace.path}  # the root is node -1

    def guess(node: int) -> Guess:
        fate: Fate = "unjudged"
        if node in accepted:
            fate = "accepted"
        elif tree.parents[node] in accepted:
            fate = "refused"
        return Guess(visible(trace.texts[tree.token_ids[node]]), fate, tree.acceptance[node])

    def branch(node: int) -> Branch:
        guesses = [guess(node)]
        while len(below := children.get(node, [])) == 1:
            node = below[0]
            guesses.append(guess(node))
        return Branch(tuple(guesses), tuple(branch(child) for child in below))

    return tuple(branch(node) for node in children.get(-1, []))


def _choices(trace: StepTrace) -> tuple[Choice, ...]:
    read = ["root", *(visible(trace.texts[token_id]) for token_id in trace.tree.token_ids)]
    return tuple(
        Choice(
            after="the prompt" if trace.step == 0 else read[row],
            wrote=visible(trace.texts[token_id]),
            top=tuple((visible(trace.texts[likely]), prob) for likely, prob in top),
        )
        # where nothing was allowed, a path has a row more
        for row, token_id, top in zip(trace.path, trace.target_ids, trace.top, strict=False)
    )
