"""A conversation: each turn goes on from what the target read for the turns before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

from outdraft.errors import SettingsError
from outdraft.results import Piece, Result
from outdraft.session import Request, Session
from outdraft.stats import Stats


class Chat:
    """A conversation with a model; made by `Outdraft.chat`.

        chat = llm.chat(system="You are brief.", max_new_tokens=60)
        print(chat.send("Why is the sky blue?").text)
        print(chat.send("And at sunset?").text)

    The model's chat template makes a prompt of all messages, so the text is the same as if they
    were sent at once. What earlier turns have in common with this prompt is not read again;
    `Stats.reused_prompt_tokens` says how much that was.

    Args:
        session: that nobody else uses.
        system: what the model is told before the first turn.
        settings: of every turn, see `GenerationSettings`; a turn may change them.
    """

    def __init__(
        self, session: Session, *, system: str | None, settings: Mapping[str, Any]
    ) -> None:
        self._session = session
        self._system = system
        self._settings = dict(settings)
        self._turns: list[tuple[str, str]] = []
        self._open: Turn | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        """All that was said, as the chat template takes it; a copy."""
        messages = []
        if self._system is not None:
            messages.append({"role": "system", "content": self._system})
        for question, answer in self._turns:
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": answer})
        return messages

    @property
    def system(self) -> str | None:
        """What the model is told before the first turn; a change holds from the next turn on."""
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        self._system = text

    @property
    def num_turns(self) -> int:
        """Questions that were answered."""
        return len(self._turns)

    def send(self, text: str, **changes: Any) -> Result:
        """Says something and waits for the answer.

        Args:
            changes: of the chat's settings, for this turn.

        Raises:
            SettingsError: a setting is unknown or out of range, the model has no chat template, or
                the conversation has outgrown the model's context.
        """
        with self.stream(text, **changes) as turn:
            for _ in turn:
                pass
        return turn.result

    def stream(self, text: str, **changes: Any) -> Turn:
        """Says something; the answer comes piece by piece. Arguments as for `send`.

        An earlier answer that is still being written is cancelled.
        """
        self._end_turn()
        messages = [*self.messages, {"role": "user", "content": text}]
        request = self._session.add(messages, **{**self._settings, **changes})
        self._open = Turn(self, self._session, request, text)
        return self._open

    def undo(self) -> None:
        """Takes the last question and its answer back.

        Raises:
            SettingsError: nothing was said yet.
        """
        self._end_turn()
        if not self._turns:
            raise SettingsError("nothing was said yet, so there is nothing to undo")
        self._turns.pop()

    def reset(self) -> None:
        """Takes all questions and answers back."""
        self._end_turn()
        self._turns.clear()

    def close(self) -> None:
        """Cancels what is being written and forgets what was read."""
        self._end_turn()
        self._session.close()

    def _end_turn(self) -> None:
        if self._open is not None:
            self._open.cancel()
            self._open = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Turn:
    """The pieces of one answer as they come; they become part of the chat when it has ended.

    So does an answer that was cancelled, by `cancel()` or by leaving the `with` block, as far as
    it was written. After an error, or if there is no token yet, it is as if nothing was said.
    """

    def __init__(self, chat: Chat, session: Session, request: Request, question: str) -> None:
        self._chat = chat
        self._session = session
        self._request = request
        self._question = question
        self._is_open = True

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        while self._is_open and not self._request.is_done:
            for _, piece in self._step():
                self._take_in()
                return piece
        self._take_in()
        raise StopIteration

    def _step(self) -> list[tuple[Request, Piece]]:
        try:
            pieces = self._session.step()
            if self._request.error is not None:
                raise self._request.error
            return pieces
        except Exception:
            self._is_open = False
            self._session.cancel(self._request)
            raise
        except BaseException:  # Ctrl-C: what was written stays said
            self.cancel()
            raise

    def _take_in(self) -> None:
        """Makes an answer that has ended part of the chat, once."""
        if self._is_open and self._request.is_done:
            self._is_open = False
            if self._request.result.token_ids:
                self._chat._turns.append((self._question, self._request.text))

    def cancel(self) -> None:
        """Ends the answer where it stands."""
        self._session.cancel(self._request)
        self._take_in()

    @property
    def stats(self) -> Stats:
        """What was drafted and accepted so far."""
        return self._request.stats

    @property
    def result(self) -> Result:
        """The whole answer.

        Raises:
            SettingsError: it has not ended yet.
        """
        return self._request.result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.cancel()
