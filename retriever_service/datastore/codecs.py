"""How keys are coded in the index, by name, and FAISS's classes behind the names.

To add a codec: a row in `_SCALAR_TYPES` (or a branch in `new_index`), and its measured recall in the documentation.
This module knows FAISS and nothing of a datastore's files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

_SCALAR_TYPES = {"sq8": faiss.ScalarQuantizer.QT_8bit, "sq4": faiss.ScalarQuantizer.QT_4bit}

CODECS = ("flat", *_SCALAR_TYPES)
"""Known names: float32, 8 bits and 4 bits a dimension."""

FaissIndex = Any
"""An IVF index or its lists; FAISS's type stubs leave out much of both."""


def new_index(codec: str, keys: NDArray[np.float32], lists: NDArray[np.int64], num_lists: int) -> FaissIndex:
    """An inverted-list index of `keys`, whose ids are their rows.

    The lists are chosen by the caller, here and in every search, so the index's own coarse quantiser stays empty: no
    bytes for centroids nobody asks.

    Args:
        codec: one of `CODECS`.
        keys: float32 [n, dims].
        lists: int64 [n], the list of each key.
        num_lists: lists in the index.

    Raises:
        ValueError: for an unknown codec.
    """
    dims = keys.shape[1]
    quantizer = faiss.IndexFlatIP(dims)
    index: FaissIndex
    if codec == "flat":
        index = faiss.IndexIVFFlat(quantizer, dims, num_lists, faiss.METRIC_INNER_PRODUCT)
    elif codec in _SCALAR_TYPES:
        index = faiss.IndexIVFScalarQuantizer(
            quantizer, dims, num_lists, _SCALAR_TYPES[codec], faiss.METRIC_INNER_PRODUCT
        )
        index.sq.train(keys)
    else:
        raise ValueError(f"codec must be one of {', '.join(CODECS)}, not {codec!r}")
    index.by_residual = False
    index.is_trained = True
    rows = np.arange(len(keys), dtype=np.int64)
    index.add_core(len(keys), faiss.swig_ptr(keys), faiss.swig_ptr(rows), faiss.swig_ptr(lists))
    return index


_reading = threading.Lock()


def map_index(path: Path) -> FaissIndex:
    """An index file as a memory map.

    A damaged size in it must not make FAISS allocate all memory before it finds the file too short. FAISS's limits are
    the whole process's, hence the lock.

    Raises:
        RuntimeError: FAISS cannot read the file.
        MemoryError: nor allocate what it asks for.
        OSError: the file cannot be opened.
    """
    with _reading:
        bytes_before = faiss.get_deserialization_vector_byte_limit()
        count_before = faiss.get_deserialization_loop_limit()
        faiss.set_deserialization_vector_byte_limit(path.stat().st_size)
        faiss.set_deserialization_loop_limit(path.stat().st_size)
        try:
            with path.open("rb") as file:
                return faiss.read_index(_name_for_faiss(path, file.fileno()), faiss.IO_FLAG_MMAP)
        finally:
            faiss.set_deserialization_vector_byte_limit(bytes_before)
            faiss.set_deserialization_loop_limit(count_before)


def write_index(index: FaissIndex, path: Path) -> None:
    """Writes an index as a new file.

    Raises:
        RuntimeError: FAISS cannot write it; the text holds the system's reason.
        OSError: the file cannot be made.
    """
    with path.open("wb") as file:
        faiss.write_index(index, _name_for_faiss(path, file.fileno()))


def _name_for_faiss(path: Path, descriptor: int) -> str:
    """What FAISS opens `path` by, which is open already.

    FAISS takes text and hands it on as UTF-8, so a name of other bytes is none it could open.
    """
    try:
        if str(path).encode() == os.fsencode(path):
            return str(path)
    except UnicodeEncodeError:
        pass
    return f"/dev/fd/{descriptor}"


def matches(index: FaissIndex, codec: str) -> bool:
    """Whether an index read from a file is what `new_index` makes for this codec."""
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        return False
    if codec == "flat":
        return isinstance(index, faiss.IndexIVFFlat)
    return isinstance(index, faiss.IndexIVFScalarQuantizer) and index.sq.qtype == _SCALAR_TYPES[codec]


def search_lists(
    index: FaissIndex, keys: NDArray[np.float32], lists: NDArray[np.int64], neighbors: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scans chosen lists. Thread-safe; FAISS runs without the GIL.

    FAISS's Python wrapper takes the number of lists from a shared attribute of the index; so the C++ method is called
    with parameters and statistics of this call's own.

    Args:
        index: as made by `new_index` or read from a file.
        keys: float32 [b, dims], C-contiguous.
        lists: int64 [b, lists a query], C-contiguous, -1 for none.
        neighbors: best rows wanted.

    Returns:
        similarities: float32 [b, neighbors], falling; undefined where there is no neighbour.
        rows: int64 [b, neighbors], -1 where there is none.
    """
    similarities = np.empty((len(keys), neighbors), np.float32)
    rows = np.empty((len(keys), neighbors), np.int64)
    parameters = faiss.SearchParametersIVF()
    parameters.nprobe = lists.shape[1]
    to_centroids = np.zeros(lists.shape, np.float32)
    index.search_preassigned_c(
        len(keys),
        faiss.swig_ptr(keys),
        neighbors,
        faiss.swig_ptr(lists),
        faiss.swig_ptr(to_centroids),
        faiss.swig_ptr(similarities),
        faiss.swig_ptr(rows),
        False,  # noqa: FBT003 - store_pairs; FAISS takes arguments by position only
        parameters,
        faiss.IndexIVFStats(),
    )
    return similarities, rows


def list_sizes(index: FaissIndex) -> NDArray[np.int64]:
    """int64 [num_lists]."""
    inverted = faiss.downcast_InvertedLists(index.invlists)
    return np.fromiter((inverted.list_size(number) for number in range(index.nlist)), np.int64, index.nlist)


def list_ids(index: FaissIndex, number: int, size: int) -> NDArray[np.int64]:
    """int64 [size]: the ids of one list (a copy)."""
    inverted = faiss.downcast_InvertedLists(index.invlists)
    ids: NDArray[np.int64] = faiss.rev_swig_ptr(inverted.get_ids(number), size).copy()
    return ids


def key_at(index: FaissIndex, number: int, offset: int) -> NDArray[np.float32]:
    """float32 [dims]: one key of a list, as the codec kept it."""
    inverted: FaissIndex = faiss.downcast_InvertedLists(index.invlists)
    code = faiss.rev_swig_ptr(inverted.get_single_code(number, offset), index.code_size).copy()
    if isinstance(index, faiss.IndexIVFFlat):
        flat: NDArray[np.float32] = code.view(np.float32)
        return flat
    decoded: NDArray[np.float32] = index.sq.decode(code[None])[0]
    return decoded


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs FAISS on the calling thread alone: sums in one order, so equal input gives equal bytes."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
