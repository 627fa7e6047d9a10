"""Runs searches on a fixed number of threads, with a bounded queue before them, or at once where that is quicker.

Handing a search to a thread and its result back takes longer than a short search does. So while searches are short and
nothing else runs, one is done on the event loop's own thread. Used from one event loop. Knows neither messages nor
what a search is: it runs a function, or refuses to.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_SHORT_S = 0.5e-3
"""A search that usually takes less may hold up the event loop."""
_KNOWN_AFTER = 16
"""Searches after which is known what they usually take."""
_NEWEST_COUNTS = 0.2
"""Weight of the newest search in what they usually take: one that waits for a disk ends the trust for a dozen."""


class QueueFullError(Exception):
    """As many searches run and wait as may."""


class ExpiredError(Exception):
    """The caller stopped waiting before the search began."""


class SearchPool:
    """`threads` searches at a time; up to `queue_size` more wait their turn.

    Args:
        threads: searches that run at the same time.
        queue_size: searches that may wait.

    Attributes:
        running: searches that have a thread now.
        waiting: searches that wait for one.
    """

    def __init__(self, threads: int, queue_size: int) -> None:
        self._executor = ThreadPoolExecutor(threads, "dresd-search")
        self._free = asyncio.Semaphore(threads)
        self._queue_size = queue_size
        self._usual_s = 0.0
        self._searches = 0
        self.running = 0
        self.waiting = 0

    @property
    def runs_at_once(self) -> bool:
        """Whether the next small `run` is done when it is called, without anything to wait for."""
        is_short = self._searches >= _KNOWN_AFTER and self._usual_s < _SHORT_S
        return is_short and self.running == 0 and self.waiting == 0

    async def run(self, search: Callable[[], T], deadline: float | None, *, is_small: bool = True) -> tuple[T, float]:
        """Runs `search` in a search thread. Cancelling the caller gives up a place in the queue at once.

        Args:
            search: the work; it may not be interrupted once it runs.
            deadline: on `time.monotonic`'s clock; None is never.
            is_small: it is no more work than others usually are.

        Returns:
            What `search` returned, and the seconds it waited in the queue.

        Raises:
            QueueFullError: before waiting.
            ExpiredError: the deadline passed before the search began; it never ran.
        """
        arrived = time.monotonic()
        if is_small and self.runs_at_once:
            if deadline is not None and arrived >= deadline:
                raise ExpiredError
            return self._timed(search), 0.0
        await self._take_thread()
        began = time.monotonic()
        if deadline is not None and began >= deadline:
            self._free.release()
            raise ExpiredError
        self.running += 1
        loop = asyncio.get_running_loop()
        future = self._executor.submit(self._timed, search)
        found: asyncio.Future[T] = loop.create_future()

        def hand_over(done: Future[T]) -> None:
            # A search may outlive its server's event loop, when it was not done within the grace period.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._finish, done, found)

        future.add_done_callback(hand_over)
        return await found, began - arrived

    def _timed(self, search: Callable[[], T]) -> T:
        began = time.monotonic()
        try:
            return search()
        finally:
            # Threads may overwrite each other's news, which does no harm.
            self._usual_s += _NEWEST_COUNTS * (time.monotonic() - began - self._usual_s)
            self._searches += 1

    def _finish(self, done: Future[T], found: asyncio.Future[T]) -> None:
        # The thread is free only now, which may be long after a caller that was cancelled.
        self._free.release()
        self.running -= 1
        if found.done():
            return
        if done.cancelled():
            found.cancel()
        elif (error := done.exception()) is not None:
            found.set_exception(error)
        else:
            found.set_result(done.result())

    async def _take_thread(self) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        if self.waiting >= self._queue_size:
            raise QueueFullError
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """Starts no more searches; those that run end by themselves."""
        self._executor.shutdown(wait=False, cancel_futures=True)
