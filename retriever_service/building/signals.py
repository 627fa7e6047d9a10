"""Holds signals back while something runs that must not be torn in two, such as the start of Ray's processes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_held() -> Iterator[None]:
    """Holds SIGINT, SIGTERM and SIGHUP back; the first that came is acted on at the end, whatever happened meanwhile.

    Does nothing outside the main thread, which alone hears signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        held.append(number)

    before = {number: signal.getsignal(number) for number in _STOPPING}
    heard = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in heard:
        signal.signal(number, hold)
    try:
        yield
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])
