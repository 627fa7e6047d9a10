"""Copies the current build of a remote root to this machine, the partitions asked for only, and makes it current here.

Every file is compared with the manifest's sha256 before the build appears under its name; what a killed fetch has
copied is not copied again. Only builds that a fetch made are ever removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from retriever_service.datastore.current import CURRENT_FILE, datastore_around, make_current, one_publisher
from retriever_service.datastore.errors import DatastoreError
from retriever_service.datastore.files import read_bytes, replacing, sha256_of, sync_build
from retriever_service.datastore.manifest import MANIFEST_FILE, FileRecord, Manifest, parse_manifest, read_manifest
from retriever_service.datastore.pushing import LONGEST_MANIFEST, files_of, remote_current
from retriever_service.datastore.remote import RemoteFolder
from retriever_service.echo import echoed

_LOCK_FILE = ".fetch.lock"
_HISTORY_FILE = ".fetched"
"""The builds that fetches brought here, a name a line, the newest last."""
_CHUNK = 1 << 22

Choice = Callable[[Manifest], Sequence[int]]
"""The partitions wanted of a build."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came of it: the build's folder, its partitions that are here, and how much was copied this time."""

    folder: Path
    manifest: Manifest
    partitions: list[int]
    files: int
    bytes: int


def every_partition(manifest: Manifest) -> Sequence[int]:
    """All of them."""
    return range(len(manifest.partitions))


def fetch(url: str, root: Path, wanted: Choice = every_partition, *, keep: int = 2) -> Fetched:
    """Makes `root` serve what the URL's root has as its current build.

    Args:
        url: of a root that `push` filled.
        root: a folder of this machine, made if it is not there.
        wanted: the partitions to copy.
        keep: so many of the builds that fetches brought here stay, the current one among them.

    Raises:
        DatastoreError: nothing is published there, a file is not as it was built, the disk is too small, another
            fetch runs, or a place cannot be used. What was current here still is.
    """
    try:
        if (around := datastore_around(root / CURRENT_FILE)) is not None:
            raise DatastoreError(f"{echoed(around)} is a datastore itself.", "Give another folder to make a root of.")
        root.mkdir(parents=True, exist_ok=True)
        with _alone(root):
            return _fetch(RemoteFolder(url), root, wanted, keep)
    except OSError as error:
        raise DatastoreError(
            f"{echoed(error.filename or root)} cannot be written: {error.strerror}.", "Is there space, and is it yours?"
        ) from error


def _fetch(remote: RemoteFolder, root: Path, wanted: Choice, keep: int) -> Fetched:
    name = remote_current(remote)
    if name is None:
        raise DatastoreError(f"{remote.url} has no {CURRENT_FILE}.", "Publish a build with `dresd-retriever push`.")
    place = remote.child(name)
    content = place.read(MANIFEST_FILE, LONGEST_MANIFEST)
    if content is None:
        raise DatastoreError(f"{place.url} has no {MANIFEST_FILE}.", "Push the build again.")
    manifest = parse_manifest(content, f"{place.url}/{MANIFEST_FILE}")
    partitions = sorted(set(wanted(manifest)))
    if not partitions or partitions[0] < 0 or partitions[-1] >= len(manifest.partitions):
        raise DatastoreError(
            f"{place.url} has the partitions 0 to {len(manifest.partitions) - 1}; {echoed(partitions)} were asked for.",
            "Name at least one of them.",
        )
    folder, hidden = root / name, root / f".{name}.fetching"
    into = folder if _is_same_build(folder, manifest) else hidden
    into.mkdir(exist_ok=True)
    records = dict(files_of(manifest, partitions))
    _link_those_here(root, into, records)
    files, copied = _copy_all(place, into, records)
    is_described = (into / MANIFEST_FILE).exists() and read_bytes(into / MANIFEST_FILE) == content
    if not is_described:
        with replacing(into / MANIFEST_FILE) as beside:
            beside.write_bytes(content)
    if into == hidden:
        sync_build(hidden)
        hidden.rename(folder)
    if not (is_described and _is_current(root, name)):
        with one_publisher(root):
            make_current(root, name)
    _remove_old(root, name, keep)
    return Fetched(folder, manifest, partitions, files, copied)


