"""The file of a memory: token ids of earlier requests, and whose token ids they are.

    outdraft memory 1          what file it is
    9f86d081884c7d65...        checksum of all that follows
    {"vocabulary": ...}        whose ids they are, and how long the requests are
    ids of all requests        little-endian, 4 bytes each

It holds what people wrote, so that it is readable for its owner alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence as Seq
from dataclasses import asdict
from pathlib import Path

import numpy as np

from outdraft.errors import DrafterError
from outdraft.text.vocabulary import Vocabulary

_KIND = b"outdraft memory 1"
_NAMESPACE = re.compile(r"\w[\w.-]{0,63}")


class MemoryFile:
    """Where a memory is kept from one process to the next.

    It is written as a whole, in one rename. Of several processes that use one file, the last to
    write it leaves its own memory there.

    Args:
        vocabulary: of the tokenizer the ids come from.
    """

    def __init__(self, path: Path, vocabulary: Vocabulary) -> None:
        self.path = path
        self._vocabulary = vocabulary

    def load(self) -> list[list[int]]:
        """The requests, oldest first; none if there is no file yet.

        Raises:
            DrafterError: the file is of another tokenizer, damaged, or no memory.
        """
        if not self.path.exists():
            return []
        kind, _, rest = self.path.read_bytes().partition(b"\n")
        checksum, _, contents = rest.partition(b"\n")
        if kind != _KIND:
            raise DrafterError(
                f"{self.path} is no memory that this outdraft can read; take another namespace, "
                "or remove the file"
            )
        if hashlib.sha256(contents).hexdigest().encode() != checksum:
            raise DrafterError(f"the memory {self.path} is damaged; remove the file")
        facts, _, data = contents.partition(b"\n")
        header = json.loads(facts)
        Vocabulary(**header["vocabulary"]).check_same(
            self._vocabulary,
            f"the memory {self.path}",
            "take another namespace, or remove the file",
        )
        ids = np.frombuffer(data, dtype="<i4").tolist()
        ends = np.cumsum(header["lengths"], dtype=np.int64).tolist()
        return [ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def save(self, requests: Seq[Seq[int]]) -> None:
        """Writes the requests over those that are there.

        Raises:
            OSError: the disk cannot be written to.
        """
        header = {
            "vocabulary": asdict(self._vocabulary),
            "lengths": [len(request) for request in requests],
        }
        data = b"".join(np.asarray(request, dtype="<i4").tobytes() for request in requests)
        contents = json.dumps(header).encode() + b"\n" + data
        checksum = hashlib.sha256(contents).hexdigest().encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f".{self.path.name}.partial-{os.getpid()}")
        try:
            with os.fdopen(
                os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb"
            ) as file:
                file.write(b"\n".join([_KIND, checksum, contents]))
            partial.replace(self.path)
        finally:
            partial.unlink(missing_ok=True)


def check_namespace(name: str) -> str:
    """The name, if it can be that of a file.

    Raises:
        DrafterError: it cannot.
    """
    if not _NAMESPACE.fullmatch(name):
        raise DrafterError(
            f"{name!r} is no namespace for a memory; take up to 64 letters, digits, '_', '-' and "
            "'.', the first of them a letter, a digit or '_'"
        )
    return name
