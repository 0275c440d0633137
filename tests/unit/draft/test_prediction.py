from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
from hypothesis import given, strategies as st

from outdraft.draft.prediction import (
    _MAX_MATCH,
    _SURE_MATCH,
    Follower,
    Place,
    Prediction,
    agreement_after,
    branches,
)
from outdraft.interfaces import TargetModel
from outdraft.models.table import TableTarget
from outdraft.sequence import Sequence
from outdraft.types import Budget, DraftTree
from support.runs import run
from support.tiny_models import tiny_target
from support.toys import make_sequence

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=30)


def positions(prediction: Seq[int], *steps: Seq[int]) -> list[int]:
    """Where the answer may go on, after steps that each committed some tokens."""
    follower, new_ids = Follower(prediction), []
    places: list[Place] = []
    for step in steps:
        new_ids += step
        places = follower.follow(new_ids)
    return [place.position for place in places]


def expecting(prediction: Seq[int], prompt: Seq[int] = (1, 2, 3), **more: object) -> Sequence:
    sequence = make_sequence(prompt, eos_ids=[], **more)  # type: ignore[arg-type]
    sequence.prediction_ids = tuple(prediction)
    return sequence


def guess(sequence: Sequence, max_nodes: int = 15, max_depth: int = 99) -> DraftTree:
    (tree,) = Prediction().propose([sequence], Budget(max_nodes, (max_depth,)))
    return tree


def steps_to_write(answer: Seq[int], prediction: Seq[int], max_nodes: int = 15) -> int:
    """Passes of a target that is known to write this answer, the prompt's included."""
    drafter, sequence = Prediction(), expecting(prediction, max_new_tokens=len(answer))
    sequence.append(answer[0])
    steps = 1
    while sequence.remaining > 0:
        (tree,) = drafter.propose([sequence], Budget(max_nodes, (sequence.remaining - 1,)))
        keys = zip(tree.parents, tree.token_ids, strict=True)
        children = {key: node for node, key in enumerate(keys)}
        node: int | None = -1
        while node is not None and sequence.remaining > 0:
            token_id = answer[len(sequence.new_ids)]
            sequence.append(token_id)
            node = children.get((node, token_id))
        steps += 1
    return steps


# --- where the answer stands ----------------------------------------------------------------------


def test_an_answer_that_agrees_has_one_place() -> None:
    assert positions([1, 2, 3, 4, 5], [1]) == [1]
    assert positions([1, 2, 3, 4, 5], [1], [2, 3], [4]) == [4]


def test_before_the_first_token_the_place_is_the_start() -> None:
    assert positions([1, 2, 3], []) == [0]


def test_nothing_follows_the_end_of_the_prediction() -> None:
    assert positions([1, 2, 3], [1, 2, 3]) == []
    assert positions([1, 2, 3], [1, 2, 3, 4]) == []


@pytest.mark.parametrize("num_new", [1, 2, 3])
def test_one_token_may_have_replaced_each_or_all_were_inserted(num_new: int) -> None:
    new = list(range(90, 90 + num_new))
    assert positions([1, 2, 3, 4, 5, 6], [1, 2], new) == [2 + num_new, 2]


def test_an_answer_that_starts_otherwise_may_go_on_from_the_start() -> None:
    assert positions([1, 2, 3, 4], [90]) == [1, 0]


@pytest.mark.parametrize("num_left_out", [1, 2, 5, 9])
def test_tokens_left_out_are_skipped(num_left_out: int) -> None:
    prediction = list(range(20))
    assert positions(prediction, [0, 1, 2], [3 + num_left_out])[0] == 4 + num_left_out


@pytest.mark.parametrize("num_new", [1, 4, 40])
def test_after_an_insertion_of_any_length_the_old_text_is_found_again(num_new: int) -> None:
    inserted = list(range(100, 100 + num_new))
    assert positions([1, 2, 3, 4, 5], [1, 2], inserted)[-1] == 2
    assert positions([1, 2, 3, 4, 5], [1, 2], inserted, [3])[0] == 3


