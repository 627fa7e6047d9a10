"""Argument types that several commands share; what they refuse, they refuse with a sentence that says why."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from decoder_client.errors import DecoderError
from decoder_client.retriever_config import check_address, check_collection
from decoder_client.settings import SETTINGS, check_stops

Number = TypeVar("Number", int, float)


def add_deadline(parser: argparse.ArgumentParser) -> None:
    """Declares --deadline-ms."""
    parser.add_argument(
        "--deadline-ms",
        type=at_least(float, 0.1),
        default=50.0,
        metavar="MS",
        help="longest wait for the service's drafts; default: 50",
    )


def add_collection(parser: argparse.ArgumentParser) -> None:
    """Declares --collection."""
    parser.add_argument(
        "--collection",
        type=collection_name,
        default="",
        metavar="NAME",
        help="the service's datastore to draft from; default: its default one",
    )


def setting(name: str) -> Callable[[str], float]:
    """A setting of a decode, with the bounds it has everywhere."""

    def parse(text: str) -> float:
        value = _number(SETTINGS[name].kind, text)
        if not SETTINGS[name].allows(value):
            raise argparse.ArgumentTypeError(f"must be {SETTINGS[name].expected}, not {text}")
        return value

    return parse


def stop_string(text: str) -> str:
    """A text of at least one character."""
    _refused_by(lambda: check_stops([text]))
    return text


def retriever_address(text: str) -> str:
    """ "HOST:PORT", or another address that gRPC knows."""
    _refused_by(lambda: check_address(text))
    return text


def collection_name(text: str) -> str:
    """What a service may call one of its datastores."""
    _refused_by(lambda: check_collection(text))
    return text


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


def _refused_by(check: Callable[[], None]) -> None:
    try:
        check()
    except DecoderError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
