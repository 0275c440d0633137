from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from outdraft.draft.datastore_build import build_datastore
from outdraft.draft.datastore_file import (
    SUFFIX_DTYPE,
    Header,
    check_contents,
    encode,
    read_header,
    separator,
)
from outdraft.errors import DrafterError
from support.stores import vocabulary_of, write_datastore

DOCUMENTS = st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=5).filter(any)


def parts_of(path: Path, header: Header) -> list[tuple[list[int], list[int]]]:
    """Tokens (separators as -1) and suffixes of each shard, read without the library."""
    data = path.read_bytes()
    width = header.token_bytes
    parts = []
    for region, (num_tokens, num_suffixes) in zip(header.regions(), header.shards, strict=True):
        raw = data[region.tokens_at : region.tokens_at + num_tokens * width]
        words = [raw[i : i + width] for i in range(0, len(raw), width)]
        tokens = [-1 if word == separator(width) else int.from_bytes(word, "big") for word in words]
        suffixes = np.frombuffer(data, SUFFIX_DTYPE, num_suffixes, region.suffixes_at).tolist()
        parts.append((tokens, suffixes))
    return parts


def stream_of(documents: list[list[int]]) -> list[int]:
    return [token for document in documents if document for token in (*document, -1)]


@given(DOCUMENTS, st.integers(1, 40), st.sampled_from([4, 300, 70_000]))
def test_each_shard_holds_its_tokens_and_their_suffixes_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[list[int]],
    shard_tokens: int,
    vocab_size: int,
) -> None:
    path = tmp_path_factory.mktemp("store") / "x"
    documents = [[token * (vocab_size // 4) for token in document] for document in documents]
    vocabulary = vocabulary_of(vocab_size)
    header = write_datastore(path, documents, vocabulary=vocabulary, shard_tokens=shard_tokens)
    assert header == read_header(path) == check_contents(path)
    assert header.vocabulary == vocabulary
    assert header.num_documents == sum(bool(document) for document in documents)
    assert header.num_tokens == sum(len(document) for document in documents)
    stream = stream_of(documents)
    cut = [stream[i : i + shard_tokens] for i in range(0, len(stream), shard_tokens)]
    expected = [[*shard, -1] for shard in cut if set(shard) != {-1}]
    parts = parts_of(path, header)
    assert [tokens for tokens, _ in parts] == expected
    for tokens, suffixes in parts:
        texts = [[vocab_size if token < 0 else token for token in tokens[i:]] for i in suffixes]
        assert texts == sorted(texts)
        assert sorted(suffixes) == [i for i, token in enumerate(tokens) if token >= 0]


@pytest.mark.parametrize(
    ("vocab_size", "width"), [(255, 1), (256, 2), (65_535, 2), (65_536, 3), (262_144, 3)]
)
def test_tokens_are_as_narrow_as_leaves_room_for_the_separator(
    tmp_path: Path, vocab_size: int, width: int
) -> None:
    path = tmp_path / "x"
    last = vocab_size - 1
    header = write_datastore(path, [[0, last]], vocabulary=vocabulary_of(vocab_size))
    assert header.token_bytes == width
    assert parts_of(path, header)[0][0] == [0, last, -1, -1]
    assert encode([last], width) != separator(width)


def test_a_document_may_come_in_pieces(tmp_path: Path) -> None:
    vocabulary = vocabulary_of(9)
    pieces = build_datastore(
        tmp_path / "a", iter([iter([[1, 2], [], [3]]), iter([[4]])]), vocabulary
    )
    whole = write_datastore(tmp_path / "b", [[1, 2, 3], [4]], vocabulary=vocabulary)
    assert pieces == whole
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_sorting_is_announced_shard_by_shard(tmp_path: Path) -> None:
    heard: list[int] = []
    build_datastore(
        tmp_path / "x", [[[1] * 25]], vocabulary_of(9), shard_tokens=10, on_sort=heard.append
    )
    assert heard == [0, 1, 2]


def test_more_suffixes_than_one_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_datastore(path, [[1, 2, 3, 1, 2, 3, 3, 2, 1]])
    before = path.read_bytes()
    monkeypatch.setattr("outdraft.draft.datastore_build._BLOCK", 2)
    write_datastore(path, [[1, 2, 3, 1, 2, 3, 3, 2, 1]])
    assert path.read_bytes() == before


@pytest.mark.parametrize("documents", [[], [[]], [[], []]])
def test_without_tokens_there_is_no_datastore(tmp_path: Path, documents: list[list[int]]) -> None:
    with pytest.raises(DrafterError, match="no tokens to build a datastore from"):
        write_datastore(tmp_path / "x", documents)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("token_id", [-1, 16])
def test_an_id_outside_of_the_vocabulary_is_refused(tmp_path: Path, token_id: int) -> None:
    with pytest.raises(DrafterError, match="are not those of 'toy', which has 16"):
        write_datastore(tmp_path / "x", [[1, token_id]])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shard_tokens", [0, 2**31])
def test_a_shard_has_a_size_that_can_be_sorted(tmp_path: Path, shard_tokens: int) -> None:
    with pytest.raises(DrafterError, match=f"shards of {shard_tokens} tokens cannot be sorted"):
        write_datastore(tmp_path / "x", [[1]], shard_tokens=shard_tokens)


def test_an_older_datastore_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_datastore(path, [[1, 2, 3]])
    before = path.read_bytes()

    def broken() -> Any:
        yield [[1]]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_datastore(path, broken(), vocabulary_of(9))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    write_datastore(path, [[4, 5]])
    assert read_header(path).num_tokens == 2


def test_a_folder_that_is_not_there_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(DrafterError, match=r"could not be written .*No such file"):
        write_datastore(tmp_path / "no" / "x", [[1]])


def test_without_the_sorter_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_import = builtins.__import__

    def without_sorter(name: str, *args: Any, **options: Any) -> Any:
        if name == "pydivsufsort":
            raise ImportError(name)
        return real_import(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without_sorter)
    with pytest.raises(DrafterError, match=r"pip install 'outdraft\[datastore\]'"):
        write_datastore(tmp_path / "x", [[1]])
