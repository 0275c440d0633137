"""The file of a datastore: the tokens of a corpus, and their suffixes in sorted order.

    ┌─────────┬──────────────────────┬──────────────────────┬─ ─
    │ header  │ tokens │  suffixes   │ tokens │  suffixes   │
    └─────────┴──────────────────────┴──────────────────────┴─ ─
      16 KiB    shard 0                shard 1                     parts start at multiples of 64

Tokens are big-endian numbers of one width, so that comparing bytes compares token by token. Each
document ends with the separator, which has all bits set and is no token: nothing matches across
it. Suffixes are positions in the shard, in the order of the tokens that stand from there on; those
of separators, the last in that order, are left out.

The header is text: what file it is, the checksum of what follows, and that as JSON.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from outdraft.errors import DrafterError
from outdraft.text.vocabulary import Vocabulary

HEADER_BYTES = 16384
SUFFIX_DTYPE = np.dtype("<u4")
_ALIGNMENT = 64
_KIND = "outdraft datastore"
_VERSION = 1
_READ_BYTES = 1 << 24


class Region(NamedTuple):
    """Where in the file a shard's parts lie, in bytes."""

    tokens_at: int
    suffixes_at: int
    end: int
    num_suffixes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a datastore says of itself.

    Args:
        token_bytes: width of a token.
        shards: tokens, separators included, and suffixes of each.
        sha256: of everything behind the header.
    """

    vocabulary: Vocabulary
    token_bytes: int
    num_documents: int
    shards: tuple[tuple[int, int], ...]
    sha256: str

    @property
    def num_tokens(self) -> int:
        """Tokens of the corpus, separators left out."""
        return sum(num_suffixes for _, num_suffixes in self.shards)

    @property
    def num_bytes(self) -> int:
        return self.regions()[-1].end

    def regions(self) -> list[Region]:
        regions: list[Region] = []
        start = HEADER_BYTES
        for num_tokens, num_suffixes in self.shards:
            suffixes_at = padded(start + num_tokens * self.token_bytes)
            end = padded(suffixes_at + num_suffixes * SUFFIX_DTYPE.itemsize)
            regions.append(Region(start, suffixes_at, end, num_suffixes))
            start = end
        return regions

    def pack(self) -> bytes:
        """The header as it stands in the file.

        Raises:
            DrafterError: there are too many shards to be listed.
        """
        facts = json.dumps(asdict(self))
        checksum = hashlib.sha256(facts.encode()).hexdigest()
        text = f"{_KIND} {_VERSION}\n{checksum}\n{facts}\n".encode()
        if len(text) > HEADER_BYTES:
            raise DrafterError(
                f"{len(self.shards)} shards do not fit into the header of a datastore; "
                "make the shards larger"
            )
        return text.ljust(HEADER_BYTES)


def read_header(path: Path) -> Header:
    """The header of a datastore that is there in full length.

    Raises:
        DrafterError: there is no such file, it is no datastore, or it is damaged or cut short.
    """
    if not path.is_file():
        raise DrafterError(
            f"there is no datastore {path}; build one with "
            f"`outdraft datastore build FILES... --model REF -o {path}`"
        )
    with path.open("rb") as file:
        block = file.read(HEADER_BYTES)
    header = _unpack(block, path)
    num_bytes = path.stat().st_size
    if num_bytes != header.num_bytes:
        raise DrafterError(
            f"the datastore {path} has {num_bytes} bytes instead of {header.num_bytes}; copy it "
            "again, or build it anew"
        )
    return header


def _unpack(block: bytes, path: Path) -> Header:
    kind, _, rest = block.partition(b"\n")
    checksum, _, facts = rest.partition(b"\n")
    facts = facts.rstrip()
    if not kind.startswith(_KIND.encode()):
        raise DrafterError(f"{path} is no datastore; build one with `outdraft datastore build`")
    if kind != f"{_KIND} {_VERSION}".encode():
        raise DrafterError(
            f"{path} is written as {kind.decode(errors='replace')!r} and this outdraft reads "
            f"version {_VERSION}; build it anew"
        )
    if hashlib.sha256(facts).hexdigest().encode() != checksum:
        raise DrafterError(f"the header of the datastore {path} is damaged; build it anew")
    fields: dict[str, Any] = json.loads(facts)
    return Header(
        vocabulary=Vocabulary(**fields.pop("vocabulary")),
        shards=tuple(
            (num_tokens, num_suffixes) for num_tokens, num_suffixes in fields.pop("shards")
        ),
        **fields,
    )


def is_datastore(path: Path) -> bool:
    """Whether a file says that it is one, of whatever version."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_KIND)) == _KIND.encode()


def check_contents(path: Path) -> Header:
    """Reads all of a datastore and holds it against its checksum.

    Raises:
        DrafterError: it is not as it was written, or as `read_header`.
    """
    header = read_header(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(HEADER_BYTES)
        while block := file.read(_READ_BYTES):
            digest.update(block)
    if digest.hexdigest() != header.sha256:
        raise DrafterError(
            f"the datastore {path} is damaged: its contents have the checksum "
            f"{digest.hexdigest()[:12]}... instead of {header.sha256[:12]}...; build it anew"
        )
    return header


def map_file(path: Path) -> mmap.mmap:
    """The file's bytes, read from disk as they are looked at."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def padded(position: int) -> int:
    """The next place where a part may start."""
    return -(-position // _ALIGNMENT) * _ALIGNMENT


def width_for(vocab_size: int) -> int:
    """Bytes of a token, so that one number is left for the separator."""
    return (vocab_size.bit_length() + 7) // 8


def encode(token_ids: Seq[int], width: int) -> bytes:
    """Token ids as they stand in the file."""
    wide = np.asarray(token_ids, dtype=">u8").view(np.uint8).reshape(-1, 8)
    return wide[:, 8 - width :].tobytes()


def separator(width: int) -> bytes:
    """What stands between documents."""
    return b"\xff" * width
