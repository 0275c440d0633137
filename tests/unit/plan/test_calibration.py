from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence as Seq

import pytest
from hypothesis import given, strategies as st

from outdraft.draft import drafter_names
from outdraft.plan.calibration import (
    AT_ITS_WORD,
    GREEDY_PRIORS,
    SAMPLED_PRIORS,
    Calibrator,
    Reliability,
    judged_nodes,
)
from outdraft.types import DraftTree
from support.trees import Parts, build, tree_parts

SCORES = st.floats(0.0, 1e6)


def one_guess(
    stated: float = 0.5, drafter: str = "mine", score: tuple[float, ...] = ()
) -> DraftTree:
    return DraftTree((1,), (-1,), (stated,), drafter, (score,) if score else ())


def taught(
    tree: DraftTree, rate: float, *, temperature: float = 0.0, times: int = 300
) -> Calibrator:
    """A calibrator that saw the first guess of a tree accepted at this rate."""
    calibrator = Calibrator()
    for i in range(times):
        is_accepted = int((i + 1) * rate) > int(i * rate)
        calibrator.observe(tree, temperature, [tree.token_ids[0] if is_accepted else 99])
    return calibrator


def first(calibrator: Calibrator, tree: DraftTree, temperature: float = 0.0) -> float:
    return calibrator.acceptance(tree, temperature)[0]


# --- which nodes are judged -----------------------------------------------------------------------


def test_nodes_with_an_accepted_parent_are_judged() -> None:
    #   root ─▶ 1 ─▶ 2 ─▶ 3       written: 1 2 9
    #     └───▶ 4 ─▶ 5
    tree = DraftTree((1, 2, 3, 4, 5), (-1, 0, 1, -1, 3), (0.5,) * 5)
    assert judged_nodes(tree, [1, 2, 9]) == [
        (0, 1, True),
        (3, 1, False),
        (1, 2, True),
        (2, 3, False),
    ]


def test_nothing_is_judged_behind_what_was_written() -> None:
    assert judged_nodes(DraftTree.chain([1, 2, 3]), [1]) == [(0, 1, True)]
    assert judged_nodes(DraftTree.chain([1, 2, 3]), []) == []
    assert judged_nodes(DraftTree(), [1, 2]) == []


@given(tree_parts(), st.lists(st.integers(0, 4), max_size=6))
def test_verdicts_are_those_of_the_text(parts: Parts, token_ids: list[int]) -> None:
    tree = build(parts)
    paths: list[tuple[int, ...]] = []
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token_id))
    expected = {
        (node, len(path), path[-1] == token_ids[len(path) - 1])
        for node, path in enumerate(paths)
        if len(path) <= len(token_ids) and list(path[:-1]) == token_ids[: len(path) - 1]
    }
    assert set(judged_nodes(tree, token_ids)) == expected


# --- before anything was judged -------------------------------------------------------------------


def test_an_unknown_drafter_is_taken_at_its_word() -> None:
    tree = DraftTree((1, 2, 3), (-1, 0, -1), (0.7, 0.5, 0.2), "from another package")
    assert Calibrator().acceptance(tree, 0.0) == pytest.approx([0.7, 0.5, 0.2])


def test_nothing_is_certain() -> None:
    calibrator = Calibrator()
    assert first(calibrator, one_guess(1.0)) <= 0.99
    assert first(calibrator, one_guess(1e-9)) >= 0.005


def test_priors_are_of_drafters_that_there_are() -> None:
    assert set(SAMPLED_PRIORS) <= set(GREEDY_PRIORS)
    assert set(GREEDY_PRIORS) <= set(drafter_names())


@pytest.mark.parametrize("priors", [GREEDY_PRIORS, SAMPLED_PRIORS])
def test_a_likelier_guess_stays_the_likelier_one(priors: dict[str, object]) -> None:
    temperature = 0.0 if priors is GREEDY_PRIORS else 0.8
    for drafter in priors:
        found = [
            first(Calibrator(), one_guess(stated, drafter), temperature)
            for stated in (0.1, 0.3, 0.6, 0.9)
        ]
        assert found == sorted(found)
        assert found[0] < found[-1]


def test_a_drafters_argument_does_not_change_its_prior() -> None:
    plain, argued = one_guess(0.9, "suffix"), one_guess(0.9, "suffix:memory=team:a")
    assert first(Calibrator(), plain) == first(Calibrator(), argued) != pytest.approx(0.9)


