"""Toy tokenizers and requests, small enough to see through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from typing import Any

from outdraft.grammar.matcher import Matcher
from outdraft.processing import RowProcessor
from outdraft.sequence import Decode, Sequence
from outdraft.settings import GenerationSettings

EOS = 15
TABLE: dict[str, Any] = {"vocab_size": 16, "fade": 0.9, "seed": 56}
"""A table whose texts are long, varied, sometimes repeat themselves and sometimes end."""
LETTERS = "abcdefghijklmno"  # token 15 ends a text


def decode_letters(token_ids: Seq[int]) -> str:
    """One letter per token; further tokens go on through the alphabet, the end has no text."""
    return "".join(chr(ord("a") + token_id) for token_id in token_ids if token_id != EOS)


def decode_pairs(token_ids: Seq[int]) -> str:
    """Two letters per token, so that stop strings begin and end inside tokens."""
    letters = "abc"
    return "".join(
        letters[token_id % 3] + letters[token_id // 3 % 3]
        for token_id in token_ids
        if token_id != EOS
    )


class LetterTokenizer:
    """Letters to ids and back, with the calls that transformers' tokenizers have.

    A chat is written as `u` or `a`, its text, and `o` before the answer.
    """

    def __init__(self, *, has_template: bool = True, decode: Decode = decode_letters) -> None:
        self.chat_template = "letters" if has_template else None
        self._decode = decode

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        start = [LETTERS.index("a")] if add_special_tokens else []
        return {"input_ids": start + [LETTERS.index(letter) for letter in text if letter != " "]}

    def decode(
        self,
        token_ids: Seq[int],
        *,
        skip_special_tokens: bool,
        clean_up_tokenization_spaces: bool,
    ) -> str:
        assert skip_special_tokens
        assert not clean_up_tokenization_spaces
        return self._decode(token_ids)

    def apply_chat_template(
        self,
        conversation: Seq[Mapping[str, Any]],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
    ) -> str:
        assert not tokenize
        assert add_generation_prompt
        return "".join(turn["role"][0].replace("u", "b") + turn["content"] for turn in conversation)


def make_sequence(
    prompt_ids: Seq[int] = (1, 2, 3),
    *,
    request_id: int = 0,
    seed: int = 0,
    eos_ids: Seq[int] = (EOS,),
    max_context: int = 4096,
    decode: Decode = decode_letters,
    processors: Seq[RowProcessor] = (),
    matcher: Matcher | None = None,
    drafting_off_reason: str | None = None,
    **settings: Any,
) -> Sequence:
    """A request as the engine takes it."""
    return Sequence(
        request_id,
        prompt_ids,
        GenerationSettings(**settings),
        seed=seed,
        eos_ids=frozenset(eos_ids),
        max_context=max_context,
        decode=decode,
        processors=processors,
        matcher=matcher,
        drafting_off_reason=drafting_off_reason,
    )
