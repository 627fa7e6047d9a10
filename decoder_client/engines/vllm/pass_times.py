"""How long an engine's passes take by the number of requests and of draft tokens in them, measured while it serves.

Every step that only decodes is a measurement. What was not seen yet is inferred from what was: between two numbers of
draft tokens on a line, and for another number of requests by the same ratio to a pass without drafts. Nothing is
known to be dear before it was tried. Knows numbers only.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

_REMEMBERED = 15
"""Times of each kind of pass; their median counts, so that one that was disturbed does not."""


def level(requests: int) -> int:
    """Numbers of requests that are alike: 1, 2, 3, 4, and then within about a quarter of each other."""
    return requests if requests <= 4 else round(3.1 * math.log2(requests)) - 2


@dataclass(slots=True)
class _Kind:
    """Passes of one kind.

    Attributes:
        extra: draft tokens of the latest ones.
        seconds: what they took.
    """

    extra: deque[int] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))


class PassTimes:
    """Times of passes of one engine."""

    def __init__(self) -> None:
        # By level of requests, then by the number of binary digits of the draft tokens; 0 is a pass without any.
        self._kinds: dict[int, dict[int, _Kind]] = {}
        self._requests: dict[int, int] = {}

    def record(self, requests: int, extra: int, seconds: float) -> None:
        """A pass over so many requests, one token each, and `extra` draft tokens."""
        kind = self._kinds.setdefault(level(requests), {}).setdefault(extra.bit_length(), _Kind())
        kind.extra.append(extra)
        kind.seconds.append(seconds)
        self._requests[level(requests)] = requests

    def plain_count(self, requests: int) -> int:
        """How many of the latest passes without drafts are known for about so many requests, at most 15."""
        kind = self._kinds.get(level(requests), {}).get(0)
        return 0 if kind is None else len(kind.seconds)

    def plain(self, requests: int) -> float | None:
        """Seconds of a pass without drafts; None if it was never seen with about so many requests."""
        kind = self._kinds.get(level(requests), {}).get(0)
        return None if kind is None else median(kind.seconds)

    def most_extra(self, requests: int) -> int:
        """The most draft tokens that are known of a pass over about so many requests; 0 if none are."""
        kinds = self._kinds.get(level(requests), {}).values()
        return max((max(kind.extra) for kind in kinds), default=0)

    def seconds(self, requests: int, most: int) -> NDArray[np.float64]:
        """float64 [most + 1]: of passes with 0, 1, ..., `most` draft tokens, never falling.

        Raises:
            ValueError: `plain` is None.
        """
        plain = self.plain(requests)
        if plain is None:
            raise ValueError(f"no pass over about {requests} requests was measured")
        extra, ratios = self._ratios(requests)
        wanted = np.arange(most + 1, dtype=np.float64)
        times = np.interp(wanted, extra, ratios)
        if len(extra) > 1:
            slope = (ratios[-1] - ratios[-2]) / (extra[-1] - extra[-2])
            times += slope * np.maximum(wanted - extra[-1], 0.0)
        result: NDArray[np.float64] = plain * times
        return result

    def _ratios(self, requests: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Draft tokens, ascending from 0, and times by that of a pass without; of the most alike level that has any."""
        own = level(requests)
        known = [at for at, kinds in self._kinds.items() if 0 in kinds and len(kinds) > 1]
        if not known:
            return np.zeros(1), np.ones(1)
        nearest = min(known, key=lambda at: abs(at - own))
        kinds = self._kinds[nearest]
        points = sorted((float(np.mean(kind.extra)), median(kind.seconds)) for kind in kinds.values())
        extra, times = np.array(points).T
        # With more requests, as many more draft tokens make a pass as much longer.
        scale = 1.0 if nearest == own else requests / self._requests[nearest]
        return extra * scale, np.maximum.accumulate(times / times[0])
