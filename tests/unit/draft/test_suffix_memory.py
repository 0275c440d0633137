from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from outdraft.draft import DrafterContext, make_drafter
from outdraft.draft.memory_file import MemoryFile
from outdraft.draft.suffix import _MAX_COUNTED_LINKS, Suffix, SuffixAutomaton
from outdraft.draft.suffix_memory import (
    _MAX_REPLAYED,
    _NUM_GENERATIONS,
    SuffixMemory,
    SuffixWithMemory,
    TextInMemory,
)
from outdraft.errors import DrafterError
from outdraft.models.table import TableTarget
from outdraft.types import Budget, DraftTree
from support.stores import Words, vocabulary_of
from support.toys import LetterTokenizer, make_sequence

TOKENS = st.integers(0, 3)
TEXTS = st.lists(TOKENS, max_size=_MAX_COUNTED_LINKS // 2)
REQUESTS = st.lists(st.lists(TOKENS, min_size=1, max_size=10), max_size=6)


def memory_of(*requests: list[int], max_tokens: int = 1000) -> SuffixMemory:
    memory = SuffixMemory(max_tokens)
    for request in requests:
        memory.add(request)
    return memory


def guess(memory: SuffixMemory, token_ids: list[int], max_depth: int = 5) -> DraftTree:
    drafter = SuffixWithMemory(memory)
    index = drafter.new_index()
    index.extend(token_ids)
    return drafter.guess(index, 20, max_depth)


def first_guesses(tree: DraftTree) -> dict[int, float]:
    return {
        token: acceptance
        for token, parent, acceptance in zip(
            tree.token_ids, tree.parents, tree.acceptance, strict=True
        )
        if parent < 0
    }


def longest_in(requests: list[list[int]], token_ids: list[int]) -> int:
    """Length of the longest ending of a text that stands somewhere in the requests."""
    known = {
        tuple(request[start:end])
        for request in requests
        for start in range(len(request))
        for end in range(start + 1, len(request) + 1)
    }
    sizes = range(len(token_ids), 0, -1)
    return next((size for size in sizes if tuple(token_ids[-size:]) in known), 0)


# --- the memory -----------------------------------------------------------------------------------


@given(REQUESTS, st.integers(1, 60))
def test_it_is_bounded_and_forgets_the_oldest(requests: list[list[int]], max_tokens: int) -> None:
    memory = SuffixMemory(max_tokens)
    room = max(2, max_tokens // _NUM_GENERATIONS)
    for request in requests:
        memory.add(request)
        assert memory.num_tokens <= room * _NUM_GENERATIONS
    kept = [list(request) for request in memory.requests]
    assert kept == [request[-(room - 1) :] for request in requests[len(requests) - len(kept) :]]
    assert memory.num_tokens == sum(len(request) + 1 for request in kept)


def test_it_keeps_at_least_three_quarters_of_what_it_may() -> None:
    memory = SuffixMemory(400)
    for i in range(200):
        memory.add([i] * 9)
        if i >= 40:
            assert 290 <= memory.num_tokens <= 400


def test_memory_is_reported_and_goes_with_what_is_forgotten() -> None:
    drafter = SuffixWithMemory(SuffixMemory(400))
    sizes = []
    for i in range(60):
        sequence = make_sequence([(i * j) % 50 for j in range(20)], request_id=i)
        drafter.propose([sequence], Budget(4, (4,)))
        drafter.finish(sequence)
        sizes.append(drafter.memory_bytes)
    assert 0 < sizes[0] < max(sizes)
    assert max(sizes[30:]) < 1.2 * max(sizes[:30])
    assert any(later < earlier for earlier, later in itertools.pairwise(sizes))
    running = make_sequence([1, 2, 3], request_id=99)
    drafter.propose([running], Budget(4, (4,)))
    assert drafter.memory_bytes > sizes[-1]


# --- where a text stands in it --------------------------------------------------------------------


@given(REQUESTS, TEXTS)
def test_a_text_finds_its_longest_match(requests: list[list[int]], token_ids: list[int]) -> None:
    index = TextInMemory(memory_of(*requests))
    index.extend(token_ids)
    lengths = [place.length for place in index.places[1:]]
    assert max(lengths, default=0) == longest_in(requests, token_ids)


@given(st.lists(st.one_of(TOKENS, st.lists(TOKENS, min_size=1, max_size=8)), max_size=25))
def test_a_place_stays_true_while_the_memory_grows_and_forgets(events: list[object]) -> None:
    """A number is the text's next token, a list another request that ends meanwhile."""
    memory = SuffixMemory(60)
    index = TextInMemory(memory)
    token_ids: list[int] = []
    for event in events:
        if isinstance(event, list):
            memory.add(event)
            continue
        token_ids.append(event)  # type: ignore[arg-type]
        index.extend(token_ids[-1:])
        for place in index.places:
            assert place.length <= len(token_ids)
            if place.length == 0:
                continue
            automaton = place.automaton
            state = 0
            for token_id in token_ids[-place.length :]:
                state = automaton.children[state][token_id]
            assert state == place.state
            assert automaton.lengths[automaton.links[state]] < place.length


def test_a_place_is_corrected_where_the_memory_has_split_its_state() -> None:
    memory = memory_of([9, 1, 2, 3])
    index = TextInMemory(memory)
    index.extend([7, 2])  # known as the end of "9 1 2"
    memory.add([5, 1, 2, 4])  # "1 2" is now told apart from "9 1 2"
    index.extend([4])
    assert index.places[1].length == 2


def test_a_running_request_sees_what_ends_meanwhile() -> None:
    memory = SuffixMemory()
    drafter = SuffixWithMemory(memory)
    running = make_sequence([5, 1, 2, 3], request_id=0)
    other = make_sequence([1, 2, 3, 4, 6], request_id=1)
    assert len(drafter.propose([running], Budget(3, (3,)))[0]) == 0
    drafter.finish(other)
    running.append(4)
    assert drafter.propose([running], Budget(1, (1,)))[0].token_ids == (6,)


def test_only_the_last_tokens_of_a_long_prompt_are_read() -> None:
    request = list(range(2 * _MAX_REPLAYED))
    index = TextInMemory(memory_of(request))
    index.extend(request[:-5])
    assert index.places[1].length == _MAX_REPLAYED
    index.extend(request[-5:-3])
    assert index.places[1].length == _MAX_REPLAYED + 2


# --- guesses --------------------------------------------------------------------------------------


@given(TEXTS)
def test_an_empty_memory_changes_nothing(token_ids: list[int]) -> None:
    own = SuffixAutomaton()
    own.extend(token_ids)
    assert guess(SuffixMemory(), token_ids, 4) == Suffix().guess(own, 20, 4)


def test_what_followed_in_an_earlier_request_is_guessed() -> None:
    tree = guess(memory_of([1, 2, 3, 4, 5]), [9, 1, 2, 3])
    assert tree.token_ids == (4, 5)
    assert [score[0] for score in tree.scores] == [3.0, 4.0]


def test_requests_do_not_run_into_each_other() -> None:
    memory = memory_of([1, 2, 3], [4, 5, 6])
    assert guess(memory, [9, 1, 2]).token_ids == (3,)
    assert len(guess(memory, [9, 1, 2, 3])) == 0


@given(REQUESTS, TEXTS)
def test_the_end_of_a_request_is_no_token(requests: list[list[int]], token_ids: list[int]) -> None:
    assert all(token_id >= 0 for token_id in guess(memory_of(*requests), token_ids).token_ids)


def test_the_requests_own_words_weigh_more() -> None:
    found = first_guesses(guess(memory_of([8, 1, 2]), [8, 1, 3, 8, 1]))
    assert found[3] > found[2] > 0


def test_a_longer_match_in_the_memory_is_heard_first() -> None:
    found = first_guesses(guess(memory_of([6, 7, 8, 1, 2]), [1, 3, 5, 7, 8, 1]))
    assert found[2] > found[3] > 0


def test_memory_and_text_take_turns_along_a_path() -> None:
    """Both know the next token, and each how it goes on from there."""
    tree = guess(memory_of([2, 3, 4, 5]), [1, 2, 3, 9, 1, 2])
    paths: list[tuple[int, ...]] = []
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token_id))
    assert {(3,), (3, 9), (3, 4)} <= set(paths)


