"""How much each writer may still send. Knows names and numbers; not what is sent. Used from one event loop."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

_WINDOW_S = 10.0
_REMEMBERED = 4096
"""Writers; one that was quiet for longest is forgotten, and may send a whole window's worth again."""


class WriterRates:
    """Lets a writer send `rate` a second, what it did not send in the last ten seconds included.

    Args:
        rate: of anything.
        clock: seconds, monotonic.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what it may send, as of when

    def takes(self, writer: str, amount: int) -> bool:
        """Whether a writer may send so much now; if so it is counted. One that may send anything may send once more
        than it has left, so that no single request is too large for ever.
        """
        now, full = self._clock(), self._rate * _WINDOW_S
        left, then = self._left.pop(writer, (full, now))
        left = min(full, left + (now - then) * self._rate)
        allowed = left > 0.0
        self._left[writer] = (left - amount if allowed else left, now)
        if len(self._left) > _REMEMBERED:
            self._left.popitem(last=False)
        return allowed