def _is_same_build(folder: Path, manifest: Manifest) -> bool:
    if not folder.exists():
        return False
    try:
        here = read_manifest(folder).build_id
    except DatastoreError:
        here = ""
    if here != manifest.build_id:
        raise DatastoreError(
            f"{folder} is another build than the one to fetch.", "Push the new build under a name of its own."
        )
    return True


def _link_those_here(root: Path, into: Path, records: dict[str, FileRecord]) -> None:
    """Gives the build the files that earlier ones have, too: a datastore that grows keeps its segments."""
    here = {record.sha256: folder / name for folder in _fetched_builds(root) for name, record in _files_in(folder)}
    for name, record in records.items():
        source, target = here.get(record.sha256), into / name
        if source is not None and not target.exists() and source.is_file() and sha256_of(source) == record.sha256:
            target.parent.mkdir(exist_ok=True)
            target.hardlink_to(source)


def _fetched_builds(root: Path) -> list[Path]:
    return [root / name for name in _lines(root / _HISTORY_FILE)]


def _files_in(folder: Path) -> Iterator[tuple[str, FileRecord]]:
    try:
        manifest = read_manifest(folder)
    except DatastoreError:
        return
    yield from files_of(manifest, list(range(len(manifest.partitions))))


def _copy_all(place: RemoteFolder, into: Path, records: dict[str, FileRecord]) -> tuple[int, int]:
    """How many files were not here, and the bytes that were not."""
    missing = {name: record for name, record in records.items() if not _is_here(into / name, record)}
    lacking = {name: record.size - _size(_partial(into / name)) for name, record in missing.items()}
    free = shutil.disk_usage(into).free
    if sum(lacking.values()) > free:
        raise DatastoreError(
            f"{place.url} needs {sum(lacking.values()):,} bytes more, and the disk of {into} has {free:,}.",
            "Give it a larger disk, or fetch fewer partitions.",
        )
    copied = 0
    for name, record in missing.items():
        copied += _copy(place, name, into / name, record)
    return len(missing), copied


def _is_here(path: Path, record: FileRecord) -> bool:
    # Of a file that a fetch has renamed the content was compared; the server compares it once more when it opens it.
    return path.is_file() and _size(path) == record.size


def _copy(place: RemoteFolder, name: str, path: Path, record: FileRecord) -> int:
    path.parent.mkdir(exist_ok=True)
    beside = _partial(path)
    if _size(beside) > record.size:
        beside.unlink()
    start = _size(beside)
    digest = _continued(place, name, beside, start)
    if digest != record.sha256 and start > 0:  # what was begun was of something else
        beside.unlink()
        start, digest = 0, _continued(place, name, beside, 0)
    if digest != record.sha256:
        beside.unlink()
        raise DatastoreError(f"{place.url}/{name} is corrupt: its sha256 is not the manifest's.", "Push it again.")
    beside.replace(path)
    return record.size - start


def _continued(place: RemoteFolder, name: str, beside: Path, start: int) -> str:
    """Appends the rest of the remote file; the sha256 of all of it, hex."""
    digest = hashlib.sha256()
    with beside.open("a+b") as file:
        file.seek(0)
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
        for chunk in place.chunks(name, start):
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())  # a file of the right size is not compared again
    return digest.hexdigest()


def _is_current(root: Path, name: str) -> bool:
    pointer = root / CURRENT_FILE
    return pointer.exists() and pointer.read_bytes() == f"{name}\n".encode()


def _remove_old(root: Path, name: str, keep: int) -> None:
    history = root / _HISTORY_FILE
    names = [*(one for one in _lines(history) if one != name), name]
    doomed = [root / old for old in names[:-keep]]
    for folder in doomed:  # nobody is to find half of it under its name
        if folder.is_dir():
            folder.rename(folder.with_name(f".{folder.name}.fetching"))
    for left in root.glob(".*.fetching"):
        shutil.rmtree(left, ignore_errors=True)
    with replacing(history) as beside:
        beside.write_text("".join(f"{one}\n" for one in names[-keep:]), "utf-8")


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").split("\n")[:-1] if path.exists() else []


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    with (root / _LOCK_FILE).open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DatastoreError(f"Another fetch into {root} is running.", "Wait for it.") from error
        yield
