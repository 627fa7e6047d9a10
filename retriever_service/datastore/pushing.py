"""Copies a build into a remote root and publishes it there, for servers that fetch from it.

The manifest is written when all else is there, and `CURRENT` after it; a push that was killed is taken up again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from retriever_service.datastore.current import CURRENT_FILE, other_keys
from retriever_service.datastore.errors import DatastoreError
from retriever_service.datastore.fields import plain_name
from retriever_service.datastore.files import REBUILD_HINT, read_bytes, sha256_of
from retriever_service.datastore.manifest import MANIFEST_FILE, FileRecord, Manifest, parse_manifest, read_manifest
from retriever_service.datastore.remote import RemoteError, RemoteFolder
from retriever_service.datastore.segment import check_file

_MARK = ".pushing"
"""Says whose files lie in a folder that has no manifest yet."""
LONGEST_MANIFEST = 1 << 28
"""Bytes; of 4,096 partitions with many segments it has some 20 MB."""
_LONGEST_NAME = 256


def push(build: Path, url: str, *, publish: bool = True, allow_other_model: bool = False) -> Manifest:
    """Makes URL/NAME a copy of a build's folder of that name, and the current one.

    Args:
        build: its folder.
        url: of the root.
        publish: make URL/CURRENT name it.
        allow_other_model: also where the current build is of another model, or has other keys.

    Raises:
        DatastoreError: a file is not as it was built, the place holds another build of that name or is of another
            model, or cannot be used. What was current still is.
    """
    manifest, content = read_manifest(build), read_bytes(build / MANIFEST_FILE)
    try:
        name = plain_name(build.absolute().name)
    except ValueError as error:
        raise DatastoreError(f"{build} has a name that cannot be published.", "Rename the build's folder.") from error
    root = RemoteFolder(url)
    if root.size_of(MANIFEST_FILE) is not None:
        raise DatastoreError(f"{root.url} is a build itself.", "Give the folder that builds are to lie in.")
    if publish and not allow_other_model and (differ := _differ_from_current(root, manifest)):
        raise DatastoreError(
            f"{build} is of another kind than the build that is current in {url}: {'; '.join(differ)}.",
            "Push it to a root of its own, or allow another model if its decoders are to follow.",
        )
    _copy(build, manifest, content, root.child(name))
    if publish:
        root.write(CURRENT_FILE, f"{name}\n".encode())
    return manifest


def files_of(manifest: Manifest, partitions: list[int]) -> Iterator[tuple[str, FileRecord]]:
    """The files that servers of some partitions need, the manifest aside: path within the build's folder, record."""
    yield from manifest.files.items()
    for number in partitions:
        for segment in manifest.partitions[number].segments:
            for name, record in segment.files.items():
                yield f"{segment.directory}/{name}", record


def remote_current(root: RemoteFolder) -> str | None:
    """The name of the build that is current there; None where nothing is. Raises DatastoreError."""
    content = root.read(CURRENT_FILE, _LONGEST_NAME)
    if content is None:
        return None
    try:
        return plain_name(content.decode().removesuffix("\n"))
    except ValueError as error:
        raise DatastoreError(
            f"{root.url}/{CURRENT_FILE} names no folder beside it.", "Publish a build with `dresd-retriever push`."
        ) from error


def _copy(build: Path, manifest: Manifest, content: bytes, place: RemoteFolder) -> None:
    there = place.read(MANIFEST_FILE, LONGEST_MANIFEST)
    if there is not None and parse_manifest(there, place.url).build_id != manifest.build_id:
        raise DatastoreError(f"{place.url} is another build of that name.", "Rename the build's folder.")
    mark = manifest.build_id.encode()
    ours = there is not None or place.read(_MARK, len(mark) + 1) == mark
    if not ours:
        place.write(_MARK, mark)
    for name, record in files_of(manifest, list(range(len(manifest.partitions)))):
        check_file(build / name, record, checksum=False)
        if ours and place.size_of(name) == record.size:
            digest = _digest_of(build / name)
        else:
            digest = place.upload(build / name, name)
        if digest != record.sha256:
            raise DatastoreError(f"{build / name} is corrupt: its sha256 is not the manifest's.", REBUILD_HINT)
    if there != content:
        place.write(MANIFEST_FILE, content)
    if place.size_of(_MARK) is not None:
        with suppress(RemoteError):  # who may not remove files leaves one that nobody reads
            place.remove(_MARK)


def _digest_of(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise DatastoreError(f"{path} cannot be read: {error.strerror}.", REBUILD_HINT) from error


def _differ_from_current(root: RemoteFolder, manifest: Manifest) -> list[str]:
    try:
        name = remote_current(root)
        content = None if name is None else root.child(name).read(MANIFEST_FILE, LONGEST_MANIFEST)
        return [] if content is None else other_keys(parse_manifest(content, root.url), manifest)
    except RemoteError:
        raise
    except DatastoreError:
        return []  # nothing that works is current
