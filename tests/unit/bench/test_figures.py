from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq
from dataclasses import replace

import pytest

from outdraft.bench.figures import (
    Difference,
    DrafterFigures,
    Figures,
    Spread,
    first_difference,
    make_figures,
    make_tables,
    pairs,
)
from outdraft.bench.methods import make_methods
from outdraft.bench.records import DrafterCounts, Record, Results
from outdraft.bench.run import BenchSettings, run_bench
from outdraft.models.table import TableTarget
from outdraft.settings import GenerationSettings
from support.benches import QUESTIONS, make_record, make_turn, toy_llm

THREE = (1, 2, 3)


def record(
    question_id: str, method: str, seconds: float, repeat: int = 0, tokens: int = 3
) -> Record:
    turn = make_turn(tuple(range(tokens)), seconds, draft_seconds=seconds / 8, target_seconds=0.0)
    return make_record(question_id, method, turn, repeat=repeat)


# --- one method -----------------------------------------------------------------------------------


def test_counts_are_sums_and_rates_are_ratios_of_sums() -> None:
    drafting = {
        "judged_by_depth": (4, 2),
        "accepted_by_depth": (2, 1),
        "drafted": 6,
        "accepted": 3,
    }
    long = make_turn(
        (1,) * 9, 2.0, passes=4, rows=9, draft_seconds=0.5, target_seconds=1.0, **drafting
    )
    short = make_turn(
        (1,) * 3, 1.0, passes=2, rows=2, draft_seconds=0.1, target_seconds=0.5,
        judged_by_depth=(4,), accepted_by_depth=(1,), drafted=4, accepted=1,
        first_token_seconds=0.3,
    )  # fmt: skip
    records = [make_record("w1", "suffix", long, short), make_record("w2", "suffix", short)]
    figures = make_figures(records, "suffix")
    assert (figures.answers, figures.failed, figures.turns) == (2, 0, 3)
    assert (figures.tokens, figures.passes, figures.seconds) == (15, 8, 4.0)
    assert (figures.drafted, figures.accepted) == (14, 5)
    assert figures.tokens_per_step == 15 / 8
    assert figures.tokens_per_second == 15 / 4.0
    assert figures.rows_per_step == 13 / 5  # the three prompts' passes are no steps
    assert figures.judged_by_depth == (12, 2)
    assert figures.accepted_by_depth == (4, 1)
    assert figures.acceptance_by_depth == (4 / 12, 1 / 2)
    assert figures.draft_share == pytest.approx(0.7 / 4)
    assert figures.target_share == pytest.approx(2.0 / 4)
    assert figures.elsewhere_share == pytest.approx(1.3 / 4)
    assert figures.first_token_seconds == 0.3  # the median of 0.1, 0.3, 0.3


def test_a_figure_is_unknown_if_one_answer_does_not_tell() -> None:
    known, unknown = make_turn(), make_turn(drafted=None, accepted=None, draft_seconds=None)
    figures = make_figures([make_record("w1", "hf", known, unknown)], "hf")
    assert figures.drafted is figures.accepted is None
    assert figures.draft_share is figures.elsewhere_share is None
    assert figures.target_share == pytest.approx(0.9)


def test_answers_of_one_token_have_no_steps() -> None:
    figures = make_figures([make_record("w1", "plain", make_turn((1,)))], "plain")
    assert figures.rows_per_step is None
    assert figures.tokens_per_step == 1.0


def test_failures_are_counted_and_left_out_of_everything_else() -> None:
    records = [
        record("w1", "plain", 2.0),
        record("w2", "plain", 2.0),
        record("w1", "suffix", 1.0),
        replace(record("w2", "suffix", 0.001), error="ValueError: no"),
    ]
    figures = make_figures(records, "suffix")
    assert (figures.answers, figures.failed, figures.tokens, figures.seconds) == (1, 1, 3, 1.0)
    assert figures.speedup is not None
    assert figures.speedup.ratio_of_sums == 2.0
    assert figures.speedup.questions == 1


def test_a_method_that_failed_everywhere_has_no_figures() -> None:
    failed = make_record("w1", "hf", turns=(), error="ValueError: no")
    figures = make_figures([failed, record("w1", "plain", 1.0)], "hf")
    assert (figures.answers, figures.failed, figures.tokens) == (0, 1, 0)
    assert figures.tokens_per_step is figures.tokens_per_second is figures.speedup is None
    assert figures.first_token_seconds is figures.target_share is figures.identical is None


