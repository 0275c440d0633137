from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from outdraft.draft import DrafterContext, make_drafter
from outdraft.draft.datastore import (
    _MAX_MATCH,
    _MAX_SAMPLES,
    Datastore,
    DatastoreDrafter,
    Match,
    TextEnd,
)
from outdraft.draft.datastore_file import encode
from outdraft.errors import DrafterError
from outdraft.models.table import TableTarget
from outdraft.text.vocabulary import Vocabulary
from outdraft.types import Budget, DraftTree
from support.stores import Words, vocabulary_of, write_datastore
from support.toys import LetterTokenizer, make_sequence

VOCAB = 16
TOKENS = st.integers(0, 3)
DOCUMENTS = st.lists(st.lists(TOKENS, max_size=15), min_size=1, max_size=5).filter(any)
STEPS = st.lists(st.lists(TOKENS, min_size=1, max_size=4), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "x.datastore"


def drafter_of(
    path: Path, documents: list[list[int]], shard_tokens: int = 1000
) -> DatastoreDrafter:
    """The documents in a new file of that name; one that is still open stays as it is."""
    vocabulary = vocabulary_of(VOCAB)
    write_datastore(path, documents, vocabulary=vocabulary, shard_tokens=shard_tokens)
    return DatastoreDrafter(path, vocabulary)


def guess(
    drafter: DatastoreDrafter, token_ids: list[int], max_nodes: int = 20, max_depth: int = 20
) -> DraftTree:
    index = drafter.new_index()
    index.extend(token_ids)
    return drafter.guess(index, max_nodes, max_depth)


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token_id))
    return paths


def pieces_of(documents: list[list[int]], shard_tokens: int) -> list[list[list[int]]]:
    """Per shard, the runs of tokens between its separators."""
    stream = [token for document in documents if document for token in (*document, -1)]
    pieces = []
    for i in range(0, len(stream), shard_tokens):
        groups = itertools.groupby(stream[i : i + shard_tokens], key=lambda token: token < 0)
        pieces.append([list(run) for is_separator, run in groups if not is_separator])
    return [shard for shard in pieces if shard]


def followers(runs: list[list[int]], ending: tuple[int, ...]) -> list[int | None]:
    """What stands behind each occurrence; `None` where a run ends."""
    size = len(ending)
    return [
        (run[i + size] if i + size < len(run) else None)
        for run in runs
        for i in range(len(run) - size + 1)
        if tuple(run[i : i + size]) == ending
    ]


def longest_known(runs: list[list[int]], token_ids: list[int]) -> tuple[int, ...]:
    for start in range(max(0, len(token_ids) - _MAX_MATCH), len(token_ids)):
        if followers(runs, tuple(token_ids[start:])):
            return tuple(token_ids[start:])
    return ()


# --- look-ups -------------------------------------------------------------------------------------


@given(DOCUMENTS, STEPS, st.integers(1, 30))
def test_the_longest_match_is_found_and_followed(
    path: Path, documents: list[list[int]], steps: list[list[int]], shard_tokens: int
) -> None:
    write_datastore(path, documents, shard_tokens=shard_tokens)
    datastore = Datastore(path)
    shards = pieces_of(documents, shard_tokens)
    assert len(datastore.shards) == len(shards)
    end, token_ids = TextEnd(datastore), []
    for step in steps:
        end.extend(step)
        token_ids += step
        for runs, match in zip(shards, end.matches, strict=True):
            ending = longest_known(runs, token_ids)
            assert match.length == len(ending)
            if ending:
                assert match.num_places == len(followers(runs, ending))


@given(DOCUMENTS, st.lists(TOKENS, min_size=1, max_size=6))
def test_what_stands_behind_a_match_comes_in_sorted_order(
    path: Path, documents: list[list[int]], pattern: list[int]
) -> None:
    write_datastore(path, documents)
    (shard,) = Datastore(path).shards
    match = shard.narrow(shard.all, encode(pattern, 1))
    expected = followers(documents, tuple(pattern))
    if match is None:
        assert not expected
        return
    behind = [text[0] for text in shard.continuations(match, match.num_places, 1)]
    assert behind == sorted(0xFF if token is None else token for token in expected)


