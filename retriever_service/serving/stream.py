"""One stream's requests, worked on concurrently but bounded, its answers handed out as they finish.

Knows only that a request becomes an answer; messages, searches and statuses are the service's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Generic, TypeVar

from dresd.allowance import MOST as MAX_IN_FLIGHT

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class AnswerStream(Generic[Request, Answer]):
    """Reads requests and answers them until their sender is done, told to stop reading, or abandoned.

    MAX_IN_FLIGHT are worked on at a time; the next one stays unread, so flow control slows its sender.

    Args:
        requests: what the caller sends; ends, or fails, when the call does.
        answer: turns one into its answer; whatever it raises ends the stream.
        answers_at_once: whether `answer` has nothing to wait for with this one, and so needs no task of its own.
    """

    def __init__(
        self,
        requests: AsyncIterator[Request],
        answer: Callable[[Request], Coroutine[None, None, Answer]],
        answers_at_once: Callable[[Request], bool] = lambda _: False,
    ) -> None:
        self._answer = answer
        self._answers_at_once = answers_at_once
        self._places = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._answers: asyncio.Queue[Answer | None] = asyncio.Queue()
        self._failure: BaseException | None = None
        self._reads_no_more = self._is_receiving = False
        self._reader = asyncio.create_task(self._read(requests))
        self._work: set[asyncio.Task[None]] = {self._reader}
        self._reader.add_done_callback(self._finished)

    def stop_reading(self) -> None:
        """Reads no more requests; those read are still answered."""
        self._reads_no_more = True
        if not self._is_receiving:
            self._reader.cancel()
        elif self._reader in self._work:
            # It is left to end with the call. A receive that has just failed, and whose reader is cancelled before it
            # has looked, would be logged by the event loop as an exception that nobody retrieved.
            self._leave(self._reader)

    def abandon(self) -> None:
        """Nobody waits for the answers any more: gives up all work."""
        self.stop_reading()
        for task in self._work:
            task.cancel()

    async def answers(self) -> AsyncIterator[Answer]:
        """The answers in the order they finish; ends when the last request read has been answered."""
        while (answer := await self._answers.get()) is not None:
            self._places.release()
            yield answer
        if self._failure is not None:
            raise self._failure

    async def _read(self, requests: AsyncIterator[Request]) -> None:
        while True:
            await self._places.acquire()
            self._is_receiving = True
            try:
                request = await anext(requests)
            except StopAsyncIteration:
                return
            finally:
                self._is_receiving = False
            if self._reads_no_more:
                return
            if self._answers_at_once(request):
                self._answers.put_nowait(_result_of(self._answer(request)))
                await asyncio.sleep(0)  # the answer leaves before the next request is asked for
                continue
            task = asyncio.create_task(self._work_on(request))
            self._work.add(task)
            task.add_done_callback(self._finished)

    async def _work_on(self, request: Request) -> None:
        self._answers.put_nowait(await self._answer(request))

    def _finished(self, task: asyncio.Task[None]) -> None:
        failure = None if task.cancelled() else task.exception()
        if task not in self._work:
            return  # the reader, of a call that has ended
        if failure is not None:
            self._failure = failure
            self.abandon()
        self._leave(task)

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not self._work:
            self._answers.put_nowait(None)


def _result_of(coroutine: Coroutine[None, None, Answer]) -> Answer:
    """What a coroutine returns that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: Answer = done.value
        return result
    coroutine.close()
    raise RuntimeError("an answer that was to come at once waits")
