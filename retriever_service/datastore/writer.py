"""Writing one segment: the entries of a partition in list order, with their index.

Entries come in batches and wait on disk, so memory holds the coded keys and a few numbers an entry, not the entries.
Equal input gives equal bytes; with a GPU, but for where its clusters lie. This module must not know where entries come
from.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retriever_service.datastore import codecs
from retriever_service.datastore.clustering import MIN_DATASTORE_TO_CLUSTER, Arrangement, arrange, suffix_order_of
from retriever_service.datastore.entries import EntryBatch
from retriever_service.datastore.entry_spool import EntrySpool, spooled
from retriever_service.datastore.files import replacing, save_rows, save_tensors
from retriever_service.datastore.held_out import HeldOut
from retriever_service.datastore.layout import (
    CENTROIDS_FILE,
    CONTINUATIONS_FILE,
    DIRECTORY_ARRAYS,
    DIRECTORY_FILE,
    HELD_OUT_FILE,
    INDEX_FILE,
    LEFT_CONTEXTS_FILE,
    RECALL_NEIGHBORS,
    SEGMENT_FILES,
    SUFFIX_ORDER_FILE,
)
from retriever_service.datastore.manifest import FileRecord, SegmentRecord

_MAX_ROWS = 2**32 - 1
_ROWS_AT_ONCE = 1 << 16
_RECALL_KEYS = 256
"""Of those held out, whose every list is searched; where lists are chosen, `tune` looks at all of them."""


def write_partition(
    directory: Path,
    batches: Iterable[EntryBatch],
    *,
    codec: str,
    vocab_size: int,
    num_entries_total: int,
    seed: int,
) -> SegmentRecord:
    """Writes a partition's entries as one segment.

    Args:
        directory: the segment's folder, created here; `segment_directory` names it, directly in the datastore's folder.
            It is gone again when this fails.
        batches: all entries of the partition, maybe none; read once, one batch at a time.
        codec: one of `CODECS`.
        vocab_size: of the target model.
        num_entries_total: entries of the whole datastore: decides whether tokens are split into lists.
        seed: of the clustering and the keys that are held out.

    Returns:
        The record for the manifest; its recall is that of the codec, every list of a token searched.

    Raises:
        ValueError: for entries that `EntryBatch.check_values` refuses, too many of them, or an unknown codec.
        OSError: when a file cannot be written (a full disk included).
    """
    directory.mkdir(parents=True)
    try:
        with spooled(batches, directory, vocab_size) as entries, codecs.one_thread():
            if len(entries) == 0:
                return SegmentRecord(directory=directory.name, num_entries=0, files={}, recall=1.0)
            cluster = num_entries_total >= MIN_DATASTORE_TO_CLUSTER
            names, recall = _write(directory, entries, codec=codec, cluster=cluster, seed=seed)
            return SegmentRecord(
                directory=directory.name,
                num_entries=len(entries),
                files={name: FileRecord.of(directory / name) for name in names},
                recall=recall,
            )
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _write(
    directory: Path, entries: EntrySpool, *, codec: str, cluster: bool, seed: int
) -> tuple[tuple[str, ...], float]:
    """Writes the files; returns their names and the recall."""
    if len(entries) > _MAX_ROWS:
        raise ValueError(f"a segment holds at most {_MAX_ROWS} entries; build with more partitions")
    chosen = HeldOut.choose(len(entries), stored=cluster, seed=seed)
    arrangement = arrange(entries.next_tokens, entries.keys, chosen, cluster=cluster, seed=seed)
    held_out = HeldOut.measure(entries.keys, chosen, arrangement)
    index = _index(codec, entries, chosen, arrangement, seed)
    recall = _codec_recall(index, held_out, arrangement)
    _write_index(directory / INDEX_FILE, index)
    del index
    order = arrangement.order
    for name, stored in ((CONTINUATIONS_FILE, entries.continuations), (LEFT_CONTEXTS_FILE, entries.left_contexts)):
        chunks = (stored[order[begin : begin + _ROWS_AT_ONCE]] for begin in range(0, len(order), _ROWS_AT_ONCE))
        save_rows(directory / name, stored.shape, stored.dtype, chunks)
    suffix_order = suffix_order_of(entries.left_contexts, arrangement)
    save_rows(directory / SUFFIX_ORDER_FILE, order.shape, np.dtype(np.uint32), suffix_order)
    centroids = arrangement.token_lists.centroids
    save_rows(directory / CENTROIDS_FILE, centroids.shape, centroids.dtype, [centroids])
    arrays = (arrangement.entry_offsets, arrangement.token_lists.offsets, arrangement.tokens)
    save_tensors(
        directory / DIRECTORY_FILE,
        {name: array.astype(np.uint32) for name, array in zip(DIRECTORY_ARRAYS, arrays, strict=True)},
    )
    if not cluster:
        return SEGMENT_FILES, recall
    held_out.save(directory / HELD_OUT_FILE)
    return (*SEGMENT_FILES, HELD_OUT_FILE), recall


def _index(
    codec: str, entries: EntrySpool, held_out: NDArray[np.int64], arrangement: Arrangement, seed: int
) -> codecs.FaissIndex:
    seen = np.setdiff1d(np.arange(len(entries)), held_out, assume_unique=True)
    seen = seen if len(seen) > 0 else held_out  # of so few entries none can be spared
    if len(seen) > codecs.MAX_TRAINING_KEYS:
        chosen = np.random.default_rng(seed).choice(len(seen), codecs.MAX_TRAINING_KEYS, replace=False)
        seen = seen[np.sort(chosen)]
    index = codecs.new_index(codec, entries.keys[seen], int(arrangement.token_lists.offsets[-1]))
    for begin in range(0, len(entries), _ROWS_AT_ONCE):
        rows = slice(begin, begin + _ROWS_AT_ONCE)
        codecs.add(index, entries.keys[arrangement.order[rows]], begin, arrangement.lists[rows])
    return index


def _codec_recall(index: codecs.FaissIndex, held_out: HeldOut, arrangement: Arrangement) -> float:
    """The share of the true nearest neighbours that a search of every list finds."""

    def search(keys: NDArray[np.float32], rows: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
        places = np.searchsorted(arrangement.entry_offsets, rows, side="right") - 1
        lists = arrangement.token_lists.choose(keys, places, 0)
        return codecs.search_lists(index, keys, lists, wanted)[1]

    return held_out.thinned(_RECALL_KEYS).hits(search, RECALL_NEIGHBORS).recall


def _write_index(path: Path, index: codecs.FaissIndex) -> None:
    with replacing(path) as beside:
        try:
            codecs.write_index(index, beside)
        except RuntimeError as error:
            # FAISS reports a failed write as text only.
            causes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES)
            cause = next((number for number in causes if os.strerror(number) in str(error)), errno.EIO)
            raise OSError(cause, os.strerror(cause), str(path)) from error
