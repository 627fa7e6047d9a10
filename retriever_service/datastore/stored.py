"""Entries read back out of a datastore, many at a time, for whoever writes them anew.

Keys come out as the codec kept them, normalised: what it lost is lost. It must not know why they are read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from retriever_service.datastore.entries import EntryBatch
from retriever_service.datastore.segment import Segment
from retriever_service.datastore.store import Datastore

_ROWS_AT_ONCE = 1 << 15
_ZERO_BELOW = 0.5
"""A key has length 1 or 0; a code makes either a little longer or shorter."""
_CLOSE = 1e-3
"""Lengths so near to 1 are left alone: the same code comes out of such a key again."""


def stored_batches(segment: Segment, wanted: NDArray[np.bool_]) -> Iterator[EntryBatch]:
    """The entries of some rows, in order.

    Args:
        segment: an open one of n rows.
        wanted: bool [n].
    """
    for begin in range(0, len(segment), _ROWS_AT_ONCE):
        rows = np.flatnonzero(wanted[begin : begin + _ROWS_AT_ONCE]) + begin
        if len(rows) > 0:
            yield stored_entries(segment, rows)


def stored_entries(segment: Segment, rows: NDArray[np.int64]) -> EntryBatch:
    """The entries of m rows, int64 [m]; quick for rows that ascend."""
    return EntryBatch(
        unit_keys(segment.keys_of(rows)),
        segment.next_tokens_of(rows),
        segment.continuations_of(rows, segment.stored_continuations.shape[1]),
        segment.left_contexts_of(rows),
    )


def entries_at(store: Datastore, ids: NDArray[np.int64]) -> EntryBatch:
    """The entries of some ids, int64 [m], ascending, of the served partitions."""
    dims, manifest = store.manifest.key_recipe.dims, store.manifest
    none = EntryBatch(
        np.zeros((0, dims), np.float32),
        np.zeros(0, np.int64),
        np.zeros((0, manifest.continuation_length), np.int32),
        np.zeros((0, manifest.left_context_length), np.int32),
    )
    parts = [none]
    for segments in store.segments.values():
        for opened in segments:
            rows = ids - opened.first_id
            rows = rows[(rows >= 0) & (rows < len(opened.segment))]
            if len(rows) > 0:
                parts.append(stored_entries(opened.segment, rows))
    return EntryBatch.concatenate(parts)


def keys_by_id(store: Datastore, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """float32 [m, dims]: the keys of different entries of the served partitions, int64 [m], in any order."""
    order = np.argsort(ids)
    rising = ids[order]
    keys = np.zeros((len(ids), store.manifest.key_recipe.dims), np.float32)
    for opened in (opened for segments in store.segments.values() for opened in segments):
        begin, end = np.searchsorted(rising, [opened.first_id, opened.first_id + len(opened.segment)]).tolist()
        if begin < end:
            keys[order[begin:end]] = unit_keys(opened.segment.keys_of(rising[begin:end] - opened.first_id))
    return keys


def unit_keys(decoded: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 [m, dims]: keys as they were before a codec changed their lengths."""
    lengths = np.linalg.norm(decoded, axis=1, keepdims=True)
    scale = np.where(np.abs(lengths - 1.0) < _CLOSE, np.float32(1.0), 1.0 / np.maximum(lengths, _ZERO_BELOW))
    return np.where(lengths < _ZERO_BELOW, np.float32(0.0), decoded * scale)