def test_a_match_grows_beyond_what_a_look_up_takes(path: Path) -> None:
    drafter = drafter_of(path, [[1, 2] * _MAX_MATCH + [3], [4]])
    end = drafter.new_index()
    end.extend([1, 2] * (_MAX_MATCH // 2))
    assert end.matches[0].length == _MAX_MATCH
    end.extend([1, 2])
    assert end.matches[0] == Match(*end.matches[0][:2], _MAX_MATCH + 2)
    end.extend([4])
    assert end.matches[0].length == 1


def test_tokens_of_a_larger_vocabulary_interrupt_the_text(path: Path) -> None:
    drafter = drafter_of(path, [[1, 2, 3, 1, 2, 3]])
    end = drafter.new_index()
    end.extend([1, 2])
    end.extend([VOCAB])
    assert end.matches[0].length == 0
    end.extend([255, 1, 70_000, 2, 3])
    assert end.matches[0].length == 2
    end.extend([1])
    assert end.matches[0].length == 3


def test_tokens_that_came_together_with_too_many_are_no_neighbours_of_older_ones(
    path: Path,
) -> None:
    drafter = drafter_of(path, [[1, 2, *[3] * _MAX_MATCH]])
    end = drafter.new_index()
    end.extend([1, 2])
    end.extend([4] * 5 + [3] * _MAX_MATCH)
    assert end.matches[0].length == _MAX_MATCH


def test_a_look_up_touches_few_places(path: Path) -> None:
    """A binary search looks at twenty places in a million; a search of all would at each."""
    documents = [[(i * i + i // 7) % VOCAB for i in range(20_000)]]
    drafter = drafter_of(path, documents, shard_tokens=30_000)
    end = drafter.new_index()
    end.extend(documents[0][:500])
    (shard,) = drafter._datastore.shards
    looked_at: list[int] = []

    class Watched:
        def __init__(self, suffixes: memoryview) -> None:
            self._suffixes = suffixes

        def __len__(self) -> int:
            return len(self._suffixes)

        def __getitem__(self, place: int) -> int:
            looked_at.append(place)
            return self._suffixes[place]

    shard._suffixes = Watched(shard._suffixes)
    end.extend(documents[0][500:502])
    following = len(looked_at)
    assert following < 2 * 2 * 16
    end.extend([7, 7, 7])
    assert len(looked_at) - following < 8 * 2 * 17
    drafter.guess(end, 15, 15)
    assert len(looked_at) - following < 8 * 2 * 17 + _MAX_SAMPLES + 1


# --- guesses --------------------------------------------------------------------------------------


@given(DOCUMENTS, st.lists(TOKENS, min_size=1, max_size=20), st.integers(1, 30))
def test_the_first_guesses_are_what_followed_the_longest_match_by_counts(
    path: Path, documents: list[list[int]], token_ids: list[int], shard_tokens: int
) -> None:
    drafter = drafter_of(path, documents, shard_tokens)
    tree = guess(drafter, token_ids, max_depth=1)
    shards = pieces_of(documents, shard_tokens)
    endings = [longest_known(runs, token_ids) for runs in shards]
    ending = max(endings, key=len)
    behind = [
        token
        for runs, known in zip(shards, endings, strict=True)
        if ending and known == ending
        for token in followers(runs, ending)
    ]
    counts = Counter(behind)
    shares = {token: count / len(behind) for token, count in counts.items() if token is not None}
    found = {token: score[1] for token, score in zip(tree.token_ids, tree.scores, strict=True)}
    assert found == pytest.approx(shares)
    assert all(score[0] == len(ending) for score in tree.scores)


@given(DOCUMENTS, st.lists(TOKENS, min_size=1, max_size=20), st.integers(1, 30))
def test_every_path_follows_the_match_somewhere(
    path: Path, documents: list[list[int]], token_ids: list[int], shard_tokens: int
) -> None:
    drafter = drafter_of(path, documents, shard_tokens)
    runs = [run for shard in pieces_of(documents, shard_tokens) for run in shard]
    tree = guess(drafter, token_ids, max_nodes=12, max_depth=4)
    assert len(tree) <= 12
    assert max(tree.depths(), default=0) <= 4
    for tree_path, (match_len, _) in zip(paths_of(tree), tree.scores, strict=True):
        matched = int(match_len) - len(tree_path) + 1
        assert matched >= 1
        assert followers(runs, (*token_ids[len(token_ids) - matched :], *tree_path))


def test_documents_do_not_run_into_each_other(path: Path) -> None:
    drafter = drafter_of(path, [[1, 2, 3], [4, 5, 6]])
    assert paths_of(guess(drafter, [1])) == [(2,), (2, 3)]
    assert len(guess(drafter, [1, 2, 3])) == 0
    assert paths_of(guess(drafter, [1, 2, 3, 4])) == [(5,), (5, 6)]


def test_a_longer_match_is_trusted_more(path: Path) -> None:
    drafter = drafter_of(path, [[9, 8, 7, 1, 2], [1, 3], [6, 1, 4]])
    assert guess(drafter, [9, 8, 7, 1], max_depth=1).acceptance == pytest.approx([1 / 1.5])
    assert guess(drafter, [6, 1], max_depth=1).acceptance == pytest.approx([1 / 2])
    assert guess(drafter, [5, 1], max_depth=1).acceptance == pytest.approx([1 / 5] * 3)


def test_of_very_many_places_some_are_read_and_stand_for_all(path: Path) -> None:
    drafter = drafter_of(path, [[1, 2]] * 300 + [[1, 3]] * 100)
    tree = guess(drafter, [1], max_depth=1)
    assert tree.token_ids == (2, 3)
    assert [share for _, share in tree.scores] == pytest.approx([0.75, 0.25], abs=0.03)


def test_shards_count_by_how_often_they_have_it(path: Path) -> None:
    documents = [[1, 2]] * 300 + [[1, 3]] * 100
    drafter = drafter_of(path, documents, shard_tokens=200)
    assert len(drafter._datastore.shards) > 4
    tree = guess(drafter, [1], max_depth=1)
    assert [share for _, share in tree.scores] == pytest.approx([0.75, 0.25], abs=0.05)


@pytest.mark.parametrize("token_ids", [[], [7], [1, 7]])
def test_a_text_that_ends_in_nothing_known_gives_no_guess(path: Path, token_ids: list[int]) -> None:
    assert len(guess(drafter_of(path, [[1, 2, 3]]), token_ids)) == 0


def test_requests_do_not_disturb_each_other(path: Path) -> None:
    drafter = drafter_of(path, [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11]])
    batch = [make_sequence([1, 2], request_id=0), make_sequence([7], request_id=1)]
    trees = drafter.propose(batch, Budget(3, (3, 3)))
    assert [tree.token_ids for tree in trees] == [(3, 4, 5), (8, 9, 10)]
    batch[0].append(3)
    drafter.finish(batch[1])
    assert drafter.propose(batch[:1], Budget(2, (5,)))[0].token_ids == (4, 5)


# --- the file -------------------------------------------------------------------------------------


def context(tokenizer: object) -> DrafterContext:
    return DrafterContext(TableTarget(), tokenizer)  # type: ignore[arg-type]


def test_it_is_made_by_its_name_and_path(path: Path) -> None:
    words = Words("a", "b", "c", name="ours")
    write_datastore(path, [[0, 1, 2]], vocabulary=Vocabulary.of(words))
    drafter = make_drafter(f"datastore:{path}", context(words))
    assert drafter.name == f"datastore:{path}"
    other = Words("a", "c", "b", name="theirs")
    with pytest.raises(DrafterError, match=r"tokens of 'ours' \(3 ids.*tokenizer is 'theirs' \(3"):
        make_drafter(f"datastore:{path}", context(other))
    with pytest.raises(DrafterError, match="LetterTokenizer cannot list"):
        make_drafter(f"datastore:{path}", context(LetterTokenizer()))


def test_without_path_or_tokenizer_it_says_what_is_missing(path: Path) -> None:
    with pytest.raises(DrafterError, match=r"as in datastore:PATH; build one with"):
        make_drafter("datastore", context(Words("a")))
    with pytest.raises(DrafterError, match="needs to know the target's tokenizer"):
        make_drafter(f"datastore:{path}")
    with pytest.raises(DrafterError, match="there is no datastore nowhere"):
        make_drafter("datastore:nowhere", context(Words("a")))


def test_a_path_may_begin_at_home(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(path.parent))
    drafter_of(path, [[1, 2]])
    words = Words(*(f"t{token_id}" for token_id in range(VOCAB)))
    assert make_drafter("datastore:~/x.datastore", context(words)).name.endswith("x.datastore")


def test_an_open_datastore_outlives_its_replacement(path: Path) -> None:
    drafter = drafter_of(path, [[1, 2, 3]])
    drafter_of(path, [[1, 4]] * 50)
    assert paths_of(guess(drafter, [1])) == [(2,), (2, 3)]
