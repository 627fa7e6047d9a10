"""Argument types that several commands share: numbers within bounds, refused with a sentence that says which."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def at_least(kind: type[Number], low: Number) -> Callable[[str], Number]:
    """A number of at least `low`, and finite."""

    def parse(text: str) -> Number:
        value = _number(kind, text)
        if not low <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be {low} or more, not {text}")
        return value

    return parse


def between(kind: type[Number], low: Number, high: Number) -> Callable[[str], Number]:
    """A number within `low` and `high`, both included."""

    def parse(text: str) -> Number:
        value = _number(kind, text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must lie in {low}..{high}, not {text}")
        return value

    return parse


def _number(kind: type[Number], text: str) -> Number:
    try:
        return kind(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from error
