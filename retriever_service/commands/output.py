"""What the commands share: the error they end with, how numbers look, and what a manifest keeps of a command line."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection
from pathlib import Path

from retriever_service.echo import quoted


class CommandError(Exception):
    """A command failed: one sentence and a hint, exit code 1."""


def check_outside_datastores(path: Path, option: str) -> None:
    """Raises CommandError where what `option` names would lie in a datastore, or replace a file of it."""
    from retriever_service.datastore import datastore_around

    if (around := datastore_around(path)) is not None:
        raise CommandError(f"{quoted(str(path))} lies in the datastore {quoted(str(around))}. Choose another {option}.")


def human_bytes(number: float) -> str:
    """Bytes in the largest unit of which there is at least one."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def human_seconds(seconds: float) -> str:
    """Seconds, with minutes and hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def recorded_command(paths: Collection[Path]) -> str:
    """The command line with the last component of each of `paths`: where somebody keeps files is nobody's business."""

    def shortened(argument: str) -> str:
        option, equals, value = argument.rpartition("=") if argument.startswith("--") else ("", "", argument)
        path = Path(value)
        return f"{option}{equals}{path.name or value}" if path in paths else argument

    return shlex.join(["dresd-retriever", *map(shortened, sys.argv[1:])])
