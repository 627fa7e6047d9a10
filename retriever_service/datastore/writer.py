"""Writing one segment: the entries of a partition in list order, with their index.

Equal input gives equal bytes. This module must not know where entries come from.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from retriever_service.datastore import codecs
from retriever_service.datastore.entries import EntryBatch
from retriever_service.datastore.files import replacing, save_rows, save_tensors
from retriever_service.datastore.layout import (
    CENTROIDS_FILE,
    CONTINUATIONS_FILE,
    DIRECTORY_ARRAYS,
    DIRECTORY_FILE,
    INDEX_FILE,
    LEFT_CONTEXTS_FILE,
    RECALL_NEIGHBORS,
    SEGMENT_FILES,
    SUFFIX_ORDER_FILE,
    TokenLists,
)
from retriever_service.datastore.manifest import FileRecord, SegmentRecord
from retriever_service.datastore.tokens import pack, token_dtype

MIN_ENTRIES_TO_CLUSTER = 1_000
"""A token with fewer entries has one list."""
MIN_DATASTORE_TO_CLUSTER = 100_000
"""In a datastore with fewer entries every token has one list: its search is exact."""

_RECALL_SAMPLE = 256
_MAX_ROWS = 2**32 - 1
_TIE = 1e-6


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the tokens, lists and rows of a segment lie.

    Attributes:
        tokens: int64 [T], ascending.
        token_lists: theirs.
        entry_offsets: int64 [T + 1], the rows of each token.
        order: int64 [n], the entry that becomes each row.
        lists: int64 [n], the list of each row.
    """

    tokens: NDArray[np.int64]
    token_lists: TokenLists
    entry_offsets: NDArray[np.int64]
    order: NDArray[np.int64]
    lists: NDArray[np.int64]


def write_partition(
    directory: Path,
    entries: EntryBatch,
    *,
    codec: str,
    vocab_size: int,
    num_entries_total: int,
    seed: int,
    nprobe: int = 0,
) -> SegmentRecord:
    """Writes a partition's entries as one segment.

    Args:
        directory: the segment's folder, created here; `segment_directory` names it, directly in the datastore's folder.
        entries: all entries of the partition; may be empty.
        codec: one of `CODECS`.
        vocab_size: of the target model.
        num_entries_total: entries of the whole datastore: decides whether tokens are split into lists.
        seed: of the clustering and the sample that recall is measured on.
        nprobe: lists searched within a token when recall is measured, 0 for all.

    Returns:
        The record for the manifest.

    Raises:
        ValueError: for entries that `EntryBatch.check_values` refuses, too many of them, or an unknown codec.
        OSError: when a file cannot be written (a full disk included).
    """
    entries.check_values(vocab_size)
    if len(entries) > _MAX_ROWS:
        raise ValueError(f"a segment holds at most {_MAX_ROWS} entries; build with more partitions")
    directory.mkdir(parents=True)
    if len(entries) == 0:
        return SegmentRecord(directory=directory.name, num_entries=0, files={}, recall=1.0)
    with codecs.one_thread():
        layout = _lay_out(entries, cluster=num_entries_total >= MIN_DATASTORE_TO_CLUSTER, seed=seed)
        entries = entries.select(layout.order)
        keys = np.ascontiguousarray(entries.keys)
        index = codecs.new_index(codec, keys, layout.lists, int(layout.token_lists.offsets[-1]))
        recall = _measure_recall(index, keys, layout, nprobe=nprobe, seed=seed)
    _write_index(directory / INDEX_FILE, index)
    dtype = token_dtype(vocab_size)
    left_contexts = pack(entries.left_contexts, dtype)
    save_rows(directory / CONTINUATIONS_FILE, pack(entries.continuations, dtype))
    save_rows(directory / LEFT_CONTEXTS_FILE, left_contexts)
    # Stored tokens are unsigned and padding the greatest: a shorter context sorts after a longer one.
    suffix_order = np.lexsort((*left_contexts.T[::-1], entries.next_tokens)).astype(np.uint32)
    save_rows(directory / SUFFIX_ORDER_FILE, suffix_order)
    save_rows(directory / CENTROIDS_FILE, layout.token_lists.centroids)
    arrays = (layout.entry_offsets, layout.token_lists.offsets, layout.tokens)
    save_tensors(
        directory / DIRECTORY_FILE,
        {name: array.astype(np.uint32) for name, array in zip(DIRECTORY_ARRAYS, arrays, strict=True)},
    )
    return SegmentRecord(
        directory=directory.name,
        num_entries=len(entries),
        files={name: FileRecord.of(directory / name) for name in SEGMENT_FILES},
        recall=recall,
    )