def test_drafters_with_their_own_memories_share_nothing() -> None:
    one, other = SuffixWithMemory(SuffixMemory()), SuffixWithMemory(SuffixMemory())
    one.finish(make_sequence([1, 2, 3, 4]))
    asked = make_sequence([2, 3], request_id=7)
    assert len(one.propose([asked], Budget(3, (3,)))[0]) == 1
    assert len(other.propose([asked], Budget(3, (3,)))[0]) == 0


# --- namespaces -----------------------------------------------------------------------------------

WORDS = Words(*"abcdefgh", name="letters")


def open_memory(namespace: str, tokenizer: object = WORDS) -> SuffixWithMemory:
    context = DrafterContext(TableTarget(), tokenizer)  # type: ignore[arg-type]
    drafter = make_drafter(f"suffix:memory={namespace}", context)
    assert isinstance(drafter, SuffixWithMemory)
    return drafter


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTDRAFT_HOME", str(tmp_path))
    return tmp_path


def test_a_namespace_remembers_from_one_process_to_the_next(home: Path) -> None:
    first = open_memory("team")
    assert first.name == "suffix:memory=team"
    first.finish(make_sequence([1, 2, 3, 4]))
    assert (home / "memory" / "team.tokens").is_file()
    later = open_memory("team")
    assert later.memory.requests == first.memory.requests
    asked = make_sequence([2, 3], request_id=7)
    assert later.propose([asked], Budget(3, (3,)))[0].token_ids == (4,)


