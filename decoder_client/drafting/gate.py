"""Whether what costs time at every step pays for itself, found out by doing it less and less while it does not.

Knows seconds only.
"""

from __future__ import annotations

_MEMORY = 16
_LONGEST_PAUSE = 64


class Gate:
    """Open at every step while what lies behind it pays; else at every 2nd, 4th, ... step, to see whether it does."""

    def __init__(self) -> None:
        self._gain_s = 0.0
        self._cost_s = 0.0
        self._tries = 0
        self._pause = 1
        self._waited = 0

    def begin(self) -> None:
        """Something new begins, for which it may pay: open at the next step."""
        self._pause = 1

    def opens(self) -> bool:
        """Asked once a step: whether to do it at this one."""
        self._waited += 1
        return self._waited >= self._pause

    def record(self, gain_s: float, cost_s: float) -> None:
        """What doing it once gained and cost; decides about the next times."""
        self._tries += 1
        weight = max(1.0 / self._tries, 1.0 / _MEMORY)
        self._gain_s += weight * (gain_s - self._gain_s)
        self._cost_s += weight * (cost_s - self._cost_s)
        if self._gain_s >= self._cost_s or self._tries < _MEMORY:
            self._pause = 1
        elif self._waited > 0:  # the first to be recorded since it opened: a step may have many sequences
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._waited = 0