def test_expected_tokens_are_held_against_those_of_the_steps() -> None:
    counts = {"a": DrafterCounts(asked=3, drafted=6, judged=4, accepted=2, seconds=0.5)}
    more = {**counts, "b": DrafterCounts(asked=1, drafted=1, judged=0, accepted=0, seconds=None)}
    records = [
        make_record("w1", "a,b", make_turn((1,) * 5, expected_tokens=6.0, drafters=counts)),
        make_record("w2", "a,b", make_turn((1,) * 3, expected_tokens=3.0, drafters=more)),
    ]
    figures = make_figures(records, "a,b")
    assert figures.expected_tokens == 9.0
    assert figures.expected_over_measured == 9 / 6  # the prompts' two tokens are left out
    assert figures.drafters == (
        DrafterFigures(
            name="a", asked=6, drafted=12, judged=8, accepted=4, acceptance=0.5, seconds=1.0
        ),
        DrafterFigures(
            name="b", asked=1, drafted=1, judged=0, accepted=0, acceptance=None, seconds=None
        ),
    )
    old = make_figures([*records, make_record("w3", "a,b")], "a,b")
    assert old.expected_tokens is old.expected_over_measured is None
    assert old.drafters == ()


# --- against a baseline ---------------------------------------------------------------------------


def test_a_speedup_is_the_ratio_of_wall_times_where_texts_are_equal() -> None:
    records = [
        record("w1", "plain", 8.0),
        record("w2", "plain", 1.0),
        record("w3", "plain", 3.0),
        record("w1", "suffix", 2.0),
        record("w2", "suffix", 1.0),
        record("w3", "suffix", 1.0),
    ]
    speedup = make_figures(records, "suffix").speedup
    assert speedup is not None
    assert speedup.ratio_of_sums == pytest.approx(12.0 / 4.0)
    assert speedup.median_of_ratios == pytest.approx(3.0)  # of 4, 1 and 3
    assert (speedup.repeats, speedup.questions) == (None, 3)


def test_a_shorter_text_is_no_speedup() -> None:
    records = [record("w1", "hf", 4.0, tokens=8), record("w1", "suffix", 2.0, tokens=4)]
    speedup = make_figures(records, "suffix").speedup_vs_hf
    assert speedup is not None
    assert speedup.ratio_of_sums == speedup.median_of_ratios == 1.0


def test_there_is_no_ratio_without_its_baseline() -> None:
    figures = make_figures([record("w1", "suffix", 1.0), record("w1", "hf", 2.0)], "suffix")
    assert figures.speedup is None
    assert figures.identical is None
    assert figures.speedup_vs_hf is not None
    assert make_figures([record("w1", "suffix", 1.0)], "suffix").speedup_vs_hf is None


def test_each_baseline_is_1_against_itself() -> None:
    records = [record("w1", "plain", 3.0), record("w1", "hf", 2.0)]
    plain, hf = make_figures(records, "plain"), make_figures(records, "hf")
    assert plain.speedup is not None
    assert hf.speedup_vs_hf is not None
    assert plain.speedup.ratio_of_sums == hf.speedup_vs_hf.ratio_of_sums == 1.0


def test_only_answers_that_both_gave_in_the_same_repeat_are_compared() -> None:
    records = [
        record("w1", "plain", 1.0, repeat=0),
        record("w1", "plain", 1.0, repeat=1),
        record("w1", "suffix", 1.0, repeat=1),
        record("w2", "suffix", 1.0, repeat=0),
    ]
    assert [(a.key, b.key) for a, b in pairs(records, "suffix", "plain")] == [
        (records[1].key, records[2].key)
    ]


def test_the_spread_is_over_the_repeats_own_figures() -> None:
    records = [
        *(record(q, "plain", 4.0, repeat) for q in ("w1", "w2") for repeat in range(3)),
        *(record(q, "suffix", 1.0 + repeat, repeat) for q in ("w1", "w2") for repeat in range(3)),
    ]
    figures = make_figures(records, "suffix")
    assert figures.speedup is not None
    assert figures.speedup.repeats == Spread(pytest.approx(4 / 3), pytest.approx(4.0))
    assert figures.speedup.ratio_of_sums == pytest.approx(24 / 12)
    assert figures.tokens_per_second_repeats == Spread(pytest.approx(1.0), pytest.approx(3.0))


# --- texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plain", "other", "place"),
    [
        ([(1, 2), (3, 4)], [(1, 2), (3, 4)], None),
        ([(1, 2), (3, 4)], [(1, 2), (3, 5)], (1, 1)),
        ([(1, 2), (3, 4)], [(0, 2), (3, 5)], (0, 0)),
        ([(1, 2)], [(1, 2, 3)], (0, 2)),
        ([(1, 2, 3)], [(1, 2)], (0, 2)),
    ],
)
def test_the_first_difference_is_found(
    plain: Seq[tuple[int, ...]],
    other: Seq[tuple[int, ...]],
    place: tuple[int, int] | None,
) -> None:
    before = make_record("w1", "plain", *(make_turn(ids) for ids in plain))
    after = make_record("w1", "suffix", *(make_turn(ids) for ids in other), repeat=2)
    found = first_difference(before, after)
    assert found == (None if place is None else Difference("w1", 2, *place))


