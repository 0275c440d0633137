"""Bytes as tokens: any text comes back."""

from __future__ import annotations

import pytest

from outdraft.models.byte_tokenizer import byte_tokenizer


@pytest.mark.parametrize(
    "text", ["", "plain words", "  two\n\nlines\t", "naïve 日本語 🙂", "\x00\x7f"]
)
def test_a_text_comes_back(text: str) -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_the_end_is_a_token_of_its_own() -> None:
    tokenizer = byte_tokenizer()
    assert len(tokenizer) == 257
    assert tokenizer.eos_token_id == 256
    assert tokenizer.decode([256], skip_special_tokens=True) == ""
