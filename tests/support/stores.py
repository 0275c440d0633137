"""Small datastores, and tokenizers that can say whose ids are in them."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path

from outdraft.draft.datastore_build import build_datastore
from outdraft.draft.datastore_file import Header
from outdraft.text.vocabulary import Vocabulary


class Words:
    """The part of a tokenizer that lists its tokens."""

    def __init__(self, *words: str, name: str = "words") -> None:
        self.name_or_path = name
        self._ids = {word: token_id for token_id, word in enumerate(words)}

    def get_vocab(self) -> dict[str, int]:
        return dict(self._ids)


def vocabulary_of(size: int, name: str = "toy") -> Vocabulary:
    """A vocabulary of that many numbered tokens."""
    return Vocabulary.of(Words(*(f"t{token_id}" for token_id in range(size)), name=name))


def write_datastore(
    path: Path,
    documents: Seq[Seq[int]],
    *,
    vocabulary: Vocabulary | None = None,
    shard_tokens: int = 1000,
) -> Header:
    """A datastore of documents that each come in one piece."""
    pieces = [[document] for document in documents]
    return build_datastore(path, pieces, vocabulary or vocabulary_of(16), shard_tokens=shard_tokens)
