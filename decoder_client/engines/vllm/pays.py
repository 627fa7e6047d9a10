"""Whether drafting pays at one load of an engine: on while it does, else off, with a short trial now and then.

A trial is judged by itself, not by what was before it, so that another kind of traffic is noticed at once; the pauses
between trials grow while trials fail. Knows seconds only.
"""

from __future__ import annotations

_MEMORY = 16
"""Steps that decide whether it goes on."""
_TRIAL = 4
"""Steps of a trial."""
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 256
"""Steps between trials."""


class Pays:
    """Asked once a step, and told what each step with drafts gained and cost."""

    def __init__(self) -> None:
        self._gain_s = self._cost_s = 0.0
        self._tries = 0
        self._left = _MEMORY  # steps until it is judged
        self._pause = 0
        self._waited = 0
        self._is_on = True

    @property
    def on_trial(self) -> bool:
        """Whether it is still to show that it pays, after it did not."""
        return self._is_on and self._pause > 0

    def opens(self) -> bool:
        """Whether to draft at this step."""
        if not self._is_on:
            self._waited += 1
            if self._waited > self._pause:
                self._gain_s = self._cost_s = 0.0
                self._tries, self._left, self._is_on = 0, _TRIAL, True
        return self._is_on

    def record(self, gain_s: float, cost_s: float) -> None:
        """What drafting gained and cost in one step."""
        self._tries += 1
        weight = max(1.0 / self._tries, 1.0 / _MEMORY)
        self._gain_s += weight * (gain_s - self._gain_s)
        self._cost_s += weight * (cost_s - self._cost_s)
        self._left -= 1
        if self._left > 0:
            return
        if self._gain_s >= self._cost_s:
            self._pause = 0
        elif self._is_on:
            self._is_on, self._waited = False, 0
            self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
