"""Folders of an object store or a mounted disk, by URL: s3, gs, abfs, hdfs and file, as pyarrow reads them.

Whatever goes wrong there is a `RemoteError` that names the place. Credentials are the store's own affair (environment,
files, the machine's role); none is read or shown here. Knows names and bytes, not what a datastore is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

from pyarrow import ArrowException, fs

from retriever_service.datastore.errors import DatastoreError
from retriever_service.echo import echoed

_CHUNK = 1 << 22
_HINT = "Is the URL right, and may this machine read and write it?"


class RemoteError(DatastoreError):
    """A place could not be read or written."""


class RemoteFolder:
    """One folder.

    Args:
        url: such as s3://bucket/folder?region=eu-central-1 or file:///folder; a path of this machine, too.

    Attributes:
        url: as given, without its options and without a slash at the end.

    Raises:
        RemoteError: no such kind of URL, or it holds a password.
    """

    def __init__(self, url: str) -> None:
        named, question, options = (url if "://" in url else Path(url).absolute().as_uri()).partition("?")
        _check_no_password(named)
        self.url = named.rstrip("/")
        with self._trouble(""):
            # Any: pyarrow has no types.
            found: tuple[Any, str] = fs.FileSystem.from_uri(f"{self.url}{question}{options}")
        self._store, self._path = found
        self._is_local = isinstance(self._store, fs.LocalFileSystem)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self._path.rstrip("/").rpartition("/")[2]

    def child(self, name: str) -> RemoteFolder:
        """A folder in it; any name of a folder may be one, whatever a URL would take it for."""
        child = copy(self)
        child.url, child._path = f"{self.url}/{name}", f"{self._path}/{name}"
        return child

    def size_of(self, name: str) -> int | None:
        """Bytes of a file; None where there is none. Raises RemoteError."""
        mark = self.mark_of(name)
        return None if mark is None else mark[1]

    def mark_of(self, name: str) -> tuple[int, int] | None:
        """Of a version of a file, its time and size; None where there is none. Raises RemoteError."""
        with self._trouble(name):
            found = self._store.get_file_info(self._at(name))
        return (int(found.mtime_ns or 0), int(found.size)) if found.type == fs.FileType.File else None

    def read(self, name: str, most: int) -> bytes | None:
        """A small file's content, or its first `most` bytes; None where there is none. Raises RemoteError."""
        if self.size_of(name) is None:
            return None
        with self._trouble(name), self._store.open_input_file(self._at(name)) as file:
            return bytes(file.read(most))

    def chunks(self, name: str, start: int) -> Iterator[bytes]:
        """A file's content from a byte on. Raises RemoteError."""
        with self._trouble(name), self._store.open_input_file(self._at(name)) as file:
            file.seek(start)
            while chunk := bytes(file.read(_CHUNK)):
                yield chunk

    def write(self, name: str, content: bytes) -> None:
        """Makes or replaces a file as one step. Raises RemoteError."""
        self._put(name, lambda: iter((content,)))

    def upload(self, path: Path, name: str) -> str:
        """Makes or replaces a file as one step; its sha256, hex. Raises RemoteError, and OSError of `path`."""
        digest = hashlib.sha256()

        def chunks() -> Iterator[bytes]:
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                    yield chunk

        self._put(name, chunks)
        return digest.hexdigest()

    def remove(self, name: str) -> None:
        """Removes a file that is there. Raises RemoteError."""
        with self._trouble(name):
            self._store.delete_file(self._at(name))

    def _put(self, name: str, chunks: Callable[[], Iterator[bytes]]) -> None:
        place = self._at(name)
        # An object appears when it is complete; a file of a disk is renamed.
        beside = f"{place}.partial" if self._is_local else place
        with self._trouble(name):
            if self._is_local:
                self._store.create_dir(place.rpartition("/")[0], recursive=True)
            with self._store.open_output_stream(beside) as out:
                for chunk in chunks():
                    out.write(chunk)
            if self._is_local:
                Path(beside).replace(place)

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path

    @contextmanager
    def _trouble(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ArrowException) as error:
            place = f"{self.url}/{name}" if name else self.url
            reason = (getattr(error, "strerror", None) or str(error)).rstrip(".")
            raise RemoteError(f"{echoed(place)} cannot be used: {echoed(reason)}.", _HINT) from error


def _check_no_password(url: str) -> None:
    scheme, _, rest = url.partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if at and (":" in user or scheme in ("s3", "gs")):  # of abfs://, what stands there is a container
        raise RemoteError(
            f"A URL of {echoed(scheme)}:// holds a user or a password.",
            "Leave them out, and give them in the environment or in the store's own configuration files.",
        )