def _lay_out(entries: EntryBatch, *, cluster: bool, seed: int) -> _Layout:
    order = np.argsort(entries.next_tokens, kind="stable")
    tokens, starts, counts = np.unique(entries.next_tokens[order], return_index=True, return_counts=True)
    num_lists = np.ones(len(tokens), np.int64)
    if cluster:
        heavy = counts >= MIN_ENTRIES_TO_CLUSTER
        num_lists[heavy] = np.round(np.sqrt(counts[heavy])).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(num_lists)]).astype(np.int64)
    lists = np.repeat(offsets[:-1], counts)
    centroids = [np.zeros((0, entries.keys.shape[1]), np.float16)]
    for place in np.flatnonzero(num_lists > 1).tolist():
        rows = slice(int(starts[place]), int(starts[place] + counts[place]))
        keys = np.ascontiguousarray(entries.keys[order[rows]])
        found = _cluster(keys, int(num_lists[place]), seed + int(tokens[place]))
        assignment = np.argmax(keys @ found.astype(np.float32).T, axis=1)
        lists[rows] += assignment
        centroids.append(found)
    by_list = np.argsort(lists, kind="stable")
    entry_offsets = np.concatenate([starts, [len(order)]]).astype(np.int64)
    token_lists = TokenLists(offsets, TokenLists.place_centroids(offsets), np.concatenate(centroids))
    return _Layout(tokens, token_lists, entry_offsets, order[by_list], lists[by_list])


def _cluster(keys: NDArray[np.float32], number: int, seed: int) -> NDArray[np.float16]:
    kmeans = faiss.Kmeans(
        keys.shape[1], number, niter=10, seed=seed % 2**31, spherical=True, min_points_per_centroid=1, verbose=False
    )
    kmeans.train(keys)
    return np.asarray(kmeans.centroids, np.float16)


def _measure_recall(
    index: codecs.FaissIndex, keys: NDArray[np.float32], layout: _Layout, *, nprobe: int, seed: int
) -> float:
    """The share of the true nearest neighbours (those tied with the last included) that a search finds."""
    sample = np.random.default_rng(seed).choice(len(keys), min(_RECALL_SAMPLE, len(keys)), replace=False)
    places = np.searchsorted(layout.entry_offsets, sample, side="right") - 1
    lists = layout.token_lists.choose(keys[sample], places, nprobe)
    _, found = codecs.search_lists(index, np.ascontiguousarray(keys[sample]), lists, RECALL_NEIGHBORS)
    hits = wanted = 0
    for query, place, rows in zip(sample.tolist(), places.tolist(), found, strict=True):
        begin, end = layout.entry_offsets[place], layout.entry_offsets[place + 1]
        similarities = keys[begin:end] @ keys[query]
        nearest = min(RECALL_NEIGHBORS, len(similarities))
        last = np.partition(similarities, len(similarities) - nearest)[len(similarities) - nearest]
        hits += int((similarities[rows[rows >= 0] - begin] >= last - _TIE).sum())
        wanted += nearest
    return hits / wanted


def _write_index(path: Path, index: codecs.FaissIndex) -> None:
    with replacing(path) as beside:
        try:
            codecs.write_index(index, beside)
        except RuntimeError as error:
            # FAISS reports a failed write as text only.
            causes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES)
            cause = next((number for number in causes if os.strerror(number) in str(error)), errno.EIO)
            raise OSError(cause, os.strerror(cause), str(path)) from error
