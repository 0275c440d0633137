"""Requests of coroutines: all share one session, whose steps run in one worker thread.

Everything but the steps themselves happens in the event loop, between two steps, so nothing needs
a lock. While nobody asks for anything there is no step, no timer and no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from outdraft.errors import OutdraftError
from outdraft.results import Piece, Result, best_of
from outdraft.session import Request, Session
from outdraft.text.prompts import Prompt

Pieces = AsyncGenerator[Piece, None]


class _Waiter:
    """A coroutine that waits for the pieces of one request."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._told: asyncio.Queue[Piece | BaseException | None] = asyncio.Queue()

    def tell(self, news: Piece | BaseException | None) -> None:
        """Hands on a piece, an error that ends the request, or `None` at its end."""
        self._told.put_nowait(news)

    async def next_piece(self) -> Piece | None:
        """The next piece, as soon as it is there; `None` at the end."""
        news = await self._told.get()
        if isinstance(news, BaseException):
            raise news
        return news


class AsyncRequests:
    """Runs the requests of one event loop; made by `Outdraft`.

    Args:
        session: that nobody else uses.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outdraft")
        self._waiters: dict[int, _Waiter] = {}
        self._coming: list[Request] = []
        self._leaving: list[Request] = []
        self._driver: asyncio.Task[None] | None = None

    def is_of_this_loop(self) -> bool:
        """Whether it was made for the running loop, so that it can be used.

        Raises:
            OutdraftError: it is another one, and requests are still running in the first.
        """
        if self._loop is asyncio.get_running_loop():
            return True
        if self._waiters and not self._loop.is_closed():
            raise OutdraftError(
                f"{len(self._waiters)} requests are running in another event loop; await them or "
                "aclose() there first, or load the model once per loop"
            )
        return False

    async def generate(self, prompt: Prompt, settings: Mapping[str, Any]) -> Result:
        """The whole answer, or answers; a cancelled wait cancels the request."""
        waiters = self._wait_for(self._session.prepare_samples(prompt, settings))
        try:
            for waiter in waiters:
                while await waiter.next_piece() is not None:
                    pass
        finally:
            for waiter in waiters:
                self._leave(waiter)
        results = [waiter.request.result for waiter in waiters]
        return best_of(results, waiters[0].request.settings)

    async def stream(self, prompt: Prompt, settings: Mapping[str, Any]) -> Pieces:
        """The answer piece by piece; leaving early cancels the request."""
        (waiter,) = self._wait_for([self._session.prepare(prompt, settings)])
        try:
            while (piece := await waiter.next_piece()) is not None:
                yield piece
        finally:
            self._leave(waiter)

    async def aclose(self) -> None:
        """Cancels all requests, and returns once nothing runs any more; waiters get their text."""
        for waiter in self._waiters.values():
            self._leaving.append(waiter.request)
        if self._driver is not None:
            await self._driver
        self.shut_down()

    def shut_down(self) -> None:
        """Ends the thread and frees what requests held; waits for a step that is under way."""
        self._thread.shutdown(wait=True)
        self._session.close()

    def _wait_for(self, requests: Seq[Request]) -> list[_Waiter]:
        """Has all of them run, or none."""
        self._session.check_room(len(self._coming) + len(requests) - 1)
        waiters = [_Waiter(request) for request in requests]
        self._waiters.update({waiter.request.request_id: waiter for waiter in waiters})
        self._coming.extend(requests)
        if self._driver is None:
            self._driver = self._loop.create_task(self._drive())
        return waiters

    def _leave(self, waiter: _Waiter) -> None:
        """Cancels a request that has not ended."""
        if self._waiters.pop(waiter.request.request_id, None) is not None:
            self._leaving.append(waiter.request)

    async def _drive(self) -> None:
        """Steps until nobody waits for anything."""
        try:
            while self._admit():
                step = self._loop.run_in_executor(self._thread, self._session.step)
                await asyncio.wait([step])
                error = step.exception()
                if error is None:
                    for request, piece in step.result():
                        self._tell(request, piece)
                else:
                    self._end_all(error)
        except BaseException as error:
            # A step may be under way; behind it nothing touches the session any more.
            self._thread.submit(lambda: None).result()
            self._end_all(error)
            raise
        finally:
            self._driver = None

    def _admit(self) -> bool:
        """Between two steps: requests come and go; says whether there is anything left to do."""
        coming, self._coming = self._coming, []
        leaving, self._leaving = self._leaving, []
        for request in coming:
            self._session.submit(request)
        for request in leaving:
            self._session.cancel(request)
            self._end(request)
        return not self._session.is_idle

    def _tell(self, request: Request, piece: Piece) -> None:
        waiter = self._waiters.get(request.request_id)
        if waiter is not None:
            waiter.tell(piece)
        if request.is_done:
            self._end(request)

    def _end(self, request: Request) -> None:
        waiter = self._waiters.pop(request.request_id, None)
        if waiter is not None:
            waiter.tell(request.error)

    def _end_all(self, error: BaseException) -> None:
        """Everybody hears of an error of the engine: who caused it cannot be known."""
        for waiter in self._waiters.values():
            waiter.tell(error)
        self._waiters.clear()
        self._coming.clear()
        self._leaving.clear()
        for request in self._session.requests:
            self._session.cancel(request)
