"""Which tokens of one model are which of another's.

Models of one family often share a tokenizer and still differ in the rows of their vocabularies:
rows are padded, special tokens come and go. Others share much of their vocabulary under other ids.
So tokens are compared by what they spell, and rows nobody uses are never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol

from outdraft.errors import DrafterError

_NUM_SHOWN = 3
# A tokenizer that is asked to give back what it was given.
_PROBE_TEXT = "The quick brown fox, 42 times: x = y + 1;\n"


class FullTokenizer(Protocol):
    """A tokenizer that tells its tokens, as those of transformers do."""

    all_special_ids: Seq[int]
    added_tokens_decoder: Mapping[int, Any]
    bos_token_id: int | None
    eos_token_id: int | None

    def get_vocab(self) -> Mapping[str, int]:
        """Every token with its id."""

    def __call__(self, text: str, *, add_special_tokens: bool = True, verbose: bool = True) -> Any:
        """Text to ids, under the key `input_ids`."""

    def decode(
        self, token_ids: Any, *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> Any:
        """Ids to text."""


@dataclass(frozen=True, slots=True)
class TokenMap:
    """What a draft model's tokens are to the target.

    Args:
        to_target: for each row of the draft model's vocabulary, the target's token that is the
            same, or else the longest one that its text begins with; -1 for none.
        target_rows: of the target's vocabulary.
        differing: the first ids that stand for different tokens, in words. Empty if there are none
            but added tokens, so that the draft model can read the target's ids.
    """

    to_target: tuple[int, ...]
    target_rows: int
    differing: str = ""

    @classmethod
    def of_equal_ids(cls, target_rows: int, draft_rows: int) -> TokenMap:
        """For models whose ids are known to mean the same, as far as both have them."""
        return cls._of_pairs({i: i for i in range(draft_rows)}, target_rows, draft_rows)

    @classmethod
    def between(
        cls, target: FullTokenizer, target_rows: int, draft: FullTokenizer, draft_rows: int
    ) -> TokenMap:
        """Compares two tokenizers, token by token.

        Args:
            target_rows: of the model's output, which may be more or fewer than tokens.
        """
        target_tokens, draft_tokens = _tokens_by_id(target), _tokens_by_id(draft)
        differing = [
            token_id
            for token_id in sorted(target_tokens.keys() | draft_tokens.keys())
            if target_tokens.get(token_id) != draft_tokens.get(token_id)
        ]
        if {*_added_ids(target), *_added_ids(draft)}.issuperset(differing):
            same = {token_id: token_id for token_id in target_tokens.keys() - set(differing)}
            return cls._of_pairs(same, target_rows, draft_rows)
        target_ids = {spelling: token_id for token_id, spelling in _spellings(target).items()}
        to_target = {
            draft_id: _longest_beginning(spelling, target_ids)
            for draft_id, spelling in _spellings(draft).items()
        }
        shown = "; ".join(
            f"id {token_id} is {target_tokens.get(token_id)!r} for the target and "
            f"{draft_tokens.get(token_id)!r} for the draft model"
            for token_id in differing[:_NUM_SHOWN]
        )
        return cls._of_pairs(to_target, target_rows, draft_rows, shown)

    @classmethod
    def _of_pairs(
        cls, to_target: Mapping[int, int], target_rows: int, draft_rows: int, differing: str = ""
    ) -> TokenMap:
        """Leaves out ids that the models have no rows for."""
        ids = (to_target.get(draft_id, -1) for draft_id in range(draft_rows))
        return cls(
            tuple(target_id if target_id < target_rows else -1 for target_id in ids),
            target_rows,
            differing,
        )


def check_full(tokenizer: object, whose: str) -> None:
    """Refuses a tokenizer that does not tell its tokens.

    Raises:
        DrafterError: it has no `get_vocab`.
    """
    if not hasattr(tokenizer, "get_vocab"):
        raise DrafterError(
            f"{whose} tokenizer, a {type(tokenizer).__name__}, does not tell its tokens "
            "(get_vocab), so it cannot be compared; use one of transformers"
        )


def gives_back_text(tokenizer: FullTokenizer) -> bool:
    """Whether ordinary text survives the way to ids and back."""
    token_ids = tokenizer(_PROBE_TEXT, add_special_tokens=False)["input_ids"]
    back = tokenizer.decode(
        token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return bool(back.strip() == _PROBE_TEXT.strip())


def _tokens_by_id(tokenizer: FullTokenizer) -> dict[int, str]:
    return {token_id: token for token, token_id in tokenizer.get_vocab().items()}


def _added_ids(tokenizer: FullTokenizer) -> set[int]:
    return {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}


def _longest_beginning(spelling: bytes | str, ids: Mapping[bytes | str, int]) -> int:
    """The token that is spelled so, or the longest whose spelling is a beginning of it."""
    if isinstance(spelling, str):  # the name of an added token
        return ids.get(spelling, -1)
    for length in range(len(spelling), 0, -1):
        if spelling[:length] in ids:
            return ids[spelling[:length]]
    return -1


def _spellings(tokenizer: FullTokenizer) -> dict[int, bytes | str]:
    """The bytes each token stands for; of added tokens their name, which is no text."""
    tokens, added = _tokens_by_id(tokenizer), _added_ids(tokenizer)
    ordinary = [token for token_id, token in tokens.items() if token_id not in added]
    byte_of = _byte_alphabet()
    is_byte_level = any("Ġ" in token for token in ordinary) and all(
        letter in byte_of for token in ordinary for letter in token
    )

    def spelling(token: str) -> bytes:
        if is_byte_level:
            return bytes(byte_of[letter] for letter in token)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])  # a byte that no other token spells
        return token.replace("▁", " ").encode("utf-8", "surrogatepass")

    return {
        token_id: token if token_id in added else spelling(token)
        for token_id, token in tokens.items()
    }


def _byte_alphabet() -> dict[str, int]:
    """The letters that byte-level tokenizers write bytes with (Radford et al. 2019, GPT-2).

    Bytes that print as a character of their own stand for themselves; the others follow from
    code point 256 on.
    """
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = [byte for byte in range(256) if byte not in printing]
    letters = {chr(byte): byte for byte in printing}
    return letters | {chr(256 + i): byte for i, byte in enumerate(rest)}
