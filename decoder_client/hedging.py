"""When a second server is asked the same, and how often: after most answers would have come, of few requests.

(Dean & Barroso, "The Tail at Scale", 2013: a second request after the 95th percentile of the latency adds 5% load and
takes away most of the tail.) Numbers only; knows no requests, no servers and no clock.
"""

from __future__ import annotations

import threading
from collections import deque

_QUANTILE = 0.95
_REMEMBERED = 256
"""Latencies that the percentile is of."""
_FIRST = 32
"""Fewer say nothing about a tail."""
_EVERY = 16
"""Latencies between two looks at the percentile."""
_SAVED = 8.0
"""Second requests that quiet times may save up."""


class Hedging:
    """One client's second requests; several threads may use it.

    Args:
        share: second requests to first ones, at most; 0 is none.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._lock = threading.Lock()
        self._tokens = 0.0
        self._latest_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._recorded = 0
        self._delay_s: float | None = None

    @property
    def delay_s(self) -> float | None:
        """The 95th percentile of the latest latencies; None while too few are known."""
        return self._delay_s

    def asked(self) -> None:
        """A first request was made."""
        with self._lock:
            self._tokens = min(_SAVED, self._tokens + self._share)

    def answered(self, seconds: float) -> None:
        """What a first request, with its second one if it had one, took."""
        with self._lock:
            self._latest_s.append(seconds)
            self._recorded += 1
            if self._recorded >= _FIRST and self._recorded % _EVERY == 0:
                ordered = sorted(self._latest_s)
                self._delay_s = ordered[min(len(ordered) - 1, int(_QUANTILE * len(ordered)))]

    def may_ask(self) -> bool:
        """Whether a second request may be made now; if so, it counts."""
        with self._lock:
            if self._tokens < 1.0:
                return False
            self._tokens -= 1.0
            return True
