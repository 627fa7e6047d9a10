"""The model's answers in one file for people and programs; `corpus` reads it again, as token ids."""

from __future__ import annotations

import fcntl
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from retriever_service.building.errors import BuildError
from retriever_service.building.sources import is_url
from retriever_service.datastore import datastore_around

_OURS = re.compile(r"\.[0-9]+\.partial")
"""What stands behind the name of the answers' file in that of the file beside it: a process."""


class AnswersFile:
    """A place for answers that was writable before there were any; made by `reserved`."""

    def __init__(self, place: Path, beside: Path, lines: TextIO) -> None:
        self._place = place
        self._beside = beside
        self._lines = lines

    def write(self, lines: Iterable[str]) -> None:
        """Writes a line for each answer, then puts the file into its place.

        Raises:
            BuildError: the disk is full, or fails.
        """
        with _failures_named(self._place):
            for line in lines:
                self._lines.write(line + "\n")
            self._lines.close()
            self._beside.replace(self._place)


@contextmanager
def reserved(path: Path, *, corpus: Sequence[str | Path], datastore: Path) -> Iterator[AnswersFile]:
    """Reserves the place of answers by a file beside it, so that no answer is made in vain.

    Args:
        path: the file of answers; an older one stays until the new one is whole.
        corpus: files it must not replace.
        datastore: folder it must not lie in, because that appears only in the end.

    A killed build leaves that file, which the next build with these answers removes; a lock that dies with its process
    tells it from a running build's.

    Raises:
        BuildError: no file can be written there.
    """
    place = _checked(path, corpus, datastore)
    with _failures_named(path):
        for left_over in place.parent.glob(f".{glob.escape(place.name)}.*.partial"):
            if _OURS.fullmatch(left_over.name[len(place.name) + 1 :]):
                _remove_unless_locked(left_over)
        beside, lines = _opened_beside(place)
    try:
        yield AnswersFile(place, beside, lines)
    finally:
        with suppress(OSError):  # what is in the buffer of a full disk's file fails once more
            lines.close()
        beside.unlink(missing_ok=True)


def _opened_beside(place: Path) -> tuple[Path, TextIO]:
    """A new file that is locked as long as it is open."""
    beside = place.with_name(f".{place.name}.{os.getpid()}.partial")
    while True:
        lines = beside.open("w", encoding="utf-8")
        fcntl.flock(lines, fcntl.LOCK_EX)
        # Between opening and locking it another build may have taken it for a left-over.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lines.fileno()), beside.stat()):
                return beside, lines
        lines.close()


def _remove_unless_locked(file: Path) -> None:
    if file.is_symlink() or not file.is_file():
        return
    with suppress(OSError), file.open("rb") as opened:  # locked, gone meanwhile, or somebody else's
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.unlink()


def _checked(path: Path, corpus: Sequence[str | Path], datastore: Path) -> Path:
    """`path` without links, which stay what they are."""
    with _failures_named(path):
        place = _real(path)
        if place.is_symlink():
            raise BuildError(f"'{path}' is a symbolic link that leads in a circle. Choose another --answers-out.")
        if place.is_dir():
            raise BuildError(f"'{path}' is a folder. Give --answers-out the name of a file in it.")
        if place.exists() and not place.is_file():
            raise BuildError(f"'{path}' is a device or a pipe, not a file. Give --answers-out the name of a file.")
        if not place.parent.is_dir():
            raise BuildError(f"'{path.parent}' is no folder to write answers to. Make it first.")
        if any(place == _real(Path(file)) for file in corpus if not is_url(str(file))):
            raise BuildError(
                f"'{path}' is in the corpus, which answers must not replace. Choose another --answers-out."
            )
        if _real(datastore) in (place, *place.parents):
            raise BuildError(f"'{path}' lies where --out makes the datastore. Give --answers-out a place outside it.")
        if (around := datastore_around(place)) is not None:
            raise BuildError(f"'{path}' lies in the datastore '{around}'. Choose an --answers-out outside it.")
    return place


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve raises for links in a circle in some Pythons only


@contextmanager
def _failures_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise BuildError(f"Cannot write answers to '{path}': {reason}. Choose another --answers-out.") from error
