"""How keys are coded in the index, by name, and FAISS's classes behind the names.

To add a codec: a row in `_SCALAR_TYPES` (or a branch in `new_index`, `matches` and `keys_at`), and its measured recall
in the documentation. This module knows FAISS and nothing of a datastore's files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

_SCALAR_TYPES = {"sq8": faiss.ScalarQuantizer.QT_8bit, "sq4": faiss.ScalarQuantizer.QT_4bit}

CODECS = ("flat", *_SCALAR_TYPES, "pq")
"""Known names: float32, 8 bits and 4 bits a dimension, and a product quantiser of 4 bits a dimension."""

MAX_TRAINING_KEYS = 1 << 16
"""A codec is trained on so many keys at most; more change its recall by less than the sample does."""

_PQ_BITS = 8

FaissIndex = Any
"""An IVF index or its lists; FAISS's type stubs leave out much of both."""


def new_index(codec: str, training: NDArray[np.float32], num_lists: int) -> FaissIndex:
    """An empty inverted-list index whose codec is trained; `add` fills it.

    The lists are chosen by the caller, here and in every search, so the index's own coarse quantiser stays empty: no
    bytes for centroids nobody asks.

    Args:
        codec: one of `CODECS`.
        training: float32 [m, dims], C-contiguous, at least one: what the codec is fitted to.
        num_lists: lists in the index.

    Raises:
        ValueError: for an unknown codec.
    """
    dims = training.shape[1]
    quantizer = faiss.IndexFlatIP(dims)
    index: FaissIndex
    if codec == "flat":
        index = faiss.IndexIVFFlat(quantizer, dims, num_lists, faiss.METRIC_INNER_PRODUCT)
    elif codec in _SCALAR_TYPES:
        index = faiss.IndexIVFScalarQuantizer(
            quantizer, dims, num_lists, _SCALAR_TYPES[codec], faiss.METRIC_INNER_PRODUCT
        )
        index.sq.train(training)
    elif codec == "pq":
        pieces = _pq_pieces(dims)
        index = faiss.IndexIVFPQ(quantizer, dims, num_lists, pieces, _PQ_BITS, faiss.METRIC_INNER_PRODUCT)
        index.pq.cp.min_points_per_centroid = 1
        # FAISS refuses fewer points than centroids. Repeated ones make every point a centroid: no loss at all.
        index.pq.train(np.resize(training, (max(len(training), 1 << _PQ_BITS), dims)))
    else:
        raise ValueError(f"codec must be one of {', '.join(CODECS)}, not {codec!r}")
    index.by_residual = False
    index.is_trained = True
    return index


def _pq_pieces(dims: int) -> int:
    # Two dimensions a byte: on keys of models it finds more than as many bytes of sq4, and half as many lose a fifth.
    return dims // 2 if dims % 2 == 0 else dims


def add(index: FaissIndex, keys: NDArray[np.float32], first_row: int, lists: NDArray[np.int64]) -> None:
    """Adds keys whose ids are their rows, counted from `first_row`.

    Args:
        index: from `new_index`.
        keys: float32 [n, dims], C-contiguous.
        first_row: of these keys.
        lists: int64 [n], C-contiguous, the list of each.
    """
    rows = np.arange(first_row, first_row + len(keys), dtype=np.int64)
    index.add_core(len(keys), faiss.swig_ptr(keys), faiss.swig_ptr(rows), faiss.swig_ptr(lists))


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
    if not isinstance(index, faiss.IndexIVF) or not index.is_trained:
        return False
    if index.metric_type != faiss.METRIC_INNER_PRODUCT or index.by_residual:
        return False
    if codec == "flat":
        return isinstance(index, faiss.IndexIVFFlat)
    if codec == "pq":
        return (
            isinstance(index, faiss.IndexIVFPQ)
            and (index.pq.M, index.pq.nbits, index.polysemous_ht) == (_pq_pieces(index.d), _PQ_BITS, 0)
            and index.code_size == index.pq.code_size
        )
    return isinstance(index, faiss.IndexIVFScalarQuantizer) and index.sq.qtype == _SCALAR_TYPES[codec]


def search_lists(
    index: FaissIndex, keys: NDArray[np.float32], lists: NDArray[np.int64], neighbors: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scans chosen lists. Thread-safe; FAISS runs without the GIL.

    FAISS's Python wrapper takes the number of lists from a shared attribute of the index; so the C++ method is called
    with parameters and statistics of this call's own.

    Args:
        index: filled by `add`, or read from a file.
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


def keys_at(index: FaissIndex, lists: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.float32]:
    """float32 [m, dims]: keys as the codec kept them; quick where keys of one list follow each other.

    Args:
        index: filled by `add`, or read from a file.
        lists: int64 [m].
        offsets: int64 [m], within these lists.
    """
    inverted: FaissIndex = faiss.downcast_InvertedLists(index.invlists)
    codes = np.empty((len(lists), index.code_size), np.uint8)
    cuts = np.flatnonzero(np.diff(lists)) + 1
    for begin, end in pairwise([0, *cuts.tolist(), len(lists)] if len(lists) else []):
        number = int(lists[begin])
        size = inverted.list_size(number)
        stored = faiss.rev_swig_ptr(inverted.get_codes(number), size * index.code_size)
        codes[begin:end] = stored.reshape(size, index.code_size)[offsets[begin:end]]
    if isinstance(index, faiss.IndexIVFFlat):
        flat: NDArray[np.float32] = codes.view(np.float32)
        return flat
    quantizer: FaissIndex = index.pq if isinstance(index, faiss.IndexIVFPQ) else index.sq
    decoded: NDArray[np.float32] = quantizer.decode(codes)
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
