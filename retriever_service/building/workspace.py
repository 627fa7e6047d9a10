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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from retriever_service.building.errors import BuildError

_LOCK = "lock"


@dataclass(frozen=True, slots=True)
class Workspace:
    """The folders of one build.

    Attributes:
        scratch: gone when the build ends, however it ends.
        datastore: what will be published.
        out: where to.
    """

    scratch: Path
    datastore: Path
    out: Path

    def publish(self) -> None:
        """Makes the datastore appear at `out`, whole, in one step.

        Raises:
            BuildError: something else appeared there meanwhile.
        """
        _sync_directory(self.datastore)
        try:
            self.datastore.rename(self.out)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise _occupied(self.out) from error
            raise
        _sync_directory(self.out.parent)


@contextmanager
def open_workspace(out: Path) -> Iterator[Workspace]:
    """Makes the hidden folder, and removes it in the end with what is left in it.

    Raises:
        BuildError: `out` holds something, or another build of it is running.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise _occupied(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{out.name}.building-"
    for left_over in out.parent.glob(f"{prefix}*"):
        _remove_left_over(left_over, out)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=out.parent))
    try:
        with (scratch / _LOCK).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            datastore = scratch / "datastore"
            datastore.mkdir()
            yield Workspace(scratch, datastore, out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_left_over(folder: Path, out: Path) -> None:
    try:
        with (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except FileNotFoundError:
        return  # another build is just making it
    except BlockingIOError as error:
        raise BuildError(f"Another build of '{out}' is running. Wait for it, or choose another --out.") from error


def _occupied(out: Path) -> BuildError:
    return BuildError(f"'{out}' is already there and not an empty folder. Remove it, or choose another --out.")


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
