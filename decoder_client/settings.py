"""What a setting of a decode may be: the one place that says so, for Python, the commands and transformers' `generate`.

Knows names and numbers only, and imports nothing heavy, so that the commands can ask while they read their arguments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from decoder_client.errors import SettingError


@dataclass(frozen=True, slots=True)
class Setting:
    """The values of one setting.

    Attributes:
        kind: what its text is read as: int for whole numbers only.
        low: the smallest value, but for `besides`.
        high: the largest value; infinite for none, which a value itself may not be.
        expected: the same in words.
        besides: one more value.
    """

    kind: type[int] | type[float]
    low: float
    high: float
    expected: str
    besides: float | None = None

    def allows(self, value: object) -> bool:
        """Whether `value` is one."""
        if isinstance(value, bool) or not isinstance(value, Integral if self.kind is int else Real):
            return False
        number = int(value) if isinstance(value, Integral) else float(value)
        return number == self.besides or (self.low <= number <= self.high and number < math.inf)


# Dividing float32 logits by less than the lowest temperature, or multiplying them by an extreme penalty, overflows.
SETTINGS = {
    "temperature": Setting(
        float, 1e-6, 1e6, "0, which decodes greedily, or a number from 0.000001 to 1000000", besides=0.0
    ),
    "top_k": Setting(int, 1, math.inf, "a whole number of 1 or more"),
    "top_p": Setting(float, math.nextafter(0.0, 1.0), 1.0, "above 0 and at most 1"),
    "repetition_penalty": Setting(float, 0.01, 100.0, "a number from 0.01 to 100"),
    "seed": Setting(int, 0, 2**64 - 1, f"a whole number from 0 to {2**64 - 1}"),
    "max_new_tokens": Setting(int, 0, math.inf, "a whole number of 0 or more"),
    "max_depth": Setting(int, 1, 1024, "a whole number from 1 to 1024"),
    "nodes": Setting(int, 0, 1024, "a whole number from 0 to 1024"),
}


def check_setting(name: str, value: object) -> None:
    """Raises `SettingError`, which names the setting and what it may be, unless `value` is allowed."""
    setting = SETTINGS[name]
    if not setting.allows(value):
        raise SettingError(f"{name} must be {setting.expected}, not {value!r}.")


def check_stops(stops: Sequence[str]) -> None:
    """Raises `SettingError` unless all are texts of at least one character."""
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise SettingError(f"A stop string must be a text that is not empty, not {stop!r}.")
