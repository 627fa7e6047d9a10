"""Committed results of a build's stages: files that are there whole, with their checksums in them, or not at all.

A block is one or more sections of bytes and, behind them, where each ends and its sha256, so that a reader of one
section checks just that. It is written beside its place under a name that no other process has, and renamed: a task
that runs twice, at the same time even, leaves one whole block. Knows nothing of what blocks hold.
"""

from __future__ import annotations

import hashlib
import os
import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from retriever_service.building.errors import BuildError

_MAGIC = b"DRESDBLK"
_DIGEST = 32
_END = struct.Struct(f"<q{_DIGEST}s8s")
"""Number of sections, sha256 of their table, magic."""
_ENTRY = struct.Struct(f"<q{_DIGEST}s")
"""Of the table: where a section ends, and its sha256."""
_PARTIAL = ".partial"
_CHUNK = 1 << 22


class DamagedBlockError(BuildError):
    """A block is not as it was written."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"'{path}' is damaged. Look at the disk, then run the same command again: the block is made anew."
        )


def commit(path: Path, *sections: bytes) -> None:
    """Writes a block; one that is there is replaced. Raises OSError."""
    table = b""
    end = 0
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_PARTIAL}")
    try:
        with beside.open("wb") as file:
            for section in sections:
                file.write(section)
                end += len(section)
                table += _ENTRY.pack(end, hashlib.sha256(section).digest())
            file.write(table + _END.pack(len(sections), hashlib.sha256(table).digest(), _MAGIC))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def load(path: Path, section: int = 0) -> bytes:
    """One section of a block.

    Raises:
        DamagedBlockError: it is not as it was written.
        OSError: it is not there.
    """
    with path.open("rb") as file:
        table = _table(path, file.fileno())
        begin = table[section - 1][0] if section else 0
        end, digest = table[section]
        content = _read(path, file.fileno(), begin, end - begin)
    if hashlib.sha256(content).digest() != digest:
        raise DamagedBlockError(path)
    return content


def is_whole(path: Path) -> bool:
    """Whether a block is there and every byte of it as it was written; holds little of it in memory."""
    try:
        with path.open("rb") as file:
            for end, digest in _table(path, file.fileno()):
                measured = hashlib.sha256()
                while file.tell() < end:
                    measured.update(file.read(min(_CHUNK, end - file.tell())))
                if measured.digest() != digest:
                    return False
    except (FileNotFoundError, DamagedBlockError):
        return False
    return True


def drop_damaged(paths: Iterable[Path]) -> int:
    """Removes those blocks that are not as they were written; returns how many."""
    damaged = [path for path in paths if path.exists() and not is_whole(path)]
    for path in damaged:
        path.unlink(missing_ok=True)
    return len(damaged)


def remove_partial(directory: Path) -> None:
    """Removes what killed processes were writing."""
    for path in directory.glob(f".*{_PARTIAL}"):
        path.unlink(missing_ok=True)


def pack(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Named arrays as a section; equal arrays give equal bytes."""
    data: bytes = save_safetensors({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    return data


def unpack(section: bytes) -> dict[str, NDArray[Any]]:
    """What `pack` made."""
    return dict(load_safetensors(section))


def _table(path: Path, file: int) -> Sequence[tuple[int, bytes]]:
    size = os.fstat(file).st_size
    if size < _END.size:
        raise DamagedBlockError(path)
    number, digest, magic = _END.unpack(_read(path, file, size - _END.size, _END.size))
    length = number * _ENTRY.size
    if magic != _MAGIC or not 0 <= length <= size - _END.size:
        raise DamagedBlockError(path)
    table = _read(path, file, size - _END.size - length, length)
    entries = list(_ENTRY.iter_unpack(table))
    # Nothing may lie between the sections and their table.
    if hashlib.sha256(table).digest() != digest or (entries[-1][0] if entries else 0) != size - _END.size - length:
        raise DamagedBlockError(path)
    return entries


def _read(path: Path, file: int, begin: int, length: int) -> bytes:
    parts = []
    while length > 0:  # one call returns at most 2 GiB
        part = os.pread(file, length, begin)
        if not part:
            raise DamagedBlockError(path)
        parts.append(part)
        begin, length = begin + len(part), length - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
