"""Reading and writing the files of a datastore: whole or not at all, and never trusted unread.

Arrays that are read as a whole lie in safetensors files; arrays that are memory-mapped lie in .npy files. Nothing
is ever unpickled. This module knows files and arrays, not what they mean.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from retriever_service.datastore.errors import DatastoreError
from retriever_service.echo import echoed

REBUILD_HINT = "Copy the datastore again, or build it anew."

Array = NDArray[Any]

_CHUNK = 1 << 20


def sha256_of(path: Path) -> str:
    """sha256, hex, of a file's content; raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; renamed to `path` when the block ends well, removed when it does not."""
    beside = path.with_name(f".{path.name}.partial")
    try:
        yield beside
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Makes what was renamed in a folder outlast a crash of the machine; raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_build(directory: Path) -> None:
    """The same for a build's folder and its segments', before it gets its name; raises OSError."""
    for folder in (*(path for path in directory.iterdir() if path.is_dir()), directory):
        sync_directory(folder)


def read_bytes(path: Path) -> bytes:
    """A file's content; raises DatastoreError naming the file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DatastoreError(f"{path} cannot be read: {error.strerror}.", REBUILD_HINT) from error


def save_tensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """Writes named arrays as a safetensors file; equal arrays give equal bytes."""
    with replacing(path) as beside:
        beside.write_bytes(save_safetensors({name: np.ascontiguousarray(array) for name, array in tensors.items()}))


def load_tensors(path: Path, names: tuple[str, ...]) -> dict[str, Array]:
    """The arrays of a safetensors file, which must hold exactly `names`; raises DatastoreError naming the file."""
    tensors = parse_tensors(path, read_bytes(path))
    if set(tensors) != set(names):
        raise DatastoreError(f"{path} holds the arrays {echoed(sorted(tensors))}, not {sorted(names)}.", REBUILD_HINT)
    return tensors


def parse_tensors(path: Path, content: bytes) -> dict[str, Array]:
    """The arrays of a safetensors file whose bytes were read; raises DatastoreError naming the file."""
    try:
        return dict(load_safetensors(content))
    except (SafetensorError, ValueError, KeyError, MemoryError) as error:
        raise DatastoreError(f"{path} is not a readable safetensors file: {echoed(error)}.", REBUILD_HINT) from error


def save_rows(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], chunks: Iterable[Array]) -> None:
    """Writes an array as an .npy file, some of its rows after the others."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with replacing(path) as beside, beside.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for chunk in chunks:
            file.write(np.ascontiguousarray(chunk, dtype).data)


def map_rows(path: Path, *, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """An .npy file as a read-only memory map; raises DatastoreError naming the file if it holds anything else."""
    try:
        # Seen as writable (in copies that nobody makes): compiled code is called with such arrays in a fraction of the
        # time.
        rows: Array = np.lib.format.open_memmap(path, mode="c")
    except (OSError, ValueError, SyntaxError, TokenError) as error:
        raise DatastoreError(f"{path} is not a readable .npy file: {echoed(error)}.", REBUILD_HINT) from error
    if rows.shape != shape or rows.dtype != np.dtype(dtype):
        raise DatastoreError(f"{path} does not hold an array {shape} of {np.dtype(dtype)}.", REBUILD_HINT)
    # A plain view: memmap's own indexing costs several times an ndarray's.
    return rows.view(np.ndarray)
