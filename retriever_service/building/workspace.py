"""Where a build works: a hidden folder beside the datastore's, renamed into place at the very end.

A build that is killed leaves only the hidden folder, which the next build of the same datastore removes; a lock that
dies with its process tells a killed build from a running one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from retriever_service.building.errors import BuildError
from retriever_service.datastore.files import sync_directory

_LOCK = "lock"
# Longer than it takes from making the folder to making the lock in it.
_MAKING_S = 60.0


@dataclass(frozen=True, slots=True)
class Workspace:
    """The folders of one build.

    Attributes:
        scratch: gone when the build ends, however it ends.
        datastore: what will be published.
        out: where to, absolute.
    """

    scratch: Path
    datastore: Path
    out: Path

    def publish(self) -> None:
        """Makes the datastore appear at `out`, whole, in one step.

        Raises:
            BuildError: something else appeared there meanwhile.
        """
        sync_directory(self.datastore)
        try:
            self.datastore.rename(self.out)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise _occupied(self.out) from error
            raise
        sync_directory(self.out.parent)


@contextmanager
def open_workspace(out: Path) -> Iterator[Workspace]:
    """Makes the hidden folder, and removes it in the end with what is left in it.

    Raises:
        BuildError: nothing can be renamed to `out`, or another build of it is running.
    """
    try:
        place = _checked(out)
        prefix = f".{place.name}.building-"
        place.parent.mkdir(parents=True, exist_ok=True)
        for folder in _left_overs(place.parent, prefix):
            _remove_left_over(folder, out)
        scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=place.parent))
    except OSError as error:
        raise BuildError(f"'{out}' cannot be made: {error.strerror}. Choose another --out.") from error
    try:
        with (scratch / _LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            datastore = scratch / "datastore"
            datastore.mkdir()
            yield Workspace(scratch, datastore, place)
    finally:
        _remove(scratch)


def _checked(out: Path) -> Path:
    """`out` without links and dots; raises BuildError where the final rename could not succeed."""
    if out.is_symlink():
        raise BuildError(f"'{out}' is a symbolic link. Give --out the folder it stands for, or remove the link.")
    place = Path(os.path.realpath(out))  # Path.resolve raises for links in a circle in some Pythons only
    if place == Path.cwd():
        raise BuildError(f"'{out}' is the folder you are in. Give --out the name of a new folder.")
    if place.is_mount():
        raise BuildError(f"'{out}' is where a disk is mounted. Give --out a new folder in it.")
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        raise _occupied(out)
    return place


def _left_overs(parent: Path, prefix: str) -> list[Path]:
    return [
        path
        for path in parent.iterdir()
        # After another dot follows the name of a datastore that is called like this one and more.
        if path.name.startswith(prefix) and "." not in path.name[len(prefix) :] and path.is_dir()
    ]


def _remove_left_over(folder: Path, out: Path) -> None:
    try:
        with (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
    except FileNotFoundError:
        # Another build is just making it, if it is new and empty; else something removed the lock, but not the rest.
        with suppress(FileNotFoundError):
            if any(path.name != _LOCK for path in folder.iterdir()) or _age_s(folder) > _MAKING_S:
                _remove(folder)
    except BlockingIOError as error:
        raise BuildError(f"Another build of '{out}' is running. Wait for it, or choose another --out.") from error


def _age_s(folder: Path) -> float:
    return time.time() - folder.stat().st_mtime


def _remove(folder: Path) -> None:
    """Removes the lock last: a removal that is itself killed is seen, and finished, by the next build."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name != _LOCK:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _occupied(out: Path) -> BuildError:
    return BuildError(f"'{out}' is already there and not an empty folder. Remove it, or choose another --out.")
