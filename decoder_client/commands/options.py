"""Argument types that several commands share; what they refuse, they refuse with a sentence that says why."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from decoder_client.errors import DecoderError
from decoder_client.retriever_config import check_address, check_collection
from decoder_client.settings import SETTINGS, check_stops
from dresd.argument_types import at_least, number, shown

_DEVICE = re.compile(r"[a-z]+(:[0-9]{1,4})?")


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


def add_other_weights(parser: argparse.ArgumentParser) -> None:
    """Declares --allow-other-weights."""
    parser.add_argument(
        "--allow-other-weights",
        action="store_true",
        help="use a datastore built with other weights of the same model, such as a float16 copy; "
        "never changes the output, but fewer drafts may be right",
    )


def setting(name: str) -> Callable[[str], float]:
    """A setting of a decode, with the bounds it has everywhere."""

    def parse(text: str) -> float:
        value = number(SETTINGS[name].kind, text)
        if not SETTINGS[name].allows(value):
            raise argparse.ArgumentTypeError(f"must be {SETTINGS[name].expected}, not {shown(text)}")
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


def device(text: str) -> str:
    """A kind of device, and its number after a colon; whether this machine has it shows when a model is loaded."""
    if not _DEVICE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"must be such as cpu, cuda or cuda:1, not {shown(text)}")
    return text


def _refused_by(check: Callable[[], None]) -> None:
    try:
        check()
    except DecoderError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