@pytest.mark.usefixtures("home")
def test_namespaces_are_isolated() -> None:
    open_memory("one").finish(make_sequence([1, 2, 3, 4]))
    assert open_memory("two").memory.requests == []


def test_nothing_is_written_before_a_request_ends(home: Path) -> None:
    open_memory("team").propose([make_sequence()], Budget(3, (3,)))
    assert list(home.iterdir()) == []


@pytest.mark.usefixtures("home")
def test_another_tokenizer_is_refused() -> None:
    open_memory("team").finish(make_sequence([1, 2, 3, 4]))
    with pytest.raises(DrafterError, match=r"team\.tokens holds tokens of 'letters'.*'others'"):
        open_memory("team", Words("x", "y", name="others"))
    with pytest.raises(DrafterError, match="LetterTokenizer cannot list"):
        open_memory("team", LetterTokenizer())


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("suffix:memory=", "'' is no namespace"),
        ("suffix:memory=../x", "'../x' is no namespace"),
        ("suffix:team", "takes nothing or memory=NAMESPACE behind the colon; got 'team'"),
    ],
)
def test_a_spec_that_is_none_is_refused(spec: str, reason: str) -> None:
    context = DrafterContext(TableTarget(), WORDS)  # type: ignore[arg-type]
    with pytest.raises(DrafterError, match=reason):
        make_drafter(spec, context)


def test_a_memory_on_disk_needs_to_know_whose_tokens_they_are() -> None:
    with pytest.raises(DrafterError, match="'suffix:memory' needs to know the target's tokenizer"):
        make_drafter("suffix:memory=team")


def test_a_disk_that_cannot_be_written_to_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    file = MemoryFile(tmp_path / "taken" / "x.tokens", vocabulary_of(9))
    drafter = SuffixWithMemory(SuffixMemory(), file)
    with pytest.warns(UserWarning, match=r"x\.tokens could not be saved \(.*until this process"):
        drafter.finish(make_sequence([1, 2, 3, 4]))
    drafter.finish(make_sequence([5, 6], request_id=1))  # another warning would be an error
    assert [list(request) for request in drafter.memory.requests] == [[1, 2, 3, 4], [5, 6]]
