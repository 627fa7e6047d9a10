"""How the report writes numbers. Knows measures' types; no markup."""

from __future__ import annotations

from decoder_client.evaluation.results import Interval

UNKNOWN = "–"


def percent(share: float) -> str:
    """A share as per cent."""
    return f"{share:.0%}"


def span(interval: Interval, unit: str = "") -> str:
    """Both ends of an interval."""
    return f"{interval.low:.2f} to {interval.high:.2f}{unit}"


def with_span(interval: Interval, unit: str = "") -> str:
    """A value and its interval."""
    return f"{interval.value:.2f}{unit} ({span(interval, unit)})"


def milliseconds(seconds: float) -> str:
    """About three digits; "0" for exactly none."""
    value = 1000.0 * seconds
    if value == 0:
        return "0"
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def counted(count: int, singular: str, plural: str = "") -> str:
    """A count and its noun."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"