def test_a_long_match_is_trusted_alone_and_the_old_place_given_up() -> None:
    prediction = list(range(30))
    moved = prediction[15 : 15 + _SURE_MATCH]
    assert len(positions(prediction, [0, 1], moved[:-1])) > 1
    assert positions(prediction, [0, 1], moved) == [15 + _SURE_MATCH]
    assert positions(prediction, [0, 1], moved, prediction[15 + _SURE_MATCH : 22]) == [22]


def test_of_equal_matches_the_nearest_behind_the_old_place_counts() -> None:
    assert positions([9, 7, 1, 2, 3, 9, 4, 9, 5], [7, 1, 2], [9])[0] == 1
    assert positions([7, 1, 2, 3, 9, 4, 9, 5], [7, 1, 2], [9])[0] == 5
    assert positions([9, 4, 7, 1, 2, 3], [9, 4, 7, 1], [9])[0] == 1


def test_a_longer_match_beats_a_nearer_one() -> None:
    assert positions([7, 1, 2, 9, 4, 8, 9, 5], [7, 1], [8, 9])[0] == 7


def slow_longest_match(prediction: Seq[int], new_ids: Seq[int], position: int) -> tuple[int, int]:
    """Tries every place and every length; returns place and length."""
    found = [
        (length, -((end - position) % (len(prediction) + 1)), end)
        for length in range(1, min(len(new_ids), _MAX_MATCH) + 1)
        for end in range(length, len(prediction) + 1)
        if list(prediction[end - length : end]) == list(new_ids[-length:])
    ]
    length, _, end = max(found, default=(0, 0, position))
    return end, length


@given(TEXTS, TEXTS, st.integers(0, 30))
def test_the_match_is_the_longest_and_of_these_the_nearest(
    prediction: list[int], new_ids: list[int], position: int
) -> None:
    follower = Follower(prediction)
    follower.position = min(position, len(prediction))
    match = follower.longest_match(new_ids)
    assert match[:2] == slow_longest_match(prediction, new_ids, follower.position)


@given(TEXTS, TEXTS, st.data())
def test_it_does_not_matter_how_many_tokens_come_at_once_while_they_agree(
    prediction: list[int], tail: list[int], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(prediction)))
    at_once, by_one = Follower(prediction), Follower(prediction)
    for end in range(1, cut + 1):
        by_one.follow(prediction[:end])
    assert by_one.follow(prediction[:cut]) == at_once.follow(prediction[:cut])


# --- the tree -------------------------------------------------------------------------------------


def test_a_sure_place_gives_a_chain_within_the_budget() -> None:
    tree = guess(expecting(range(10, 40)), max_nodes=6)
    assert tree.token_ids == tuple(range(10, 16))
    assert tree.parents == tuple(range(-1, 5))
    assert len(guess(expecting(range(10, 40)), max_depth=4)) == 4


def test_several_places_share_the_rows_and_the_likelier_gets_more() -> None:
    sequence = expecting(range(10, 40))
    for token_id in (10, 11, 20):
        sequence.append(token_id)
    tree = guess(sequence, max_nodes=25)
    first = {tree.token_ids[node] for node, parent in enumerate(tree.parents) if parent == -1}
    assert first == {21, 13, 12}
    assert len(tree) == 25
    assert sum(token_id > 20 for token_id in tree.token_ids) == 19  # all there is of the likelier


def test_places_that_begin_alike_are_joined() -> None:
    prediction = Follower([1, 2, 3, 1, 2, 4]).prediction
    tree = branches(prediction, [Place(0, 1, 0.5), Place(3, 1, 0.4)], 15, 15)
    after_one_two = {tree.token_ids[node] for node in range(len(tree)) if tree.parents[node] == 1}
    assert tree.token_ids[:2] == (1, 2)
    assert tree.parents[:2] == (-1, 0)
    assert after_one_two == {3, 4}
    assert len(tree) == 6 + 1


@given(TEXTS, TEXTS, st.integers(1, 12), st.integers(1, 12))
def test_every_guess_stands_in_the_prediction_and_the_budget_is_kept(
    prediction: list[int], new_ids: list[int], max_nodes: int, max_depth: int
) -> None:
    sequence = expecting(prediction)
    for token_id in new_ids:
        sequence.append(token_id)
    tree = guess(sequence, max_nodes, max_depth)
    assert len(tree) <= max_nodes
    assert max(tree.depths(), default=0) <= max_depth
    paths: list[list[int]] = []
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else []), token_id])
        size = len(paths[-1])
        assert any(prediction[i : i + size] == paths[-1] for i in range(len(prediction)))


