"""Counts of a retriever client's calls and their latency. Knows numbers only."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, fields, replace

import numpy as np

from decoder_client.drafts import Coverage
from dresd.histogram import Cumulated, Histogram

_REMEMBERED = 4096
"""Latencies that percentiles are computed over."""


@dataclass(frozen=True, slots=True)
class RetrieverStats:
    """What happened to the calls of one client.

    Attributes:
        answered: calls that returned drafts.
        late: calls whose deadline passed.
        failed: calls that were refused, or lost with the connection.
        skipped: calls not made, because the service was being left alone.
        reconnects: handshakes after the first, of all servers.
        partial: calls that returned drafts which some partitions are missing from.
        partitions_asked, partitions_answered: of the calls that returned drafts, summed.
        hedged: second requests, made because a first one was overdue.
        total_ms: time in answered calls.
        p50_ms, p90_ms, p99_ms: of the latest answered calls; 0 before the first.
        buckets: how long the answered calls took.
    """

    answered: int = 0
    late: int = 0
    failed: int = 0
    skipped: int = 0
    reconnects: int = 0
    partial: int = 0
    partitions_asked: int = 0
    partitions_answered: int = 0
    hedged: int = 0
    total_ms: float = 0.0
    p50_ms: float = 0.0
    p90_ms: float = 0.0
    p99_ms: float = 0.0
    buckets: Cumulated = ()

    @property
    def calls(self) -> int:
        """Calls made or skipped."""
        return self.answered + self.late + self.failed + self.skipped


class CallRecorder:
    """Adds calls up; from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys((one.name for one in fields(RetrieverStats) if one.type == "int"), 0)
        self._seconds = Histogram()
        self._latest_ms: deque[float] = deque(maxlen=_REMEMBERED)

    def answered(self, seconds: float, coverage: Coverage, hedged: int) -> None:
        """A call returned drafts after `seconds`; `hedged` second requests were made for it."""
        with self._lock:
            counts = self._counts
            counts["answered"] += 1
            counts["partial"] += not coverage.is_full
            counts["partitions_asked"] += coverage.partitions_asked
            counts["partitions_answered"] += coverage.partitions_answered
            counts["hedged"] += hedged
            self._seconds.observe(seconds)
            self._latest_ms.append(seconds * 1e3)

    def late(self) -> None:
        """A call's deadline passed."""
        self._count("late")

    def failed(self) -> None:
        """A call was refused or lost."""
        self._count("failed")

    def skipped(self) -> None:
        """A call was not made."""
        self._count("skipped")

    def reconnected(self) -> None:
        """A handshake after the first."""
        self._count("reconnects")

    def snapshot(self) -> RetrieverStats:
        """The sums so far."""
        with self._lock:
            stats = RetrieverStats(
                **self._counts, total_ms=self._seconds.sum_s * 1e3, buckets=self._seconds.cumulated()
            )
            latest = list(self._latest_ms)
        if not latest:
            return stats
        p50, p90, p99 = np.percentile(latest, (50, 90, 99)).tolist()
        return replace(stats, p50_ms=p50, p90_ms=p90, p99_ms=p99)

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1
