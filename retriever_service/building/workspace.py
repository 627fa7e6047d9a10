"""Where a build works: a hidden folder beside the datastore's, from which the datastore is renamed into place.

An interrupted build leaves what it has committed there, and the next build of the same datastore goes on with it if it
is the same job; a lock that dies with its process tells an interrupted build from a running one. Each job has a folder
of its own, so that what a dying worker of another job still writes is never taken for its own.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from retriever_service.building.errors import BuildError
from retriever_service.datastore import datastore_around
from retriever_service.datastore.files import replacing, sync_build, sync_directory
from retriever_service.echo import quoted

_LOCK = "lock"
_JOB_FILE = "job.json"
CORPUS = "corpus"
"""Of a job: [name, size, sha256] of each file."""
Job = Mapping[str, object]
"""What decides the result of a build, by name; of JSON."""


class OtherJobError(BuildError):
    """There is expensive work of a build that is not the one asked for."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """The folder of the builds of one datastore.

    Attributes:
        root: the hidden folder.
        out: where the datastore will appear, absolute.
    """

    root: Path
    out: Path

    def open_job(self, job: Job, *, restart: bool, is_costly: Callable[[Path], bool]) -> tuple[Path, bool]:
        """The folder of a job, and whether it goes on with what is there.

        Args:
            job: what decides the result.
            restart: begin anew, whatever there is.
            is_costly: whether the folder of another job holds work that is not thrown away unasked.

        Raises:
            OtherJobError: there is such a folder.
        """
        folder = self.root / hashlib.sha256(_canonical(job)).hexdigest()[:16]
        for other in self._jobs():
            if restart or (other != folder and not is_costly(other)):
                shutil.rmtree(other, ignore_errors=True)
            elif other != folder:
                raise OtherJobError(
                    f"An interrupted build of '{self.out.name}' is not this one: {_difference(_read(other), job)}. "
                    "Give what it was given to go on with it, or --restart to throw its work away."
                )
        goes_on = (folder / _JOB_FILE).exists()
        folder.mkdir(exist_ok=True)
        with replacing(folder / _JOB_FILE) as beside:
            beside.write_bytes(_canonical(job))
        return folder, goes_on

    def empty_folder(self) -> Path:
        """A folder for a datastore that is made in one go; raises BuildError if an interrupted build is in its way."""
        if self.holds_work:
            raise BuildError(
                f"'{self.root}' holds the work of an interrupted build. Go on with that, or choose another --out."
            )
        self.discard()
        folder = self.root / "datastore"
        folder.mkdir()
        return folder

    def discard(self) -> None:
        """Throws all work away."""
        for folder in self._jobs():
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, datastore: Path) -> None:
        """Makes a datastore appear at `out`, whole, in one step, and throws the rest of the work away.

        Raises:
            BuildError: something else appeared there meanwhile.
        """
        sync_build(datastore)
        try:
            datastore.rename(self.out)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise _occupied(self.out) from error
            raise
        sync_directory(self.out.parent)
        self.discard()

    @property
    def holds_work(self) -> bool:
        """Whether there is anything for the next build to go on with."""
        return any(True for folder in self._jobs() for _ in folder.glob("*/*.block"))

    def _jobs(self) -> list[Path]:
        return [path for path in self.root.iterdir() if path.is_dir()]


@contextmanager
def open_workspace(out: Path) -> Iterator[Workspace]:
    """Makes the hidden folder, or finds it, and removes it in the end unless it holds work to go on with.

    Raises:
        BuildError: nothing can be renamed to `out`, or another build of it is running.
    """
    try:
        place = _checked(out)
        root = place.with_name(f".{place.name}.building")
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(root)
    except BlockingIOError as error:
        raise BuildError(f"Another build of '{out}' is running. Wait for it, or choose another --out.") from error
    except OSError as error:
        raise BuildError(f"'{out}' cannot be made: {error.strerror}. Choose another --out.") from error
    with lock:
        workspace = Workspace(root, place)
        try:
            yield workspace
        finally:
            if not workspace.holds_work:
                shutil.rmtree(root, ignore_errors=True)


def _locked(root: Path) -> BinaryIO:
    """The lock in a folder that is made if it is not there; raises BlockingIOError if another process has it."""
    while True:
        root.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):  # a build that ends removes the folder
            lock = (root / _LOCK).open("wb")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock.fileno()), (root / _LOCK).stat()):
                    return lock
            except BaseException:
                lock.close()
                raise
            lock.close()


def _checked(out: Path) -> Path:
    """`out` without links and dots; raises BuildError where the final rename could not succeed."""
    if out.is_symlink():
        raise BuildError(f"'{out}' is a symbolic link. Give --out the folder it stands for, or remove the link.")
    place = Path(os.path.realpath(out))  # Path.resolve raises for links in a circle in some Pythons only
    if place == Path.cwd():
        raise BuildError(f"'{out}' is the folder you are in. Give --out the name of a new folder.")
    if place.is_mount():
        raise BuildError(f"'{out}' is where a disk is mounted. Give --out a new folder in it.")
    if (around := datastore_around(place)) is not None:
        raise BuildError(f"'{out}' lies in the datastore '{around}'. Choose an --out outside it.")
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        _remove_published(place)
        raise _occupied(out)
    return place


def _remove_published(place: Path) -> None:
    """Removes what a build left that was killed just behind its last step."""
    root = place.with_name(f".{place.name}.building")
    with suppress(OSError), (root / _LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        jobs = [path for path in root.iterdir() if path.is_dir()]
        if all((job / _JOB_FILE).exists() and not (job / "datastore").exists() for job in jobs):
            shutil.rmtree(root, ignore_errors=True)


def _canonical(job: Job) -> bytes:
    return json.dumps(job, sort_keys=True, indent=1).encode()


def _read(folder: Path) -> Job:
    try:
        found: object = json.loads((folder / _JOB_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _difference(before: Job, now: Job) -> str:
    """The first thing that differs, for people."""
    for name, value in now.items():
        if before.get(name) != value:
            if name == CORPUS:
                return f"its corpus was another ({_first_other_file(before.get(name), value)})"
            told = f"its {name} was {before.get(name)!s}, and is {value!s} now"
            return told if len(told) < 200 else f"its {name} was another"
    return "it was made by another version"


def _first_other_file(before: object, now: object) -> str:
    if isinstance(before, list) and isinstance(now, list):
        for was, there in zip(before, now, strict=False):
            if was != there:
                return f"{quoted(str(there[0]))} is there now, where {quoted(str(was[0]))} had other content or a name"
        return f"of {len(before)} files, and has {len(now)} now"
    return "it cannot be read"


def _occupied(out: Path) -> BuildError:
    return BuildError(f"'{out}' is already there and not an empty folder. Remove it, or choose another --out.")
