"""Where a corpus lies: local files, globs of them, and objects of s3://, gs:// and hdfs:// stores, read as streams.

Knows names, sizes and bytes; not what files hold.
"""

from __future__ import annotations

import glob
import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from retriever_service.building.errors import BuildError, first_line, os_error_sentence
from retriever_service.echo import quoted

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

CORPUS_SUFFIXES = (".jsonl", ".parquet", ".txt")

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<rest>[^?]*)(?P<query>\?.*)?", re.DOTALL)
_SCHEMES = ("s3", "gs", "gcs", "hdfs", "viewfs", "file")
_MAGIC = re.compile(r"[*?\[]")
_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """A corpus file as it was found.

    Attributes:
        name: path, or URL.
        size: bytes.
    """

    name: str
    size: int

    @property
    def base_name(self) -> str:
        """The last component: where a builder keeps a corpus is nobody's business."""
        return _without_query(self.name).rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """Of the file's name, in lower case."""
        return Path(self.base_name).suffix.lower()

    def absolute(self) -> Source:
        """The same file, whatever folder a process is in."""
        return self if is_url(self.name) else replace(self, name=str(Path(self.name).absolute()))

    def open(self) -> BinaryIO:
        """The file's bytes, seekable, a buffer of them in memory at a time; raises BuildError."""
        with reading(self.name):
            if not is_url(self.name):
                return Path(self.name).open("rb")
            store, path = _store(self.name)
            # pyarrow's files know no lines.
            return io.BufferedReader(store.open_input_file(path), _BUFFER)

    def sha256(self) -> str:
        """Hex, of the content; raises BuildError."""
        measured = hashlib.sha256()
        with reading(self.name), self.open() as file:
            while chunk := file.read(_BUFFER):
                measured.update(chunk)
        return measured.hexdigest()


def is_url(name: str) -> bool:
    """Whether a name is a URL and not a path."""
    return _URL.fullmatch(name) is not None


def find_sources(names: Sequence[str]) -> tuple[Source, ...]:
    """The files that names stand for, each glob's in alphabetical order.

    Raises:
        BuildError: a name stands for nothing, for what cannot be read twice, or for a file of unknown kind; a URL
            holds a password, or its store does not answer.
    """
    found = [source for name in names for source in (_remote(name) if is_url(name) else _local(name))]
    for source in found:
        if source.suffix not in CORPUS_SUFFIXES:
            raise BuildError(
                f"Cannot tell what '{source.name}' holds. Name files that end in {', '.join(CORPUS_SUFFIXES[:-1])} or "
                f"{CORPUS_SUFFIXES[-1]}."
            )
    twice = {source.name for source in found if found.count(source) > 1} if len(found) < _FEW else set()
    if twice:
        raise BuildError(f"'{min(twice)}' is named twice. Name each file once.")
    return tuple(found)


_FEW = 1000
"""Above so many files nobody named one of them twice by hand."""


def _local(name: str) -> Iterator[Source]:
    path = Path(name)
    # A file may be called like a pattern.
    if path.exists() or not _MAGIC.search(name):
        paths = [path]
    else:
        matches = glob.glob(name, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute patterns
        paths = [Path(match) for match in sorted(matches) if not Path(match).is_dir()]
        if not paths:
            raise BuildError(f"No file matches '{name}'. Is the pattern right?")
    for each in paths:
        with reading(str(each)):
            status = each.stat()
        if each.is_dir():
            raise BuildError(f"'{each}' is a directory. Name the files in it, or a pattern such as '{each}/*.jsonl'.")
        if not each.is_file():
            raise BuildError(f"'{each}' is a device or a pipe, and a corpus is read twice. Write it to a file first.")
        yield Source(str(each), status.st_size)


def _remote(name: str) -> Iterator[Source]:
    from pyarrow.fs import FileSelector, FileType

    shown, _, query = name.partition("?")
    scheme, _, rest = shown.partition("://")
    if scheme not in _SCHEMES:
        raise BuildError(f"{quoted(shown)} is of no store that is read. Use {', '.join(_SCHEMES)}, or a local path.")
    if "@" in rest.partition("/")[0]:
        raise BuildError(
            f"A URL of {scheme}:// holds a user or a password. Leave them out, and give them in the environment or in "
            "the store's own configuration files."
        )
    query = f"?{query}" if query else ""
    pattern = _MAGIC.search(shown)
    fixed = shown[: pattern.start()].rpartition("/")[0] if pattern else shown
    with reading(shown):
        store, path = _store(fixed + query)
        if pattern is None:
            infos = [store.get_file_info(path)]
        else:
            tail = shown[len(fixed) :]
            wanted = _pattern(path.rstrip("/"), tail)
            infos = [
                info
                for info in store.get_file_info(FileSelector(path, recursive="/" in tail.lstrip("/")))
                if info.type == FileType.File and wanted.fullmatch(info.path)
            ]
    if not infos:
        raise BuildError(f"No file matches {quoted(shown)}. Is the pattern right?")
    for info in sorted(infos, key=lambda info: str(info.path)):
        if info.type != FileType.File:
            raise BuildError(f"There is no file {quoted(shown)}. Is the name right?")
        url = fixed + info.path[len(path.rstrip("/")) :] + query if pattern else name
        yield Source(url, int(info.size or 0))


def _pattern(folder: str, tail: str) -> re.Pattern[str]:
    """Paths below a folder that a pattern stands for; as in a shell, only ** stands for folders, too."""
    parts = []
    for segment in tail.strip("/").split("/"):
        pieces = re.split(r"(\*|\[[^\]]+\])", segment)
        any_of = (piece.replace("[!", "[^", 1) if piece.startswith("[") else re.escape(piece) for piece in pieces)
        parts.append("(?:[^/]+/)*" if segment == "**" else "".join(any_of).replace(r"\*", "[^/]*") + "/")
    return re.compile(re.escape(folder) + "/" + "".join(parts).removesuffix("/"))


def _store(url: str) -> tuple[FileSystem, str]:
    from pyarrow.fs import FileSystem

    scheme, _, rest = url.partition("://")
    store, path = FileSystem.from_uri(f"{'gs' if scheme == 'gcs' else scheme}://{rest}")
    return store, str(path)


def _without_query(name: str) -> str:
    return name.partition("?")[0] if is_url(name) else name


@contextmanager
def reading(name: str) -> Iterator[None]:
    """For what reads a file of that name or asks its store: failures become a `BuildError` that names it."""
    import pyarrow

    try:
        yield
    except OSError as error:
        if not is_url(name):
            raise BuildError(f"Cannot read the corpus: {os_error_sentence(error)}") from error
        raise _unreachable(name, error) from error
    except pyarrow.ArrowException as error:
        raise _unreachable(name, error) from error


def _unreachable(name: str, error: Exception) -> BuildError:
    return BuildError(
        f"Cannot read {quoted(_without_query(name))}: {first_line(error)[:300]} Are the name, the network and the "
        "credentials right?"
    )
