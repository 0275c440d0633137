"""When a request ends: stop strings in the text, judged token by token.

End-of-text tokens and lengths are single comparisons and live in `sequence.py`; a stop string
needs memory, because it may begin in one token and end in another.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq


class StopStrings:
    """Holds text back while it may be the beginning of a stop string.

    The text let through never contains a stop string or, while the request runs, the beginning of
    one at its end.

    Args:
        stops: the strings; none lets every text through at once.
        keeps: let the stop string itself through, too.
    """

    def __init__(self, stops: Seq[str], *, keeps: bool = False) -> None:
        self._stops = tuple(stops)
        self._keeps = keeps
        self._held = ""

    def push(self, piece: str) -> tuple[str, bool]:
        """Takes new text; returns what may be shown, and whether a stop string was completed.

        The stop string that begins first wins, and of those that begin there the shortest; what
        follows is dropped.
        """
        text = self._held + piece
        places = [
            (start, start + len(stop) if self._keeps else start)
            for stop in self._stops
            if (start := text.find(stop)) >= 0
        ]
        if places:
            self._held = ""
            return text[: min(places)[1]], True
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        cut = len(text) - held
        self._held = text[cut:]
        return text[:cut], False

    def flush(self) -> str:
        """The text held back; the request ended for another reason."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
