from __future__ import annotations

from dataclasses import replace
from typing import Any

from outdraft.report import Run
from outdraft.report.answers import (
    MAX_ANSWERS,
    MAX_QUESTIONS,
    Branch,
    choose_answers,
    make_steps,
    visible,
)
from outdraft.trace import StepSeconds, StepTrace
from outdraft.types import DraftTree

NAMES = {token_id: chr(ord("a") + token_id) for token_id in range(12)}


def make_trace(**changes: Any) -> StepTrace:
    """Guesses 1 ─▶ 2 ─▶ 3 and 1 ─▶ 4, and 5; the target writes 1, 2 and then 9."""
    fields: dict[str, Any] = {
        "request_id": 0,
        "step": 1,
        "seqs": 1,
        "rows": 6,
        "tree": DraftTree((1, 2, 3, 4, 5), (-1, 0, 1, 0, -1), (0.5,) * 5, "made"),
        "path": (0, 1, 2),
        "target_ids": (1, 2, 9),
        "top": (((1, 0.5),), ((2, 0.5),), ((9, 0.5),)),
        "token_ids": (1, 2, 9),
        "origins": ("drafted", "drafted", "corrected"),
        "pieces": ("b", "c", "j"),
        "text": "bcj",
        "finish_reason": None,
        "seconds": StepSeconds(0.001, 0.002, 0.003, 0.010),
        "texts": NAMES,
        "question_id": "q",
        "method": "m",
        "repeat": 0,
        "turn": 0,
    }
    return StepTrace(**{**fields, **changes})


def outline(branches: tuple[Branch, ...]) -> list[Any]:
    return [
        [" ".join(f"{g.label}:{g.fate}" for g in branch.guesses), *outline(branch.branches)]
        for branch in branches
    ]


# --- one step -------------------------------------------------------------------------------------


def test_each_guess_has_its_fate() -> None:
    (step,) = make_steps([make_trace()])
    assert outline(step.branches) == [
        ["b:accepted", ["c:accepted d:refused"], ["e:refused"]],
        ["f:refused"],
    ]


def test_guesses_behind_a_refused_one_are_unjudged() -> None:
    trace = make_trace(path=(0,), target_ids=(9,), top=((),), token_ids=(9,), pieces=("j",))
    (step,) = make_steps([replace(trace, origins=("corrected",), text="j")])
    assert outline(step.branches) == [
        ["b:refused", ["c:unjudged d:unjudged"], ["e:unjudged"]],
        ["f:refused"],
    ]


def test_choices_name_the_row_and_what_was_written_behind_it() -> None:
    (step,) = make_steps([make_trace()])
    assert [(choice.after, choice.wrote) for choice in step.choices] == [
        ("root", "b"),
        ("b", "c"),
        ("c", "j"),
    ]
    assert step.choices[2].top == (("j", 0.5),)


def test_times_add_up() -> None:
    (step,) = make_steps([make_trace()])
    assert step.milliseconds == 10.0
    assert sum(step.parts.values()) == step.milliseconds
    assert round(step.parts["rest"], 6) == 4.0


def test_text_behind_a_stop_string_is_not_shown() -> None:
    first, second = make_trace(text="bc"), make_trace(text="")
    steps = make_steps([first, second])
    assert [token.text for step in steps for token in step.tokens] == ["b", "c", "", "", "", ""]
    assert [token.label for token in steps[0].tokens] == ["b", "c", "j"]


def test_tokens_are_made_visible() -> None:
    assert visible(" a\n\tb") == "␣a⏎⇥b"
    assert visible("") == "∅"
    assert visible("\x07\u202e") == "\ufffd\ufffd"
    assert visible("x" * 99) == "x" * 23 + "…"


# --- which answers --------------------------------------------------------------------------------


def test_texts_join_to_the_answers_of_the_results(whole: Run) -> None:
    groups = {record.question_id: record.group for record in whole.records}
    answers, num_traced = choose_answers(whole.traces, groups, whole.questions)
    assert num_traced == 3 * (2 + 2 + 1)  # methods × turns, of the first repeat
    assert len(answers) == 2 * 2  # the first question of each group × methods that drafted
    turns = {(r.question_id, r.method): r.turns[0] for r in whole.records if r.repeat == 0}
    for answer in answers:
        turn = turns[answer.question_id, answer.method]
        tokens = [token for step in answer.steps for token in step.tokens]
        assert "".join(token.text for token in tokens) == turn.text
        assert answer.num_tokens == len(turn.token_ids)
        assert len(answer.steps) == turn.passes
        assert answer.question == whole.questions[answer.question_id][0]
        assert answer.method != "plain"
        assert [step.number for step in answer.drafted_steps] == list(range(1, turn.passes))


def test_no_more_than_a_few_are_chosen() -> None:
    asked = [make_trace(question_id=f"q{i}", method=f"m{j}") for i in range(9) for j in range(9)]
    groups = {f"q{i}": f"g{i}" for i in range(9)}
    answers, num_traced = choose_answers(asked, groups, {})
    assert num_traced == 81
    assert len(answers) == MAX_ANSWERS
    few, _ = choose_answers([trace for trace in asked if trace.method == "m0"], groups, {})
    assert [answer.group for answer in few] == [f"g{i}" for i in range(MAX_QUESTIONS)]


def test_plain_decoding_is_shown_where_nothing_else_is() -> None:
    plain = make_trace(tree=DraftTree(), path=(0,), target_ids=(1,), top=((),), method="plain")
    plain = replace(plain, token_ids=(1,), origins=("plain",), pieces=("b",), text="b")
    (answer,), _ = choose_answers([plain], {"q": "g"}, {})
    assert answer.method == "plain"
    (answer,), _ = choose_answers([plain, make_trace()], {"q": "g"}, {})
    assert answer.method == "m"


def test_lines_of_other_runs_and_requests_are_left_out() -> None:
    strange = [make_trace(question_id=None), make_trace(question_id="other")]
    assert choose_answers(strange, {"q": "g"}, {}) == ([], 0)
