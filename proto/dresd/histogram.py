"""Durations counted in buckets, cheaply enough to be done for every request. Knows numbers only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper ends of the buckets, for what takes from a fraction of a millisecond to seconds."""

Cumulated = tuple[tuple[float, int], ...]
"""Upper ends of buckets in seconds, the last one infinite, and how many durations were not longer."""


class Histogram:
    """How often a duration lay in which bucket. One thread adds, any may read.

    Attributes:
        sum_s: of all durations.
    """

    __slots__ = ("_bounds", "_counts", "sum_s")

    def __init__(self, bounds_s: Sequence[float] = SECONDS) -> None:
        self._bounds = tuple(bounds_s)
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """One more."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum_s += seconds

    def cumulated(self) -> Cumulated:
        """The buckets so far."""
        total = 0
        buckets = []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        return tuple(buckets)
