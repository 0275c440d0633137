"""Many requests at once: added and removed between steps, over shared passes of the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

from outdraft.engine import Engine
from outdraft.errors import QueueFullError, SettingsError
from outdraft.results import Piece, Result, piece_of, result_of
from outdraft.sequence import Sequence
from outdraft.sequences import SequenceMaker
from outdraft.settings import EngineSettings, GenerationSettings
from outdraft.stats import Stats
from outdraft.text.prompts import Prompt
from outdraft.types import FinishReason


class Request:
    """One request of a session, from `Session.add` to its result."""

    def __init__(self, sequence: Sequence, drafter: str) -> None:
        self._sequence = sequence
        self._drafter = drafter

    @property
    def request_id(self) -> int:
        return self._sequence.request_id

    @property
    def settings(self) -> GenerationSettings:
        """What it asks for, with the seed that it was given."""
        return self._sequence.settings

    @property
    def text(self) -> str:
        """What has been written so far."""
        return self._sequence.text

    @property
    def stats(self) -> Stats:
        """What was drafted and accepted so far."""
        return self._sequence.stats

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; `None` while it has not."""
        return self._sequence.finish_reason

    @property
    def is_done(self) -> bool:
        return self._sequence.finish_reason is not None

    @property
    def error(self) -> Exception | None:
        """What ended it, if that was an error in what it brought along, such as a processor."""
        return self._sequence.error

    @property
    def result(self) -> Result:
        """The whole answer.

        Raises:
            SettingsError: it has not ended yet.
            Exception: its own `error`.
        """
        if not self.is_done:
            raise SettingsError(
                f"request {self.request_id} has not ended; step the session until it has, or "
                "cancel it"
            )
        return result_of(self._sequence, self._drafter)

    def __repr__(self) -> str:
        state = self.finish_reason or f"{len(self._sequence.new_ids)} tokens"
        return f"<Request {self.request_id}: {state}>"


class Session:
    """Requests that share the passes of one target; made by `Outdraft.session`.

        with llm.session() as session:
            poem = session.add("Roses are red,", max_new_tokens=40)
            code = session.add("def main():", max_new_tokens=40, temperature=0.7, seed=1)
            for request, piece in session:
                ...
            print(poem.result.text)

    Each request's text is what it would be without the others. Requests start in the order in
    which they came, as many at once as `EngineSettings.max_batch` says; prompts are read chunk by
    chunk while others decode. What ended requests read is kept for prompts that begin alike.

    A session is for one thread.
    """

    def __init__(
        self, engine: Engine, settings: EngineSettings, drafter: str, sequences: SequenceMaker
    ) -> None:
        self.settings = settings
        self._engine = engine
        self._drafter = drafter
        self._sequences = sequences
        self._requests: dict[int, Request] = {}  # until all of their pieces were returned

    @property
    def requests(self) -> list[Request]:
        """Those that have not ended, in the order in which they came."""
        return [request for request in self._requests.values() if not request.is_done]

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to be done or told."""
        return self._engine.is_idle

    def add(self, prompt: Prompt, **settings: Any) -> Request:
        """Queues a request.

        Args:
            prompt: text as it stands, chat messages or token ids.
            settings: see `GenerationSettings`; a request is one answer, so that neither `n` nor
                `best_of` is for it.

        Raises:
            SettingsError: a setting is unknown or out of range, or the prompt empty or too long.
            QueueFullError: as many requests wait already as may.
        """
        request = self.prepare(prompt, settings)
        self.submit(request)
        return request

    def prepare(self, prompt: Prompt, settings: Mapping[str, Any]) -> Request:
        """A request that is not queued yet; touches nothing that a step in another thread uses.

        Raises:
            SettingsError: as for `add`.
        """
        return self._checked(self._sequences.make(prompt, settings))

    def prepare_samples(self, prompt: Prompt, settings: Mapping[str, Any]) -> list[Request]:
        """One such request for each answer that `n` and `best_of` ask for.

        Raises:
            SettingsError: as for `add`.
        """
        samples = self._sequences.make_samples(prompt, settings)
        return [self._checked(sequence) for sequence in samples]

    def _checked(self, sequence: Sequence) -> Request:
        self._engine.check(sequence)
        return Request(sequence, self._drafter)

    def submit(self, request: Request) -> None:
        """Queues a prepared request.

        Raises:
            QueueFullError: as many requests wait already as may.
        """
        self.check_room()
        self._engine.add(request._sequence)
        self._requests[request.request_id] = request

    def check_room(self, num_coming: int = 0) -> None:
        """Refuses one more request if as many run and wait as may.

        Args:
            num_coming: prepared requests that are about to be queued too.

        Raises:
            QueueFullError: there is no room for it.
        """
        max_batch, max_waiting = self.settings.max_batch, self.settings.max_waiting
        num_here = len(self.requests) + num_coming
        if num_here >= max_batch + max_waiting:
            raise QueueFullError(
                f"{num_here} requests have not ended, and max_batch={max_batch} may run and "
                f"max_waiting={max_waiting} wait; step until one has ended, cancel one, or raise "
                "max_waiting in EngineSettings"
            )

    def step(self) -> list[tuple[Request, Piece]]:
        """Moves every running request on; returns what was added to each.

        There is nothing to return while nobody decodes and a long prompt is being read. A request
        whose own processor or stop rule fails ends with that `error`, and the others do not notice.
        After an error of the engine, which is raised here, the requests stand where they stood, but
        for one whose prompt could not be read, which is cancelled; what the failed step had added
        is returned by the next.
        """
        pieces = []
        for commit in self._engine.step():
            request = self._requests.get(commit.request_id)
            if request is not None:  # else it was cancelled after a failed step
                pieces.append((request, piece_of(commit)))
        self._requests = {i: each for i, each in self._requests.items() if not each.is_done}
        return pieces

    def cancel(self, request: Request) -> None:
        """Ends a request where it stands and frees all it held; the others do not notice."""
        self._engine.cancel(request._sequence)
        self._requests.pop(request.request_id, None)

    def close(self) -> None:
        """Cancels all requests and forgets what was kept; the session can be used again."""
        for request in self.requests:
            self.cancel(request)
        self._engine.forget()

    def __iter__(self) -> Iterator[tuple[Request, Piece]]:
        """Steps until nothing is left to do; requests may be added and cancelled meanwhile."""
        while not self.is_idle:
            yield from self.step()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
