"""Token ids to text, one token at a time, never half a character."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq

_REPLACEMENT = "\ufffd"
# An unfinished UTF-8 character has at most three bytes, each of which may show as one mark.
_MAX_UNFINISHED = 3
# Tokens decoded before the new ones, so that joins (leading spaces, merges) come out right.
_CONTEXT = 6


class Detokenizer:
    """Turns tokens into text piece by piece.

    The pieces, and `flush()` at the end, join to `decode(all tokens)`; how the tokens are
    grouped makes no difference.

    Args:
        decode: from ids to text, such as a tokenizer's.
    """

    def __init__(self, decode: Callable[[Seq[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._num_shown = 0  # tokens of the window whose text is out
        self._shown = ""  # text of the window that is out

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is unfinished."""
        self._window.append(token_id)
        text = self._decode(self._window)
        marks = len(text) - len(text.rstrip(_REPLACEMENT))
        held = min(marks, _MAX_UNFINISHED)
        piece = text[len(self._shown) : len(text) - held]
        if held:
            self._shown += piece
        else:
            self._slide(text)
        return piece

    def flush(self) -> str:
        """What is still held back, marks of unfinished characters included."""
        text = self._decode(self._window)
        piece = text[len(self._shown) :]
        self._slide(text)
        return piece

    def _slide(self, text: str) -> None:
        """Everything is out: keep the last tokens only, as context for the next."""
        self._num_shown = len(self._window)
        self._shown = text
        if self._num_shown > 2 * _CONTEXT:
            self._window = self._window[-_CONTEXT:]
            self._num_shown = _CONTEXT
            self._shown = self._decode(self._window)
