"""Showing a stream on stdout: as text, or with each token's origin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence as Seq
from typing import TYPE_CHECKING, TextIO

from rich.color import ColorSystem
from rich.style import Style

from outdraft.text.detokenizer import Detokenizer

if TYPE_CHECKING:
    from outdraft.results import Piece, Result
    from outdraft.types import Origin

# Bold and underline carry the rarer origins where colours look alike.
STYLES: dict[Origin, str] = {
    "drafted": "green",
    "corrected": "bold red",
    "bonus": "underline cyan",
    "plain": "",
}
MARKS: dict[Origin, str] = {"drafted": "·", "corrected": "≠", "bonus": "+", "plain": ""}
MEANINGS: dict[Origin, str] = {
    "drafted": "accepted guess",
    "corrected": "correction",
    "bonus": "bonus",
    "plain": "no draft",
}


class Writer(ABC):
    """Takes the pieces of one answer; what it shows joins to the answer's text."""

    @abstractmethod
    def show(self, piece: Piece) -> None:
        """Shows what a step added, at once."""

    @abstractmethod
    def end(self, result: Result) -> None:
        """Shows what has not been shown, and closes the line."""


class NoWriter(Writer):
    """Shows nothing; the answer is printed in another form."""

    def show(self, piece: Piece) -> None:
        del piece

    def end(self, result: Result) -> None:
        del result


class TextWriter(Writer):
    """Shows the text and nothing but the text."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._num_shown = 0

    def show(self, piece: Piece) -> None:
        self._num_shown += len(piece.text)
        self._file.write(piece.text)
        self._file.flush()

    def end(self, result: Result) -> None:
        self._file.write(result.text[self._num_shown :])
        if not result.text.endswith("\n"):
            self._file.write("\n")
        self._file.flush()


class DraftWriter(Writer):
    """Shows the text with each token's origin, under a legend.

    Args:
        decode: from ids to text, as the stream's own.
        has_colours: else marks stand before the tokens.
    """

    def __init__(
        self, file: TextIO, decode: Callable[[Seq[int]], str], *, has_colours: bool
    ) -> None:
        self._file = file
        self._has_colours = has_colours
        self._origins = OriginSplitter(decode)
        self._num_shown = 0
        self._file.write(self._legend() + "\n\n")

    def show(self, piece: Piece) -> None:
        self._num_shown += len(piece.text)
        for text, origin in self._origins.split(piece.text, piece.token_ids, piece.origins):
            self._file.write(self._dressed(text, origin))
        self._file.flush()

    def end(self, result: Result) -> None:
        for text, origin in self._origins.split(result.text[self._num_shown :], (), ()):
            self._file.write(self._dressed(text, origin))
        if not result.text.endswith("\n"):
            self._file.write("\n")
        self._file.flush()

    def _legend(self) -> str:
        if self._has_colours:
            return "  ".join(self._dressed(meaning, origin) for origin, meaning in MEANINGS.items())
        return "  ".join(
            f"{MARKS[origin] or '(no mark)'} {meaning}" for origin, meaning in MEANINGS.items()
        )

    def _dressed(self, text: str, origin: Origin) -> str:
        """The token in its colour or behind its mark; leading space stays bare."""
        space, word = split_space(text)
        if not self._has_colours:
            return space + MARKS[origin] + word if word else MARKS[origin] + space
        style = Style.parse(STYLES[origin])
        return space + style.render(word, color_system=ColorSystem.STANDARD)


def split_space(text: str) -> tuple[str, str]:
    """The white space that a token begins with, and the rest."""
    word = text.lstrip()
    return text[: len(text) - len(word)], word


class OriginSplitter:
    """Says of each part of a streamed text which kind of token it came from.

    The stream's text is what counts; tokens only say whose it is. So the parts join to that
    text whatever stop strings hold back or cut off.
    """

    def __init__(self, decode: Callable[[Seq[int]], str]) -> None:
        self._detokenizer = Detokenizer(decode)
        self._parts: deque[tuple[str, Origin]] = deque()
        self._last_origin: Origin = "plain"

    def split(
        self, text: str, token_ids: Seq[int], origins: Seq[Origin]
    ) -> Iterator[tuple[str, Origin]]:
        """The parts of `text`, after taking in the tokens of its step.

        A character of several tokens belongs to the one that completes it.
        """
        for token_id, origin in zip(token_ids, origins, strict=True):
            self._last_origin = origin
            if part := self._detokenizer.push(token_id):
                self._parts.append((part, origin))
        while text:
            if not self._parts:
                # The stream has shown an unfinished character, so it has ended.
                part, origin = self._detokenizer.flush() or text, self._last_origin
            else:
                part, origin = self._parts.popleft()
            if len(part) > len(text):
                self._parts.appendleft((part[len(text) :], origin))
                part = part[: len(text)]
            yield part, origin
            text = text[len(part) :]
