from __future__ import annotations

from pathlib import Path

import pytest

from outdraft.draft.datastore_file import (
    HEADER_BYTES,
    Header,
    check_contents,
    is_datastore,
    read_header,
)
from outdraft.errors import DrafterError
from support.stores import vocabulary_of, write_datastore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_datastore(tmp_path / "x.datastore", [[1, 2, 3], [2, 3, 4]])
    return tmp_path / "x.datastore"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_a_missing_file_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(DrafterError, match=r"no datastore .*x; build one .*datastore build"):
        read_header(tmp_path / "x")
    with pytest.raises(DrafterError, match="there is no datastore"):
        read_header(tmp_path)


@pytest.mark.parametrize("data", [b"", b"hello", b"\x00" * 20_000, b"outdraft"])
def test_something_else_is_no_datastore(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    assert not is_datastore(tmp_path / "x")
    with pytest.raises(DrafterError, match="is no datastore"):
        read_header(tmp_path / "x")


def test_another_version_is_named(path: Path) -> None:
    data = path.read_bytes().replace(b"outdraft datastore 1\n", b"outdraft datastore 2\n")
    path.write_bytes(data)
    assert is_datastore(path)
    with pytest.raises(DrafterError, match="'outdraft datastore 2' and this outdraft reads"):
        read_header(path)


def test_a_damaged_header_is_noticed(path: Path) -> None:
    flip(path, path.read_bytes().index(b'"token_bytes"') + 16)
    with pytest.raises(DrafterError, match=r"header of the datastore .* is damaged"):
        read_header(path)


@pytest.mark.parametrize("by", [-1, -200, 1])
def test_a_file_of_another_length_is_refused(path: Path, by: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:by] if by < 0 else data + bytes(by))
    with pytest.raises(DrafterError, match=f"has {len(data) + by} bytes instead of {len(data)}"):
        read_header(path)


def test_damaged_contents_are_found_by_reading_all_of_them(path: Path) -> None:
    check_contents(path)
    flip(path, HEADER_BYTES + 2)
    read_header(path)
    with pytest.raises(DrafterError, match="is damaged: its contents have the checksum"):
        check_contents(path)


def test_too_many_shards_do_not_fit() -> None:
    header = Header(vocabulary_of(4), 1, 1, ((10**6, 10**6),) * 2000, "")
    with pytest.raises(DrafterError, match="2000 shards do not fit"):
        header.pack()


def test_the_folder_is_no_datastore(tmp_path: Path) -> None:
    assert not is_datastore(tmp_path)
    assert not is_datastore(tmp_path / "no")
