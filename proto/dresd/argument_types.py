"""Argument types of the project's commands: what they refuse is wrong usage, in a sentence that says why.

Knows numbers, texts, paths and addresses; no command.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dresd.addresses import AddressError, check_address

Number = TypeVar("Number", int, float)

_SHOWN_CHARACTERS = 60


def number(kind: type[Number], text: str) -> Number:
    """A number of a kind; ArgumentTypeError for any other text."""
    try:
        return kind(text)
    except ValueError as error:
        expected = "whole number" if kind is int else "number"
        raise argparse.ArgumentTypeError(f"must be a {expected}, not {shown(text)}") from error


def whole_number(text: str) -> int:
    """A whole number, whose bounds somebody else knows."""
    return number(int, text)


def any_number(text: str) -> float:
    """A number, whose bounds somebody else knows."""
    return number(float, text)


def at_least(kind: type[Number], low: Number) -> Callable[[str], Number]:
    """A number of at least `low`, and finite."""

    def parse(text: str) -> Number:
        value = number(kind, text)
        if not low <= value < math.inf:
            raise argparse.ArgumentTypeError(f"must be {low} or more, not {shown(text)}")
        return value

    return parse


def between(kind: type[Number], low: Number, high: Number) -> Callable[[str], Number]:
    """A number within `low` and `high`, both included."""

    def parse(text: str) -> Number:
        value = number(kind, text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must lie in {low}..{high}, not {shown(text)}")
        return value

    return parse


def numbers_between(low: int, high: int) -> Callable[[str], tuple[int, ...]]:
    """Whole numbers within `low` and `high` with commas between them, each once, ascending."""
    one = between(int, low, high)

    def parse(text: str) -> tuple[int, ...]:
        try:
            return tuple(sorted({one(part) for part in text.split(",")}))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"takes whole numbers with commas between them: each {error}") from error

    return parse


def non_empty(text: str) -> str:
    """A text that is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def some_path(text: str) -> Path:
    """A path; an empty text would mean the folder one is in, which nobody writes so."""
    return Path(non_empty(text))


def server_address(text: str) -> str:
    """HOST:PORT of a server to call, or another address that gRPC understands."""
    try:
        check_address(text)
    except AddressError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def shown(text: str) -> str:
    """What was typed, quoted and short."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")