def test_copies_are_surer_the_deeper_they_are() -> None:
    chain = DraftTree.chain([1, 2, 3, 4, 5, 6], 0.75, "prompt-lookup")
    found = Calibrator().acceptance(chain, 0.0)
    assert found == sorted(found)
    assert found[-1] > found[0] + 0.2


# --- learning -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("stated", [0.2, 0.8])
@pytest.mark.parametrize("drafter", ["mine", "suffix"])
def test_it_learns_how_often_guesses_are_accepted(rate: float, stated: float, drafter: str) -> None:
    tree = one_guess(stated, drafter)
    assert first(taught(tree, rate), tree) == pytest.approx(rate, abs=0.05)


def test_a_few_nodes_do_not_turn_it_around() -> None:
    tree = one_guess(0.8)
    assert first(taught(tree, 0.0, times=3), tree) > 0.6


def test_a_few_dozen_nodes_do() -> None:
    tree = one_guess(0.8)
    assert first(taught(tree, 0.1, times=100), tree) < 0.35


def test_it_forgets_slowly() -> None:
    tree = one_guess(0.5)
    calibrator = taught(tree, 0.9, times=500)
    for _ in range(15):
        calibrator.observe(tree, 0.0, [99])
    assert first(calibrator, tree) > 0.7
    for _ in range(1000):
        calibrator.observe(tree, 0.0, [99])
    assert first(calibrator, tree) < 0.1


def test_what_is_learnt_of_alike_nodes_leaves_others_nearly_alone() -> None:
    calibrator = Calibrator()
    sure, unsure = one_guess(0.9), one_guess(0.2)
    for i in range(400):  # the sure ones are overrated, the unsure ones underrated
        calibrator.observe(sure, 0.0, [1 if i % 2 else 99])
        calibrator.observe(unsure, 0.0, [1 if i % 2 else 99])
    assert first(calibrator, sure) == pytest.approx(0.5, abs=0.07)
    assert first(calibrator, unsure) == pytest.approx(0.5, abs=0.07)


def test_what_a_drafter_writes_about_now_shows_in_nodes_never_seen() -> None:
    calibrator = taught(one_guess(0.8), 0.1)
    assert first(calibrator, one_guess(0.3)) < 0.2


def test_scores_tell_nodes_apart_that_state_the_same() -> None:
    short, long = one_guess(0.5, score=(2.0,)), one_guess(0.5, score=(30.0,))
    calibrator = Calibrator()
    for i in range(300):
        calibrator.observe(short, 0.0, [1 if i % 5 == 0 else 99])
        calibrator.observe(long, 0.0, [99 if i % 5 == 0 else 1])
    assert first(calibrator, short) == pytest.approx(0.2, abs=0.1)
    assert first(calibrator, long) == pytest.approx(0.8, abs=0.1)


def test_probabilities_as_scores_are_told_apart_too() -> None:
    low, high = one_guess(0.5, score=(0.1, 1.0)), one_guess(0.5, score=(0.9, 1.0))
    calibrator = Calibrator()
    for _ in range(200):
        calibrator.observe(low, 0.0, [99])
        calibrator.observe(high, 0.0, [1])
    assert first(calibrator, high) > first(calibrator, low) + 0.5


@pytest.mark.parametrize(("taught_at", "other"), [(0.0, 0.5), (0.5, 1.0), (1.0, 0.0)])
def test_greedy_cool_and_warm_requests_are_kept_apart(taught_at: float, other: float) -> None:
    tree = one_guess(0.5)
    calibrator = taught(tree, 0.9, temperature=taught_at)
    assert first(calibrator, tree, taught_at) > 0.8
    assert first(calibrator, tree, other) == pytest.approx(0.5)


def test_drafters_are_kept_apart() -> None:
    calibrator = taught(one_guess(0.5, "mine"), 0.9)
    assert first(calibrator, one_guess(0.5, "yours")) == pytest.approx(0.5)


def test_a_node_whose_parent_was_refused_teaches_nothing() -> None:
    chain = DraftTree.chain([1, 2], 0.5, "mine")
    calibrator = Calibrator()
    for _ in range(100):
        calibrator.observe(chain, 0.0, [99])
    assert calibrator.reliability()["mine"].judged == 100


@given(
    parts=st.lists(tree_parts(), max_size=5),
    score=st.lists(SCORES, max_size=3).map(tuple),
    written=st.lists(st.lists(st.integers(0, 4), max_size=5), max_size=5),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
)
def test_whatever_it_saw_it_gives_probabilities(
    parts: list[Parts],
    score: tuple[float, ...],
    written: list[list[int]],
    temperature: float,
) -> None:
    calibrator = Calibrator()
    for part in parts:
        tree = build(part)
        tree = DraftTree(
            tree.token_ids, tree.parents, tree.acceptance, "suffix", (score,) * len(tree)
        )
        for token_ids in written:
            calibrator.observe(tree, temperature, token_ids)
        found = calibrator.acceptance(tree, temperature)
        assert len(found) == len(tree)
        assert all(0.0 < probability < 1.0 for probability in found)


