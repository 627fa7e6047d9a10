"""When to stop asking a service that fails, and how long to leave it alone.

Plain state without locks, clocks or calls: whoever owns it holds a lock, waits and asks.
"""

from __future__ import annotations

import random
from collections.abc import Callable


class Breaker:
    """Closed: ask. Open: do not ask. On trial: ask, but one failure opens it again.

    The pauses between trials double from `retry_base_s` to `retry_max_s`, each shortened by up to a half at random,
    so that many clients do not return to a restarted service at the same moment. They start over at the first
    success: a service that shakes hands but does not answer is not asked more and more often.

    Args:
        failure_threshold: consecutive failures that open it.
        retry_base_s: the first pause.
        retry_max_s: the longest pause.
        jitter: a number in [0, 1) a call.
    """

    def __init__(
        self,
        failure_threshold: int,
        retry_base_s: float,
        retry_max_s: float,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._threshold = failure_threshold
        self._base_s = retry_base_s
        self._max_s = retry_max_s
        self._jitter = jitter
        self._failures = 0
        self._trials = 0
        self._open = False

    @property
    def is_open(self) -> bool:
        """Whether the service must be left alone."""
        return self._open

    def success(self) -> None:
        """The service answered."""
        self._failures = 0
        self._trials = 0

    def failure(self) -> None:
        """The service did not answer, or answered that it cannot."""
        self._failures += 1
        if self._failures >= self._threshold or self._trials > 0:
            self._open = True

    def trip(self) -> None:
        """There is nobody to ask: opens at once."""
        self._open = True

    def pause_s(self) -> float:
        """Seconds to wait before the next trial; each call begins a longer pause."""
        pause = min(self._max_s, self._base_s * 2.0 ** min(self._trials, 64))
        self._trials += 1
        return pause * (1.0 - 0.5 * self._jitter())

    def close(self) -> None:
        """The trial may begin (or, before any failure, the first calls)."""
        self._open = False
        self._failures = 0
