"""A root: a folder of builds beside each other, and `CURRENT`, a small text file that names the one to serve.

Wherever a datastore is served from, its folder may be that of a build or such a root. Publishing replaces `CURRENT` by
one rename, so a reader sees the old name or the new one. Knows files and manifests; not who serves them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dresd.identity import differences
from retriever_service.datastore.errors import DatastoreError
from retriever_service.datastore.fields import plain_name
from retriever_service.datastore.files import replacing, sync_directory
from retriever_service.datastore.manifest import MANIFEST_FILE, REDUCER_FILE, Manifest, read_manifest
from retriever_service.datastore.store import Datastore
from retriever_service.echo import echoed, quoted

CURRENT_FILE = "CURRENT"
_LOCK_FILE = f".{CURRENT_FILE}.lock"
_LONGEST = 255
"""Bytes of a file's name."""
_HINT = "Publish a build with `dresd-retriever publish`."

Mark = tuple[int, int, int] | None
"""Of a version of `CURRENT`: another one has another mark. None where there is no such file."""


def current_mark(folder: Path) -> Mark:
    """Cheap to ask again and again; nothing is read."""
    try:
        found = (folder / CURRENT_FILE).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def current_build(folder: Path) -> Path:
    """The folder of the build to serve: `folder` itself, or the one that its `CURRENT` names.

    Raises:
        DatastoreError: `CURRENT` names nothing, or nothing that lies directly in `folder`.
    """
    pointer = folder / CURRENT_FILE
    try:
        if (folder / MANIFEST_FILE).exists():
            return folder
        mode = pointer.stat().st_mode
        if not stat.S_ISREG(mode):  # a pipe would be waited for
            raise DatastoreError(f"{pointer} is not a file.", _HINT)
        with pointer.open("rb") as file:
            content = file.read(_LONGEST + 2).removesuffix(b"\n")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return folder  # what opens it says what is missing
        raise DatastoreError(f"{echoed(pointer)} cannot be read: {error.strerror}.", "Is it yours to read?") from error
    try:
        name = plain_name(content.decode("utf-8") if len(content) <= _LONGEST else "")
    except ValueError as error:
        said = quoted(content.decode(errors="backslashreplace"))
        raise DatastoreError(f"{pointer} says {said}, which is no name of a folder beside it.", _HINT) from error
    if not (folder / name).is_dir():
        raise DatastoreError(f"{pointer} names {echoed(name)}, and there is no such folder beside it.", _HINT)
    return folder / name


def datastore_around(place: Path) -> Path | None:
    """The datastore in whose folder a place lies, there or not: it holds what its build wrote, and nothing else may.

    None where there is none, or where it cannot be told.
    """
    for folder in Path(os.path.realpath(place)).parents:
        with suppress(OSError):
            # Of other programs there may be a file called like a manifest.
            if (folder / MANIFEST_FILE).is_file() and (folder / REDUCER_FILE).is_file():
                return folder
    return None


def other_keys(served: Manifest, other: Manifest) -> list[str]:
    """Why decoders of one build cannot use the other: a line for each value that differs; empty if they can.

    The reducer is no such value: every build fits its own, and decoders fetch it with the build.
    """
    differ = differences(served.model, other.model)
    for name in ("layer", "norm", "dims"):
        ours, theirs = getattr(served.key_recipe, name), getattr(other.key_recipe, name)
        if ours != theirs:
            differ.append(f"{name}: {ours!r} against {theirs!r}")
    return differ


def publish(root: Path, build: Path, *, allow_other_model: bool = False) -> Manifest:
    """Makes `CURRENT` of `root` name a build that lies directly in it, after every file of it was hashed.

    Args:
        root: made by hand, with the builds in it.
        build: its folder.
        allow_other_model: accept a build of another model, or with other keys, than the current one's.

    Returns:
        The build's manifest.

    Raises:
        DatastoreError: `build` is not such a folder or not as it was built; or for another model. Nothing has changed.
        OSError: `CURRENT` cannot be written, and is what it was.
    """
    _check_places(root, build)
    manifest = Datastore.open(build).manifest
    with one_publisher(root):
        if not allow_other_model and (differ := _differ_from_current(root, manifest)):
            raise DatastoreError(
                f"{build} is of another kind than the build that is current: {'; '.join(differ)}.",
                "Publish it in a root of its own, or allow another model if its decoders are to follow.",
            )
        make_current(root, build.name)
    return manifest


def make_current(root: Path, name: str) -> None:
    """Lets `CURRENT` name a build; to be called by `one_publisher`. Raises OSError."""
    with replacing(root / CURRENT_FILE) as beside:
        beside.write_text(f"{name}\n", "utf-8")
    sync_directory(root)


def _check_places(root: Path, build: Path) -> None:
    try:
        if (root / MANIFEST_FILE).exists():
            raise DatastoreError(f"{root} is a build itself.", "Give the folder that its builds lie in.")
        if not build.parent.samefile(root):
            raise DatastoreError(f"{build} does not lie in {root}.", "Move or copy the build there first.")
        plain_name(build.name)
        build.name.encode("utf-8")
    except OSError as error:
        raise DatastoreError(
            f"{echoed(error.filename)} cannot be read: {error.strerror}.", "Give a root and a build in it."
        ) from error
    except ValueError as error:
        raise DatastoreError(
            f"{echoed(build)} has a name that {CURRENT_FILE} cannot hold.", "Rename the build's folder."
        ) from error


def _differ_from_current(root: Path, manifest: Manifest) -> list[str]:
    try:
        current = read_manifest(current_build(root))
    except DatastoreError:
        return []  # nothing that works is current
    return other_keys(current, manifest)


@contextmanager
def one_publisher(root: Path) -> Iterator[None]:
    """One at a time: two would write the same file beside `CURRENT`. Raises OSError."""
    with (root / _LOCK_FILE).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
