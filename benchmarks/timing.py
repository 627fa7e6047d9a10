"""Times of calls, taken in turn, and how they are summed up. Knows nothing of what is called."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_IN_A_ROW = 50
"""Calls of one kind before the next kind's turn: enough to be warm, too few for the machine to change."""


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds: the median, the quartiles around it, and the 99th percentile; of so many calls."""

    median: float
    lower: float
    upper: float
    p99: float
    calls: int

    @classmethod
    def of(cls, microseconds: NDArray[np.float64]) -> Times:
        """Sums up."""
        lower, median, upper, p99 = np.percentile(microseconds, [25, 50, 75, 99]).tolist()
        return cls(median, lower, upper, p99, len(microseconds))

    def __str__(self) -> str:
        return f"{self.median:,.0f} µs ({self.lower:,.0f} to {self.upper:,.0f}; p99 {self.p99:,.0f})"


def in_turn(kinds: Mapping[str, Callable[[int], object]], calls: int) -> dict[str, NDArray[np.float64]]:
    """Calls every kind `calls` times with 0, 1, 2, ..., some calls of each in a row, after one such turn to warm up.

    Returns:
        Microseconds of each call, in order.
    """
    taken = {name: np.zeros(calls) for name in kinds}
    for call in kinds.values():
        for number in range(min(_IN_A_ROW, calls)):
            call(number)
    gc.collect()
    for begin in range(0, calls, _IN_A_ROW):
        for name, call in kinds.items():
            for number in range(begin, min(begin + _IN_A_ROW, calls)):
                begun = time.perf_counter_ns()
                call(number)
                taken[name][number] = (time.perf_counter_ns() - begun) / 1000
    return taken