def test_equal_and_differing_answers_are_counted() -> None:
    records = [
        make_record("w1", "plain", make_turn(THREE)),
        make_record("w2", "plain", make_turn(THREE)),
        make_record("w1", "suffix", make_turn(THREE)),
        make_record("w2", "suffix", make_turn((1, 2, 4))),
        make_record("w3", "suffix", make_turn((1, 2, 4))),  # plain decoding did not answer it
    ]
    figures = make_figures(records, "suffix")
    assert figures.identical == 1
    assert figures.differences == (Difference("w2", 0, 0, 2),)


def test_sampled_texts_of_transformers_are_not_compared() -> None:
    records = [make_record("w1", name) for name in ("plain", "suffix", "hf", "hf-lookup")]
    methods = ["plain", "suffix", "hf", "hf-lookup"]
    greedy = make_tables(records, methods)
    sampled = make_tables(records, methods, is_greedy=False)
    assert [figures.identical for figures in greedy.overall] == [1, 1, 1, 1]
    assert [figures.identical for figures in sampled.overall] == [1, 1, None, None]


# --- tables ---------------------------------------------------------------------------------------

SUMS = ("answers", "failed", "turns", "tokens", "passes", "seconds", "drafted", "accepted")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, table: TableTarget) -> list[Record]:
    llm = toy_llm(table)
    methods = make_methods(llm, drafters=["suffix", "prompt-lookup"], baselines=["plain"])
    results = Results(tmp_path_factory.mktemp("run"))
    settings = BenchSettings(GenerationSettings(max_new_tokens=40, seed=0), repeat=2)
    run_bench(llm, methods, QUESTIONS, settings, results, on_progress=lambda _: None)
    return results.records


METHODS = ["plain", "suffix", "prompt-lookup"]


def test_questions_add_up_to_groups_and_groups_to_all(measured: list[Record]) -> None:
    tables = make_tables(measured, METHODS)
    assert len(tables.questions) == 5 * 3
    assert [f.group for f in tables.groups[::3]] == [
        "multi-turn conversation",
        "retrieval-augmented generation",
    ]
    for method, name in itertools.product(METHODS, SUMS):
        (total,) = [getattr(f, name) for f in tables.overall if f.method == method]
        for parts in (tables.groups, tables.questions):
            assert total == pytest.approx(
                sum(getattr(f, name) for f in parts if f.method == method)
            )
    for group in tables.groups:
        part = [q for q in tables.questions if (q.group, q.method) == (group.group, group.method)]
        assert group.tokens == sum(question.tokens for question in part) > 0


def test_identities_hold_of_measured_figures(measured: list[Record]) -> None:
    tables = make_tables(measured, METHODS)
    for figures in (*tables.overall, *tables.groups, *tables.questions):
        assert figures.tokens_per_step == figures.tokens / figures.passes
        shares = (figures.draft_share, figures.target_share, figures.elsewhere_share)
        assert sum(share or 0 for share in shares) == pytest.approx(1.0)
        assert figures.accepted is not None
        assert figures.accepted <= sum(figures.accepted_by_depth) <= (figures.drafted or 0)
        assert figures.identical == figures.answers
        assert figures.differences == ()
        if figures.method == "plain":
            assert figures.tokens_per_step == figures.rows_per_step == 1.0
            assert figures.expected_over_measured == 1.0
            assert figures.speedup is not None
            assert figures.speedup.ratio_of_sums == pytest.approx(1.0)
            assert figures.acceptance_by_depth == ()
    suffix = _of(tables.overall, "suffix")
    assert suffix.tokens_per_step is not None
    assert suffix.tokens_per_step > 1.0
    assert 0 < suffix.acceptance_by_depth[0] < 1


def test_the_speedup_is_that_of_the_wall_times(measured: list[Record]) -> None:
    tables = make_tables(measured, METHODS)
    plain, suffix = _of(tables.overall, "plain"), _of(tables.overall, "suffix")
    assert suffix.speedup is not None
    assert suffix.speedup.ratio_of_sums == pytest.approx(plain.seconds / suffix.seconds)


def test_peak_memory_is_the_highest_there_was() -> None:
    records = [
        make_record("w1", peak_rss_bytes=5),
        make_record("w2", peak_rss_bytes=9),
        make_record("w3", peak_rss_bytes=None),
    ]
    assert make_tables(records, ["plain"]).peak_rss_bytes == 9
    assert make_tables(records[2:], ["plain"]).peak_rss_bytes is None


def _of(table: Seq[Figures], method: str) -> Figures:
    (figures,) = [figures for figures in table if figures.method == method]
    return figures
