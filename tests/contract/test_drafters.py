"""What every drafter has to hold; a new one is tested by being registered."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
from hypothesis import given, strategies as st

from contract.drafters import ADVERSE, ALL, REGISTERED
from outdraft.commit import append_tokens
from outdraft.interfaces import Drafter
from outdraft.models.table import TableTarget
from outdraft.sequence import Sequence
from outdraft.types import Budget, DraftTree
from plain import Plain, decode_plainly, reader_of_target
from support.runs import run
from support.toys import EOS, decode_letters, make_sequence

every_drafter = pytest.mark.parametrize("name", ALL)
every_registered_drafter = pytest.mark.parametrize("name", REGISTERED)

# Each index is wide enough to be a text of its own, so that a mix-up shows.
TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=30)
PROMPTS = [[1, 2, 3], [4, 4, 4, 4, 4], [5, 6, 7, 8, 5, 6, 7, 8, 5], [9], [1, 2, 3, 1, 2]]


def registered(name: str) -> Drafter:
    return REGISTERED[name](TableTarget(), {})


def propose(
    drafter: Drafter, batch: Seq[Sequence], max_nodes: int = 8, max_depth: int = 6
) -> list[DraftTree]:
    return drafter.propose(batch, Budget(max_nodes, (max_depth,) * len(batch)))


def write(drafter: Drafter, sequence: Sequence, token_ids: Seq[int]) -> None:
    """Commits tokens as a step does."""
    drafter.observe(sequence, append_tokens(sequence, token_ids, ("plain",) * len(token_ids)))


def endless(prompt_ids: Seq[int], request_id: int = 0) -> Sequence:
    return make_sequence(prompt_ids, request_id=request_id, eos_ids=[], max_new_tokens=1000)


# --- what they propose ----------------------------------------------------------------------------


@every_registered_drafter
def test_there_is_one_tree_per_sequence_in_their_order(name: str) -> None:
    batch = [endless(prompt, i) for i, prompt in enumerate(PROMPTS)]
    together = propose(registered(name), batch)
    assert together == [propose(registered(name), [sequence])[0] for sequence in batch]


@every_registered_drafter
def test_an_empty_batch_gets_no_trees(name: str) -> None:
    assert propose(registered(name), []) == []


@every_registered_drafter
@given(text=TEXTS, max_nodes=st.integers(0, 12), max_depth=st.integers(0, 12))
def test_the_budget_is_kept(name: str, text: list[int], max_nodes: int, max_depth: int) -> None:
    (tree,) = propose(registered(name), [endless(text)], max_nodes, max_depth)
    assert len(tree) <= max_nodes
    assert max(tree.depths(), default=0) <= max_depth


@every_registered_drafter
def test_each_sequence_of_a_batch_has_a_depth_of_its_own(name: str) -> None:
    batch = [endless(PROMPTS[1], i) for i in range(3)]
    trees = registered(name).propose(batch, Budget(8, (0, 2, 5)))
    depths = [max(tree.depths(), default=0) for tree in trees]
    assert all(depth <= limit for depth, limit in zip(depths, (0, 2, 5), strict=True))


@every_registered_drafter
@given(text=TEXTS)
def test_guesses_are_tokens_of_the_target(name: str, text: list[int]) -> None:
    (tree,) = propose(registered(name), [endless(text)])
    assert all(0 <= token_id < TableTarget().vocab_size for token_id in tree.token_ids)


@every_registered_drafter
@given(text=TEXTS)
def test_scores_are_as_many_as_they_have_names(name: str, text: list[int]) -> None:
    drafter = registered(name)
    (tree,) = propose(drafter, [endless(text)])
    if drafter.score_names and tree:
        assert {len(scores) for scores in tree.scores} == {len(drafter.score_names)}


@every_registered_drafter
@given(text=TEXTS)
def test_asking_twice_gives_the_same_answer(name: str, text: list[int]) -> None:
    drafter, sequence = registered(name), endless(text)
    assert propose(drafter, [sequence]) == propose(drafter, [sequence])


@every_registered_drafter
def test_asking_does_not_change_the_sequence(name: str) -> None:
    sequence = endless(PROMPTS[2])
    propose(registered(name), [sequence])
    assert (sequence.ids, sequence.text, sequence.finish_reason) == (PROMPTS[2], "", None)


# --- what they remember ---------------------------------------------------------------------------


@every_registered_drafter
@given(text=TEXTS, data=st.data())
def test_guesses_depend_on_the_text_and_not_on_how_it_came_about(
    name: str, text: list[int], data: st.DataObject
) -> None:
    followed, sequence = registered(name), endless(text[:1])
    position = 1
    while position < len(text):
        if data.draw(st.booleans()):
            propose(followed, [sequence])
        size = data.draw(st.integers(1, 5))
        write(followed, sequence, text[position : position + size])
        position += size
    (late,) = propose(registered(name), [endless(text)])
    assert propose(followed, [sequence]) == [late]


@every_registered_drafter
@given(first=TEXTS, second=TEXTS)
def test_requests_that_take_turns_do_not_mix(
    name: str, first: list[int], second: list[int]
) -> None:
    drafter = registered(name)
    batch = [endless(first[:1], 0), endless(second[:1], 1)]
    for i in range(1, max(len(first), len(second))):
        propose(drafter, batch)
        for sequence, text in zip(batch, (first, second), strict=True):
            if i < len(text):
                write(drafter, sequence, text[i : i + 1])
    alone = [propose(registered(name), [endless(text)])[0] for text in (first, second)]
    assert propose(drafter, batch) == alone


@every_registered_drafter
def test_a_finished_request_is_forgotten(name: str) -> None:
    drafter = registered(name)
    sequence = endless(PROMPTS[2])
    propose(drafter, [sequence])
    write(drafter, sequence, [6, 7, 8])
    drafter.finish(sequence)
    again = endless([2, 2, 1, 2])  # a new request under an old number
    assert propose(drafter, [again]) == propose(registered(name), [endless([2, 2, 1, 2])])


@every_registered_drafter
def test_requests_it_never_saw_can_be_finished(name: str) -> None:
    drafter = registered(name)
    drafter.finish(endless([1]))
    assert len(propose(drafter, [endless(PROMPTS[1])])) == 1


@every_registered_drafter
def test_memory_does_not_grow_with_the_number_of_finished_requests(name: str) -> None:
    drafter, sizes = registered(name), []
    for round_ in range(20):
        for i in range(10):
            sequence = endless(PROMPTS[i % 5], request_id=10 * round_ + i)
            propose(drafter, [sequence])
            write(drafter, sequence, [1, 2, 3])
            drafter.finish(sequence)
        sizes.append((drafter.memory_bytes, len(vars(drafter).get("_indexes", ()))))
    assert sizes[-1] == sizes[9]


# --- what they cannot do --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain_runs(table: TableTarget) -> dict[tuple[int, ...], Plain]:
    settings = make_sequence(max_new_tokens=30).settings
    return {
        tuple(prompt): decode_plainly(
            reader_of_target(table),
            prompt,
            settings,
            seed=0,
            eos_ids=[EOS],
            decode=decode_letters,
        )
        for prompt in PROMPTS
    }


@every_drafter
@pytest.mark.parametrize("max_draft_nodes", [0, 1, 6])
def test_they_cannot_change_a_token(
    table: TableTarget,
    plain_runs: dict[tuple[int, ...], Plain],
    name: str,
    max_draft_nodes: int,
) -> None:
    texts = {prompt: plain.token_ids for prompt, plain in plain_runs.items()}
    sequences = [
        make_sequence(prompt, request_id=i, max_new_tokens=30) for i, prompt in enumerate(PROMPTS)
    ]
    run(table, ALL[name](table, texts), sequences, max_draft_nodes=max_draft_nodes)
    for sequence, plain in zip(sequences, plain_runs.values(), strict=True):
        assert tuple(sequence.new_ids) == plain.token_ids
        assert sequence.text == plain.text
        assert sequence.finish_reason == plain.finish_reason


@pytest.mark.parametrize("name", ADVERSE)
def test_the_adversaries_are_what_they_say(
    table: TableTarget, plain_runs: dict[tuple[int, ...], Plain], name: str
) -> None:
    texts = {prompt: plain.token_ids for prompt, plain in plain_runs.items()}
    sequences = [
        make_sequence(prompt, request_id=i, max_new_tokens=30) for i, prompt in enumerate(PROMPTS)
    ]
    commits = run(table, ALL[name](table, texts), sequences, max_draft_nodes=6)
    drafted = sum(sequence.stats.drafted for sequence in sequences)
    accepted = sum(sequence.stats.accepted for sequence in sequences)
    steps = commits[len(PROMPTS) :]  # behind the prompt passes
    origins = {origin for commit in steps for origin in commit.origins}
    match name:
        case "AlwaysRight" | "SometimesEmpty":
            assert "corrected" not in origins
            assert ("plain" in origins) == (name == "SometimesEmpty")
            assert max(sequence.stats.tokens_per_step for sequence in sequences) > 2
        case "AlwaysWrong":
            assert accepted == 0 < drafted
        case "Empty":
            assert drafted == 0
        case _:
            assert 0 < accepted < drafted
