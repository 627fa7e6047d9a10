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
    done: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[], None]) -> None:
        # A future that was cancelled meanwhile, or a loop that is gone, has nobody waiting for the outcome.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if done.done() else set_outcome())

    def body() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the awaiting caller gets it
            settle(functools.partial(done.set_exception, error))
        else:
            settle(functools.partial(done.set_result, result))

    threading.Thread(target=body, name="dresd-load", daemon=True).start()
    return await done
