"""Long work beside the event loop, in threads that keep no process alive. Knows nothing of the work."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Awaits `work` done by a thread that does not keep the process alive, so a long load can be given up."""
    loop = asyncio.get_running_loop()
    # Emptied in the end: a future keeps an exception, whose traceback leads to what was at work here, and back to the
    # future. In such a circle an open datastore would stay mapped until somebody looks for circles.
    waiting: list[asyncio.Future[T]] = [loop.create_future()]

    def settle(set_outcome: Callable[[asyncio.Future[T]], None]) -> None:
        def hand_over() -> None:
            for done in waiting:
                if not done.done():
                    set_outcome(done)

        # A future that was cancelled meanwhile, or a loop that is gone, has nobody waiting for the outcome.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(hand_over)

    def body() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the awaiting caller gets it
            settle(functools.partial(_fail, error=error))
        else:
            settle(functools.partial(_succeed, result=result))

    threading.Thread(target=body, name="dresd-load", daemon=True).start()
    try:
        return await waiting[0]
    finally:
        waiting.clear()


def _fail(done: asyncio.Future[T], error: Exception) -> None:
    done.set_exception(error)


def _succeed(done: asyncio.Future[T], result: T) -> None:
    done.set_result(result)
