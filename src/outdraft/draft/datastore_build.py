"""Building a datastore: tokens stream to disk, shard by shard, each sorted in memory.

The suffixes are sorted by libdivsufsort (Mori 2006; bindings: pydivsufsort), which sorts bytes:
with tokens as big-endian numbers of one width, those byte suffixes that start at a token are the
token suffixes, in the right order.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence as Seq
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from outdraft.draft.datastore_file import (
    HEADER_BYTES,
    SUFFIX_DTYPE,
    Header,
    encode,
    padded,
    separator,
    width_for,
)
from outdraft.errors import DrafterError
from outdraft.text.vocabulary import Vocabulary

SHARD_TOKENS = 1 << 26
"""Sorting takes about 10 bytes of memory per token (15 with more than 65,535 ids): 0.7 to 1 GB."""
_MAX_SHARD_BYTES = 2**31 - 1  # beyond, the sorter counts with 64 bits and takes twice the memory
_BLOCK = 1 << 22

Document = Iterable[Seq[int]]
"""Token ids, piece by piece."""


def build_datastore(
    path: Path,
    documents: Iterable[Document],
    vocabulary: Vocabulary,
    *,
    shard_tokens: int = SHARD_TOKENS,
    on_sort: Callable[[int], None] = lambda _: None,
) -> Header:
    """Writes a datastore, which appears whole or not at all; one that was there is replaced.

    Args:
        vocabulary: of the tokenizer the ids come from.
        shard_tokens: what is sorted at once; a document that spans two shards is cut there.
        on_sort: hears that the sorting of a shard begins.

    Raises:
        DrafterError: pydivsufsort is missing, there are no tokens, an id is outside of the
            vocabulary, a shard is too large for the sorter, or the disk cannot be written to.
    """
    sort = _load_sorter()
    width = width_for(vocabulary.size)
    most = _MAX_SHARD_BYTES // width - 1
    if not 1 <= shard_tokens <= most:
        raise DrafterError(f"shards of {shard_tokens} tokens cannot be sorted; take 1 to {most}")
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with partial.open("wb") as file:
            writer = _Writer(file, width, sort)
            for shard in _shards(_encoded(documents, vocabulary, width), shard_tokens * width):
                writer.add(shard + separator(width), on_sort)
            header = writer.finish(vocabulary)
        partial.replace(path)
    except OSError as error:
        raise DrafterError(f"the datastore {path} could not be written ({error})") from error
    finally:
        partial.unlink(missing_ok=True)
    return header


def _load_sorter() -> Callable[[Any], Any]:
    try:
        from pydivsufsort import divsufsort  # type: ignore[import-untyped]
    except ImportError as error:
        raise DrafterError(
            "building a datastore needs pydivsufsort; run `pip install 'outdraft[datastore]'`"
        ) from error
    return divsufsort  # type: ignore[no-any-return]


def _encoded(documents: Iterable[Document], vocabulary: Vocabulary, width: int) -> Iterator[bytes]:
    """The tokens of all documents, a separator behind each that has any."""
    for document in documents:
        is_empty = True
        for token_ids in document:
            if not len(token_ids):
                continue
            is_empty = False
            if not 0 <= min(token_ids) <= max(token_ids) < vocabulary.size:
                raise DrafterError(
                    f"token ids from {min(token_ids)} to {max(token_ids)} are not those of "
                    f"{vocabulary.name!r}, which has {vocabulary.size}"
                )
            yield encode(token_ids, width)
        if not is_empty:
            yield separator(width)


def _shards(chunks: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    """The same bytes in pieces of `max_bytes`, the last one shorter."""
    parts: list[bytes] = []
    room = max_bytes
    for chunk in chunks:
        while len(chunk) > room:
            yield b"".join([*parts, chunk[:room]])
            chunk = chunk[room:]
            parts, room = [], max_bytes
        parts.append(chunk)
        room -= len(chunk)
    if parts:
        yield b"".join(parts)


class _Writer:
    """Puts shards behind the place of the header, then the header."""

    def __init__(self, file: BinaryIO, width: int, sort: Callable[[Any], Any]) -> None:
        self._file = file
        self._width = width
        self._sort = sort
        self._digest = hashlib.sha256()
        self._shards: list[tuple[int, int]] = []
        self._num_separators = 0
        file.write(bytes(HEADER_BYTES))

    def add(self, shard: bytes, on_sort: Callable[[int], None]) -> None:
        """Writes a shard's tokens, which end with a separator, and their suffixes."""
        tokens = np.frombuffer(shard, dtype=np.uint8)
        is_separator = (tokens.reshape(-1, self._width) == 0xFF).all(axis=1)
        num_tokens = len(is_separator)
        num_separators = int(is_separator.sum())
        self._num_separators += num_separators - 1  # the last one ends the shard
        if num_separators == num_tokens:
            return
        on_sort(len(self._shards))
        self._shards.append((num_tokens, num_tokens - num_separators))
        self._write(shard)
        self._pad()
        self._write_suffixes(self._sort(shard), num_tokens - num_separators)
        self._pad()

    def finish(self, vocabulary: Vocabulary) -> Header:
        if not self._shards:
            raise DrafterError("there are no tokens to build a datastore from; give it some text")
        header = Header(
            vocabulary=vocabulary,
            token_bytes=self._width,
            num_documents=self._num_separators,
            shards=tuple(self._shards),
            sha256=self._digest.hexdigest(),
        )
        self._file.seek(0)
        self._file.write(header.pack())
        return header

    def _write_suffixes(self, byte_suffixes: Any, num_suffixes: int) -> None:
        """Those that start at a token; separators, the last of them, are cut off."""
        left = num_suffixes
        for start in range(0, len(byte_suffixes), _BLOCK):
            block = byte_suffixes[start : start + _BLOCK]
            suffixes = block[block % self._width == 0][:left] // self._width
            left -= len(suffixes)
            self._write(suffixes.astype(SUFFIX_DTYPE).tobytes())

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)

    def _pad(self) -> None:
        position = self._file.tell()
        self._write(bytes(padded(position) - position))
