"""Runs searches on a fixed number of threads, with a bounded queue before them, or at once where that is quicker.

Handing a search to a thread and its result back takes several times longer than a short search does, and so does
turning it away. So as long as small searches prove short, they are done on the event loop's own thread. Used from one
event loop. Knows neither messages nor what a search is: it runs a function, or refuses to.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from retriever_service.serving.search_queue import ExpiredError, QueueFullError, SearchQueue

__all__ = ["ExpiredError", "QueueFullError", "SearchPool"]

T = TypeVar("T")

_SHORT_S = 0.5e-3
"""A search that usually takes less may hold up the event loop."""
_LONGEST_S = 2.0 * _SHORT_S
"""What a longer one counts for: one that another process took the processor from says nothing of the next."""
_NEWEST_COUNTS = 0.2
"""Weight of the newest search in what they usually take: some in a row that wait for a disk end the trust."""
_FIRST, _AGAIN = 16, 64
"""Small searches in threads before one is tried at once: of a server that has just started, and after a long one.
How long those in threads take is not looked at: most of it would be waiting for the interpreter, all the more the
busier the server is, and a server that was busy once would stay slow."""


class SearchPool:
    """`threads` searches at a time; up to `queue_size` more wait their turn.

    Args:
        threads: searches that run at the same time.
        queue_size: searches that may wait.
        clock: seconds, monotonic.

    Attributes:
        running: searches that have a thread now.
    """

    def __init__(self, threads: int, queue_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._executor = ThreadPoolExecutor(threads, "dresd-search")
        self._queue = SearchQueue(threads, queue_size, clock)
        self._clock = clock
        self._usual_s = 0.0
        self._in_threads_first = _FIRST
        self.running = 0

    @property
    def waiting(self) -> int:
        """Searches that wait for a thread."""
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether a search that is not run at once would be refused."""
        return self._queue.is_full

    @property
    def runs_at_once(self) -> bool:
        """Whether the next small `run` is done when it is called, without anything to wait for."""
        return self._in_threads_first == 0

    async def run(self, search: Callable[[], T], deadline: float | None, *, is_small: bool = True) -> tuple[T, float]:
        """Runs `search` in a search thread. Cancelling the caller gives up a place in the queue at once.

        Args:
            search: the work; it may not be interrupted once it runs.
            deadline: on the clock; None is never.
            is_small: it is no more work than others usually are.

        Returns:
            What `search` returned, and the seconds it waited in the queue.

        Raises:
            QueueFullError: as many wait as may.
            ExpiredError: the deadline passed before the search began; it never ran.
        """
        arrived = self._clock()
        if is_small and self._in_threads_first == 0:
            if deadline is not None and arrived >= deadline:
                raise ExpiredError
            return self._run_at_once(search, arrived), 0.0
        await self._queue.take_thread(deadline)
        began = self._clock()
        self.running += 1
        if is_small:
            self._in_threads_first = max(0, self._in_threads_first - 1)
        loop = asyncio.get_running_loop()
        future = self._executor.submit(search)
        found: asyncio.Future[T] = loop.create_future()

        def hand_over(done: Future[T]) -> None:
            # A search may outlive its server's event loop, when it was not done within the grace period.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._finish, done, found)

        future.add_done_callback(hand_over)
        return await found, began - arrived

    def _run_at_once(self, search: Callable[[], T], began: float) -> T:
        try:
            return search()
        finally:
            took_s = min(self._clock() - began, _LONGEST_S)
            self._usual_s += _NEWEST_COUNTS * (took_s - self._usual_s)
            if self._usual_s >= _SHORT_S:
                self._usual_s, self._in_threads_first = 0.0, _AGAIN

    def _finish(self, done: Future[T], found: asyncio.Future[T]) -> None:
        # The thread is free only now, which may be long after a caller that was cancelled.
        self._queue.give_thread()
        self.running -= 1
        if found.done():
            return
        if done.cancelled():
            found.cancel()
        elif (error := done.exception()) is not None:
            found.set_exception(error)
        else:
            found.set_result(done.result())

    def close(self) -> None:
        """Starts no more searches; those that run end by themselves."""
        self._executor.shutdown(wait=False, cancel_futures=True)
