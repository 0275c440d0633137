"""Where a text changes its character, as far as single tokens tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq
from functools import cache


def break_finder(decode: Callable[[Seq[int]], str]) -> Callable[[int], bool]:
    """From a token id to whether it ends a line or fences code; each is decoded once.

    What follows such a token is often of another kind: a list, code, a quotation, a paragraph.
    """

    @cache
    def is_break(token_id: int) -> bool:
        text = decode([token_id])
        return "\n" in text or "```" in text

    return is_break
