"""How many requests a caller may have unanswered on a stream, learnt from how long answers take.

What is sent to a server beyond what it answers soon waits unread, in sockets and in gRPC's buffers, where nobody can
refuse it, and makes everybody's answers late. So a caller whose answers come late sends less, as TCP does: half as
much, and then one more at a time while they come soon. One request at a time is always allowed. Needs a lock of its
user's; knows neither messages nor clocks.
"""

from __future__ import annotations

MOST = 32
"""Unanswered requests of a stream; as many as a server works on at a time."""
_SOON_S = 10e-3
"""What an answer may take longer than the quickest; what servers let a search wait at most, too."""


class Allowance:
    """Times are seconds of one clock."""

    __slots__ = ("_allowed", "_cut_at", "_least_s")

    def __init__(self) -> None:
        self._allowed = float(MOST)
        self._cut_at = float("-inf")
        self._least_s = float("inf")

    def allows(self, outstanding: int) -> bool:
        """Whether one more may be sent while so many are unanswered."""
        return outstanding < 1 or outstanding + 1 <= self._allowed

    def answered(self, sent: float, now: float, server_s: float = 0.0) -> None:
        """An answer came.

        Args:
            sent: when its request was.
            now: the time.
            server_s: that the server says it took, which is no reason to send less.
        """
        away_s = now - sent - server_s
        self._least_s = min(self._least_s, away_s)
        if away_s <= self._least_s + _SOON_S:
            self._allowed = min(float(MOST), self._allowed + 1.0 / self._allowed)
        elif sent >= self._cut_at:  # what was sent before is late for the same reason
            self._allowed = max(1.0, self._allowed / 2.0)
            self._cut_at = now
