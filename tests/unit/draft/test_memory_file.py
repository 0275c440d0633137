from __future__ import annotations

import stat
from pathlib import Path

import pytest

from outdraft.draft.memory_file import MemoryFile, check_namespace
from outdraft.errors import DrafterError
from support.stores import vocabulary_of

REQUESTS = [[1, 2, 3], [], [70_000], [5, 5]]


@pytest.fixture
def file(tmp_path: Path) -> MemoryFile:
    return MemoryFile(tmp_path / "deep" / "x.tokens", vocabulary_of(9))


def test_what_is_saved_is_loaded(file: MemoryFile) -> None:
    file.save(REQUESTS)
    assert file.load() == REQUESTS
    file.save([[4]])
    assert file.load() == [[4]]
    file.save([])
    assert file.load() == []


def test_before_the_first_save_there_is_nothing(file: MemoryFile) -> None:
    assert file.load() == []
    assert not file.path.parent.exists()


def test_it_is_private_and_leaves_nothing_else(file: MemoryFile) -> None:
    file.save(REQUESTS)
    assert list(file.path.parent.iterdir()) == [file.path]
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_another_tokenizer_is_refused(file: MemoryFile) -> None:
    file.save(REQUESTS)
    other = MemoryFile(file.path, vocabulary_of(8, "other"))
    with pytest.raises(DrafterError, match=r"'toy' \(9 ids.*'other' \(8 ids.*another namespace"):
        other.load()


@pytest.mark.parametrize("position", [-1, 120])
def test_damage_is_noticed(file: MemoryFile, position: int) -> None:
    file.save(REQUESTS)
    data = bytearray(file.path.read_bytes())
    data[position] ^= 1
    file.path.write_bytes(data)
    with pytest.raises(DrafterError, match=r"x\.tokens is damaged; remove the file"):
        file.load()


@pytest.mark.parametrize("data", [b"", b"something else", b"outdraft memory 2\nx\n{}\n"])
def test_something_else_is_no_memory(file: MemoryFile, data: bytes) -> None:
    file.path.parent.mkdir()
    file.path.write_bytes(data)
    with pytest.raises(DrafterError, match="is no memory that this outdraft can read"):
        file.load()


@pytest.mark.parametrize("name", ["a", "team-7", "9.x_y", "ä", "x" * 64])
def test_a_namespace_is_a_name_for_a_file(name: str) -> None:
    assert check_namespace(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "a/b", "a\\b", "a b", "-a", "x" * 65, "a\n"])
def test_anything_else_is_no_namespace(name: str) -> None:
    with pytest.raises(DrafterError, match="is no namespace for a memory"):
        check_namespace(name)
