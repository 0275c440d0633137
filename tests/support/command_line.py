"""What tests of the command line share: a tokenizer of short words, and what a terminal is."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq
from typing import Any

from typer.testing import Result

from support.toys import EOS

Run = Callable[..., Result]
"""Runs a command line in-process, as `run("generate", "hello", "--raw")`."""
# Two tokens make one "é", and each alone is half a character.
PIECES = [
    *(b"a", b" cat", b" sat", b".", b" on", b" the", b"\n", b"\xc3", b"\xa9"),
    *(b" mat", b" and", b",", b" dog", b" ran", b"!"),
]
TABLE: dict[str, Any] = {"vocab_size": 16, "fade": 0.8, "seed": 108}
"""A table that answers "hello" with 60 tokens of every origin, whole and half characters."""
TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "NO_COLOR": None, "COLUMNS": "100"}


class ToyTokenizer:
    """Short words to ids and back; any text makes some prompt, and templates cut it short."""

    def __init__(self) -> None:
        self.chat_template: str | None = "toy"
        self.read: list[str] = []

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        self.read.append(text)
        return {"input_ids": [byte % len(PIECES) for byte in text.encode()[:24]]}

    def decode(
        self,
        token_ids: Seq[int],
        *,
        skip_special_tokens: bool,
        clean_up_tokenization_spaces: bool,
    ) -> str:
        assert not clean_up_tokenization_spaces
        end = b"" if skip_special_tokens else b"<end>"
        parts = [end if token_id == EOS else PIECES[token_id] for token_id in token_ids]
        return b"".join(parts).decode(errors="replace")

    def apply_chat_template(
        self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        assert add_generation_prompt
        return "".join(f"<{turn['role']}>{turn['content']}" for turn in conversation)
