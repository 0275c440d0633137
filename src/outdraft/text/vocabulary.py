"""Which token each id stands for: how stored token ids tell whose they are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from outdraft.errors import DrafterError


@runtime_checkable
class HasVocabulary(Protocol):
    """A tokenizer that can list its tokens, as those of transformers can."""

    name_or_path: str

    def get_vocab(self) -> Mapping[str, int]:
        """Every token with its id."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Which token each id stands for, in brief.

    Two tokenizers have the same vocabulary if every id stands for the same token in both; what
    the tokenizers are called does not matter.

    Args:
        name: what people call the tokenizer.
        size: one more than the largest id.
        fingerprint: of all pairs of id and token.
    """

    name: str
    size: int
    fingerprint: str

    @classmethod
    def of(cls, tokenizer: object, name: str | None = None) -> Vocabulary:
        """That of a tokenizer, under the tokenizer's own name unless another is given.

        Raises:
            DrafterError: the tokenizer cannot list its tokens, or has none.
        """
        if not isinstance(tokenizer, HasVocabulary):
            raise DrafterError(
                f"a {type(tokenizer).__name__} cannot list its tokens (get_vocab), so "
                "token ids kept on disk could not be told from those of another tokenizer; use a "
                "tokenizer of transformers, or a drafter that keeps nothing"
            )
        ids = sorted((token_id, token) for token, token_id in tokenizer.get_vocab().items())
        if not ids:
            raise DrafterError(f"the tokenizer {tokenizer.name_or_path!r} has no tokens")
        digest = hashlib.sha256()
        for token_id, token in ids:
            digest.update(f"{token_id} {token}\0".encode("utf-8", "surrogatepass"))
        return cls(name or tokenizer.name_or_path, ids[-1][0] + 1, digest.hexdigest()[:32])

    def check_same(self, used: Vocabulary, what: str, way_out: str) -> None:
        """Refuses to use ids of this vocabulary where the other one is in use.

        Args:
            what: holds the ids; the message begins with it.
            way_out: the message ends with it.

        Raises:
            DrafterError: an id may stand for different tokens.
        """
        if (self.size, self.fingerprint) != (used.size, used.fingerprint):
            raise DrafterError(
                f"{what} holds tokens of {self.described}, but the target's tokenizer is "
                f"{used.described}; {way_out}"
            )

    @property
    def described(self) -> str:
        """It in a message."""
        return f"{self.name!r} ({self.size} ids, fingerprint {self.fingerprint[:8]})"
