"""Who gets a search thread next, and who is turned away: a queue bounded in length and, above all, in time.

Who would wait long is refused at once, before anything is done for it: of more requests than can be answered, those
that are answered are then answered soon, and the others cost little. How long one would wait is known by how often
somebody's turn came lately. Used from one event loop. Knows no searches and no threads, only how many there are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

_LONGEST_WAIT_S = 10e-3
"""A fifth of what decoders wait by default; searches that take longer than this may wait for one before them."""
_NEWEST_COUNTS = 0.1
"""Weight of the newest interval between two turns in what they usually are."""


class QueueFullError(Exception):
    """There are more searches than can be done soon."""


class ExpiredError(Exception):
    """The caller stopped waiting before the search began."""


class _Place:
    __slots__ = ("deadline", "turn")

    def __init__(self, deadline: float | None, turn: asyncio.Future[None]) -> None:
        self.deadline, self.turn = deadline, turn


class SearchQueue:
    """`threads` at a time; up to `size` more wait, first come, first served.

    Args:
        threads: that can be taken.
        size: places in the queue.
        clock: seconds, monotonic.
    """

    def __init__(self, threads: int, size: int, clock: Callable[[], float]) -> None:
        self._threads = self._free = threads
        self._size = size
        self._clock = clock
        self._line: deque[_Place] = deque()
        self._turn_at: float | None = None  # when somebody's turn came while others went on waiting
        self._turn_every_s = 0.0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._line)

    @property
    def is_full(self) -> bool:
        """Whether one more is refused."""
        waiting = len(self._line)
        is_long = waiting >= self._threads and waiting * self._turn_every_s >= _LONGEST_WAIT_S
        return is_long or waiting >= self._size

    async def take_thread(self, deadline: float | None) -> None:
        """Waits for a thread, which `give_thread` gives back; cancelled, it gives up its place.

        Args:
            deadline: on the clock; None is never.

        Raises:
            QueueFullError: the queue is full.
            ExpiredError: the deadline passed before there was a thread.
        """
        if self._free > 0:
            if deadline is not None and self._clock() >= deadline:
                raise ExpiredError
            self._free -= 1
            return
        if self.is_full:
            raise QueueFullError
        place = _Place(deadline, asyncio.get_running_loop().create_future())
        self._line.append(place)
        try:
            await place.turn
        except asyncio.CancelledError:
            if place.turn.cancelled():
                with contextlib.suppress(ValueError):  # a thread passed it over meanwhile
                    self._line.remove(place)
            elif place.turn.exception() is None:
                self.give_thread()
            raise

    def give_thread(self) -> None:
        """A thread is free: the next one in the queue gets it."""
        now = self._clock()
        if self._turn_at is not None:
            self._turn_every_s += _NEWEST_COUNTS * (now - self._turn_at - self._turn_every_s)
        while self._line:
            place = self._line.popleft()
            if place.turn.cancelled():
                continue
            if place.deadline is not None and now >= place.deadline:
                place.turn.set_exception(ExpiredError())
            else:
                self._turn_at = now if self._line else None
                place.turn.set_result(None)
                return
        self._turn_at = None
        self._free += 1
