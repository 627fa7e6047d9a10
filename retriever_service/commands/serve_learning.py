"""The options of `serve` that say whether and how it learns from what decoders send."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dresd.argument_types import some_path, whole_number
from dresd.command_line import UsageError

if TYPE_CHECKING:
    from retriever_service.serving.learning_config import LearningConfig

_NUMBERS = {
    "learn_max_rate": ("max_rate", "entries a second that one writer may send; default: 20000"),
    "learn_max_entries": ("max_entries", "kept for each collection before the oldest go; default: 200000"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    learning = parser.add_argument_group("learning", "off unless --learn says where; see docs/learning.md")
    learning.add_argument(
        "--learn", type=some_path, metavar="DIR",
        help="keep answers that decoders send in this folder, and make drafts of them at once",
    )  # fmt: skip
    for name, (_, help_text) in _NUMBERS.items():
        learning.add_argument("--" + name.replace("_", "-"), type=whole_number, metavar="N", help=help_text)


def learning(arguments: argparse.Namespace) -> LearningConfig | None:
    """What the options say; None is off.

    Raises:
        UsageError: a value is out of range, or one is given without a folder.
    """
    from retriever_service.serving.errors import ServeError
    from retriever_service.serving.learning_config import LearningConfig

    chosen = {field: value for name, (field, _) in _NUMBERS.items() if (value := getattr(arguments, name)) is not None}
    if arguments.learn is None:
        if chosen or arguments.learn_token_file is not None:
            raise UsageError("Options of learning were given, and no folder to learn into. Name one with --learn.")
        return None
    try:
        return LearningConfig(arguments.learn, **chosen)
    except ServeError as error:
        raise UsageError(str(error)) from error