# --- reliability ----------------------------------------------------------------------------------


def test_reliability_holds_what_was_expected_against_what_came() -> None:
    record = Reliability()
    for predicted, is_accepted in [(0.71, True), (0.79, False), (0.75, True), (1.0, True)]:
        record.count(predicted, is_accepted)
    part = record.bins[7]
    assert (part.low, part.high) == pytest.approx((0.7, 0.8))
    assert (part.judged, part.accepted) == (3, 2)
    assert part.expected == pytest.approx(2.25)
    assert record.bins[9].judged == 1
    assert (record.judged, record.accepted) == (4, 3)
    assert record.expected == pytest.approx(3.25)
    assert record.gap == pytest.approx(0.25 / 4)


def test_without_verdicts_nothing_is_amiss() -> None:
    assert Reliability().gap == 0.0
    assert Calibrator().reliability() == {}


def test_predictions_are_held_to_account_as_they_were_before_the_verdict() -> None:
    tree = one_guess(0.8)
    calibrator = Calibrator()
    calibrator.observe(tree, 0.0, [99])
    assert calibrator.reliability()["mine"].expected == pytest.approx(0.8)


def test_once_taught_it_is_reliable() -> None:
    generator = random.Random(3)
    calibrator = Calibrator()

    for _ in range(1000):
        stated = generator.uniform(0.05, 0.95)
        true = stated**2
        calibrator.observe(one_guess(stated), 0.0, [1 if generator.random() < true else 99])
    for stated in (0.1, 0.3, 0.5, 0.7, 0.9):
        assert first(calibrator, one_guess(stated)) == pytest.approx(stated**2, abs=0.15)
    record = calibrator.reliability()["mine"]
    assert record.judged == 1000
    assert record.gap < 0.05
    assert math.isclose(record.expected, record.accepted, rel_tol=0.1)


def log_loss(predicted: Seq[float], accepted: Seq[bool]) -> float:
    return -sum(
        math.log(probability if is_accepted else 1.0 - probability)
        for probability, is_accepted in zip(predicted, accepted, strict=True)
    )


def test_learning_costs_little_where_priors_are_right() -> None:
    generator = random.Random(8)
    calibrator = Calibrator()
    stated = [generator.uniform(0.05, 0.95) for _ in range(600)]
    accepted = [generator.random() < probability for probability in stated]
    predicted = []
    for probability, is_accepted in zip(stated, accepted, strict=True):
        tree = one_guess(probability)
        predicted.append(first(calibrator, tree))
        calibrator.observe(tree, 0.0, [1 if is_accepted else 99])
    assert log_loss(predicted, accepted) < 1.02 * log_loss(stated, accepted)


def test_at_its_word_means_unchanged() -> None:
    assert AT_ITS_WORD.log_odds(1.5, depth=7) == 1.5


# --- kept -----------------------------------------------------------------------------------------


def test_counts_come_back_as_they_were() -> None:
    """And go on being counted alike; what was never judged is not kept."""
    calibrator = Calibrator()
    trees = [
        DraftTree((1, 2, 3), (-1, 0, -1), (0.7, 0.4, 0.2), "suffix", ((2.0,), (5.0,), (1.0,))),
        DraftTree.chain((1, 5), 0.5, "datastore:some/path"),
    ]
    for tree in trees:
        for temperature in (0.0, 0.5, 1.0):
            for _ in range(30):
                calibrator.observe(tree, temperature, (1, 2, 7))
    calibrator.acceptance(DraftTree.chain((1,), 0.5, "unheard"), 0.0)
    values = json.loads(json.dumps(calibrator.to_json()))
    again = Calibrator.from_json(values)
    assert {each["method"] for each in values} == {"suffix", "datastore"}
    assert again.reliability() == {}
    for _ in range(2):
        for tree in trees:
            for temperature in (0.0, 0.5, 1.0):
                before = calibrator.acceptance(tree, temperature)
                assert again.acceptance(tree, temperature) == pytest.approx(before, rel=1e-12)
                assert before != Calibrator().acceptance(tree, temperature)
                for each in (calibrator, again):
                    each.observe(tree, temperature, (3, 1))
