"""What the commands share that make a datastore from datastores: where it is written, and how that fails."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dresd.argument_types import between, some_path
from dresd.command_line import UsageError
from retriever_service.commands.output import CommandError, recorded_command

_HIGHEST_SEED = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Work:
    """A datastore in the making.

    Attributes:
        directory: empty; becomes `--out` when the block ends well.
        command: for the manifest.
        on_entries: raises the count that the user sees.
    """

    directory: Path
    command: str
    on_entries: Callable[[int], None]


def add_writing_options(parser: argparse.ArgumentParser) -> None:
    """Declares where to write, the seed, and `--json`."""
    parser.add_argument("--out", required=True, type=some_path, metavar="DIR", help="the new folder, made here")
    parser.add_argument(
        "--seed", type=between(int, 0, _HIGHEST_SEED), default=0, metavar="N", help="of the clustering; default: 0"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def chosen_codec(name: str | None) -> str | None:
    """The codec asked for; raises UsageError for a name that none has."""
    from retriever_service.datastore import CODECS

    if name is not None and name not in CODECS:
        raise UsageError(f"There is no codec {name!r}. Choose one of {', '.join(CODECS)}.")
    return name


def builds_of(folders: Sequence[Path]) -> list[Path]:
    """The builds to read: of a root, the one that is current. Raises CommandError."""
    from retriever_service.datastore import DatastoreError, current_build

    try:
        return [current_build(folder) for folder in folders]
    except DatastoreError as error:
        raise CommandError(str(error)) from error


@contextmanager
def written(
    arguments: argparse.Namespace, stage: str, given: Sequence[Path], sources: Sequence[Path]
) -> Iterator[Work]:
    """A new folder that appears as `--out` whole or not at all, and a bar while it is filled.

    Args:
        arguments: with `out`.
        stage: what the bar is called.
        given: the sources as they were typed.
        sources: their builds.

    Raises:
        CommandError: the block ended with an error that the user can act on, or the folder cannot be made.
    """
    from retriever_service.building.errors import BuildError, os_error_sentence
    from retriever_service.building.progress import TerminalProgress
    from retriever_service.building.workspace import open_workspace
    from retriever_service.datastore import DatastoreError, read_manifest

    count = 0

    def on_entries(more: int) -> None:
        nonlocal count
        count += more

    try:
        total = sum(read_manifest(source).num_entries for source in sources)
        with open_workspace(arguments.out) as workspace:
            directory = workspace.empty_folder()
            with TerminalProgress().stage(stage, total, "entries", lambda: count):
                yield Work(directory, recorded_command({*given, arguments.out}), on_entries)
            workspace.publish(directory)
    except (BuildError, DatastoreError) as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(os_error_sentence(error)) from error
