"""Where numbers lie on an axis, and which of them are written there. Knows numbers only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_CLOSEST = 0.09
"""Ticks nearer than this share of the axis would write over each other."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of numbers with ticks inside it; `logarithmic` needs positive ones."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end; the middle where both are one."""
        low, high = self._scaled(self.low), self._scaled(self.high)
        return (self._scaled(value) - low) / (high - low) if high > low else 0.5

    def _scaled(self, value: float) -> float:
        return math.log2(value) if self.logarithmic else value


def even_axis(values: Sequence[float], most_ticks: int = 6) -> Axis:
    """Round ticks that enclose all values (at least one)."""
    low, high = min(values), max(values)
    if high <= low:
        margin = max(0.5, abs(low) / 2)
        low, high = low - margin, high + margin
    rough = (high - low) / (most_ticks - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(number * step, 12) for number in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks)


def doubling_axis(values: Sequence[float]) -> Axis:
    """Logarithmic over positive values (at least one), with ticks at them where there is room."""
    axis = Axis(min(values), max(values), (), logarithmic=True)
    return Axis(axis.low, axis.high, _spaced(axis, sorted(set(values))), logarithmic=True)


def counting_axis(last: int) -> Axis:
    """From 1 to `last`, with ticks at whole numbers where there is room."""
    axis = Axis(1, max(last, 1), ())
    return Axis(axis.low, axis.high, _spaced(axis, range(1, max(last, 1) + 1)))


def _spaced(axis: Axis, candidates: Sequence[float]) -> tuple[float, ...]:
    """The last candidate, and before it those that keep their distance."""
    chosen = [candidates[-1]]
    for value in reversed(candidates[:-1]):
        if axis.place(chosen[-1]) - axis.place(value) >= _CLOSEST:
            chosen.append(value)
    return tuple(reversed(chosen))
