"""Token ids to text, one token at a time, never half a character."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq

from outdraft.text.prompts import Tokenizer

_REPLACEMENT = "\ufffd"
# Tokens decoded before the new ones, so that joins (leading spaces, merges) come out right.
_CONTEXT = 6
# Tokens of one character at most: its bytes in UTF-8.
_MAX_CHARACTER = 4


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
        self._shown = ""  # the part of the window's text that is out

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is unfinished."""
        self._window.append(token_id)
        text = self._decode(self._window)
        # An unfinished character shows as marks at the end; with tokenizers that fall back to
        # bytes, the whole run of bytes does, characters that are already out included.
        if text.endswith(_REPLACEMENT) or not text.startswith(self._shown):
            return ""
        return self._show(text)

    def flush(self) -> str:
        """What is still held back, marks of unfinished characters included."""
        return self._show(self._decode(self._window))

    def _show(self, text: str) -> str:
        piece = text[len(self._shown) :]
        self._shown = text
        if len(self._window) > 2 * _CONTEXT:
            self._forget()
        return piece

    def _forget(self) -> None:
        """Keeps a context of the last tokens only.

        It begins with a whole character, and it is not silent: a text's first space may be dropped
        in decoding, and then has to be dropped from the context.
        """
        for size in range(_CONTEXT, _CONTEXT + _MAX_CHARACTER):
            shown = self._decode(self._window[-size:])
            if shown and self._shown.endswith(shown):
                self._window, self._shown = self._window[-size:], shown
                return


def text_decoder(tokenizer: Tokenizer) -> Callable[[Seq[int]], str]:
    """From new token ids to the text a user sees, special tokens left out."""

    def decode(token_ids: Seq[int]) -> str:
        text = tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(text)

    return decode


def token_shower(tokenizer: Tokenizer) -> Callable[[int], str]:
    """From one token id to its text, special tokens included."""

    def show(token_id: int) -> str:
        text = tokenizer.decode(
            [token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return str(text)

    return show