@given(TEXTS, TEXTS)
def test_nodes_come_by_falling_path_probability(prediction: list[int], new_ids: list[int]) -> None:
    sequence = expecting(prediction)
    for token_id in new_ids:
        sequence.append(token_id)
    probs = guess(sequence).path_probs()
    assert probs == pytest.approx(sorted(probs, reverse=True))


def test_the_longer_the_agreement_the_surer_the_guess() -> None:
    assert agreement_after(1) < agreement_after(2) < agreement_after(8) < 1.0
    sequence = expecting(range(10, 40))
    sequence.append(10)
    early = guess(sequence)
    sequence.append(11)
    assert guess(sequence).acceptance[0] > early.acceptance[0]
    assert guess(sequence).scores[0] == (2.0, 0.0)


def test_without_a_prediction_nothing_is_guessed() -> None:
    assert len(guess(expecting([]))) == 0


# --- what it brings -------------------------------------------------------------------------------

ANSWER = list(range(1000, 1128))


def test_a_right_prediction_costs_one_step_per_budget() -> None:
    assert steps_to_write(ANSWER, ANSWER) == 1 + 8


@pytest.mark.parametrize("places", [(60, 61, 62), (40, 60, 80)])
def test_three_changed_words_cost_few_steps(places: tuple[int, ...]) -> None:
    prediction = [0 if i in places else token_id for i, token_id in enumerate(ANSWER)]
    assert len(ANSWER) / steps_to_write(ANSWER, prediction) > 8


@pytest.mark.parametrize("num_left_out", [1, 3, 40])
def test_text_that_the_answer_leaves_out_costs_two_steps_at_most(num_left_out: int) -> None:
    prediction = [*ANSWER[:50], *range(num_left_out), *ANSWER[50:]]
    assert steps_to_write(ANSWER, prediction) <= 1 + 8 + 2


@pytest.mark.parametrize("num_inserted", [1, 3, 40])
def test_text_that_the_answer_inserts_costs_its_own_tokens_and_two_steps(num_inserted: int) -> None:
    prediction = [*ANSWER[:50], *ANSWER[50 + num_inserted :]]
    assert steps_to_write(ANSWER, prediction) <= 1 + 8 + 2 + num_inserted


# --- the text stays the plain one -----------------------------------------------------------------


def predictions_of(answer: Seq[int]) -> list[list[int]]:
    """Right, wrong here and there, all wrong, shifted, much too long, none."""
    changed = [token_id if i % 7 else 0 for i, token_id in enumerate(answer)]
    return [
        [*answer],
        changed,
        [*reversed(answer)],
        [5, 5, *answer[:9], *answer[14:]],
        [*answer] * 20,
        [],
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("max_batch", [1, 3, 6])
@pytest.mark.parametrize("name", ["table", "llama"])
def test_no_prediction_changes_the_text(
    table: TableTarget, name: str, max_batch: int, temperature: float
) -> None:
    target: TargetModel = table if name == "table" else tiny_target("llama")
    more = {"temperature": temperature, "max_new_tokens": 30}
    plain = expecting([], **more)
    run(target, Prediction(), [plain])
    sequences = [
        expecting(prediction, request_id=i, **more)
        for i, prediction in enumerate(predictions_of(plain.new_ids))
    ]
    drafter = Prediction()
    run(target, drafter, sequences, max_batch=max_batch)
    assert {tuple(sequence.new_ids) for sequence in sequences} == {tuple(plain.new_ids)}
    assert sequences[0].stats.steps <= 2
    assert sum(sequence.stats.accepted for sequence in sequences[1:]) > 0
    assert sequences[-1].stats.drafted == 0
    assert drafter.memory_bytes == 0


def test_the_memory_is_that_of_the_predictions_of_running_requests() -> None:
    drafter = Prediction()
    batch = [expecting(range(100), request_id=i) for i in range(3)]
    drafter.propose(batch, Budget(4, (4, 4, 4)))
    assert drafter.memory_bytes == 3 * 100 * 8
    drafter.finish(batch[1])
    assert drafter.memory_bytes == 2 * 100 * 8
