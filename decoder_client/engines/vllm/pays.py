"""Whether drafting pays at one load of an engine: on while it does, else off, with a short trial now and then.

A trial is judged by itself, not by what was before it, so that another kind of traffic is noticed at once. What a
failed one lost has to be earned back before the next: trials cost a hundredth of the time at most, so one that hardly
lost anything is repeated soon. Knows seconds only.
"""

from __future__ import annotations

_MEMORY = 16
"""Steps of one request that decide whether it goes on; of several requests fewer say as much."""
_TRIAL = 4
"""Steps of a trial."""
_MOST_LOSS = 1.5
"""Steps without drafts that a trial may cost before it has ended."""
_SURE = 1.5
"""Times the cost, from which the gain leaves no doubt."""
_SHARE = 0.01
"""Of the time without drafts, what trials may cost."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 16, 512
"""Steps between trials, however little or much one lost."""


class Pays:
    """Asked once a step, and told what each step took, and what those with drafts gained and cost."""

    def __init__(self, requests: int, *, is_on: bool) -> None:
        """For about so many requests; `is_on` False begins with a pause."""
        self._gain_s = self._cost_s = self._debt_s = 0.0
        self._tries = 0
        self._left = max(_TRIAL, _MEMORY // requests)  # steps until it is judged
        self._waited = 0
        self._is_on = is_on
        self._on_trial = not is_on

    @property
    def is_on(self) -> bool:
        """Whether drafting pays, or is tried."""
        return self._is_on

    @property
    def on_trial(self) -> bool:
        """Whether it is still to show that it pays, after it did not."""
        return self._is_on and self._on_trial

    @property
    def is_doubtful(self) -> bool:
        """Whether gain and cost are so near that the time of passes without drafts should be known well."""
        return self._gain_s < _SURE * self._cost_s

    def opens(self) -> bool:
        """Whether to draft at this step."""
        if not self._is_on:
            self._waited += 1
            paid = self._waited > _SHORTEST_PAUSE and self._debt_s <= 0
            if paid or self._waited > _LONGEST_PAUSE:
                self._gain_s = self._cost_s = self._debt_s = 0.0
                self._tries, self._left, self._is_on = 0, _TRIAL, True
        return self._is_on

    def passed(self, seconds: float) -> None:
        """What a step took that nothing was drafted for or verified in."""
        self._debt_s = max(0.0, self._debt_s - _SHARE * seconds)

    def record(self, gain_s: float, cost_s: float, plain_s: float) -> None:
        """What drafting gained and cost in one step, which would have taken `plain_s` without."""
        self._tries += 1
        weight = max(1.0 / self._tries, 1.0 / _MEMORY)
        self._gain_s += weight * (gain_s - self._gain_s)
        self._cost_s += weight * (cost_s - self._cost_s)
        self._left -= 1
        if self._left > 0 and (self._cost_s - self._gain_s) * self._tries < _MOST_LOSS * plain_s:
            return
        if self._gain_s >= self._cost_s:
            self._on_trial = False
        elif self._is_on:
            self._debt_s = (self._cost_s - self._gain_s) * min(self._tries, _MEMORY)
            self._is_on, self._on_trial, self._waited = False, True, 0
