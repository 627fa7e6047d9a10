"""Choosing how many lists a search reads, by measured recall, and recording the choice in the manifest.

Fewer lists are faster and find less. The measure is recall@k on held-out keys, within the next token, against the
keys before they were coded: what a decoder loses, codec included.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retriever_service.datastore import codecs
from retriever_service.datastore.errors import DatastoreError
from retriever_service.datastore.held_out import HeldOut, Hits
from retriever_service.datastore.layout import HELD_OUT_FILE, MAX_RECALL_NEIGHBORS, RECALL_NEIGHBORS
from retriever_service.datastore.manifest import Manifest, SegmentRecord, TuningRecord, write_manifest
from retriever_service.datastore.searched import OpenSegment
from retriever_service.datastore.segment import Segment
from retriever_service.datastore.store import Datastore

_QUERIES_AT_ONCE = 64
_NEARLY = 0.98
_ERRORS_TO_SPARE = 1.645
"""Standard errors between an estimate and the least that is true with a confidence of 95%."""


class UnreachableRecallError(DatastoreError):
    """Not even a search of every list is sure to find as much as was asked for.

    Attributes:
        best: the recall that it reaches.
    """

    def __init__(self, path: Path, codec: str, wanted: float, hits: Hits) -> None:
        super().__init__(
            f"{path} does not reach a recall of {wanted:g} for sure: with codec {codec} a search of every list finds "
            f"{hits.recall:.4f} ± {hits.standard_error:.4f}.",
            "Ask for less, or build it with a codec that keeps more (sq8, flat).",
        )
        self.best = hits.recall


@dataclass(frozen=True, slots=True)
class _Measured:
    """An open segment, its name and its held-out keys."""

    directory: str
    segment: Segment
    held_out: HeldOut

    def hits(self, nprobe: int, neighbors: int) -> Hits:
        def search(keys: NDArray[np.float32], rows: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
            found = np.full((len(keys), wanted), -1, np.int64)
            no_contexts = np.zeros((0, 0), np.int32)
            for begin in range(0, len(keys), _QUERIES_AT_ONCE):
                some = slice(begin, begin + _QUERIES_AT_ONCE)
                tokens = self.segment.next_tokens_of(rows[some])
                found[some] = self.segment.look_up(0, keys[some], tokens, no_contexts, wanted, 0, nprobe)[1]
            return found

        return self.held_out.hits(search, neighbors)


def tune(
    path: Path,
    *,
    recall: float = 0.95,
    neighbors: int = RECALL_NEIGHBORS,
    confident: bool = True,
    verify_checksums: bool = True,
) -> Manifest:
    """Chooses the least `nprobe` that reaches a recall, and writes it into the manifest with what was measured.

    Nothing else in the manifest changes but the recalls of the segments, which are those of the new `nprobe`.
    Servers that have the datastore open go on with the old one.

    Args:
        path: a datastore's folder.
        recall: wanted, above 0 and at most 1.
        neighbors: k of recall@k, 1 to 64.
        confident: the recall is that of all keys with a confidence of 95%, not just that of the held-out ones.
        verify_checksums: hash every file first.

    Returns:
        The manifest as written. A datastore whose tokens have one list each has nothing to choose: it stays as it is.

    Raises:
        ValueError: for a recall or a number of neighbours that cannot be.
        UnreachableRecallError: the codec alone loses more, or so much that nobody can be sure.
        DatastoreError: the datastore cannot be read, or holds no held-out keys.
        OSError: the manifest cannot be written.
    """
    if not 0.0 < recall <= 1.0 or not 1 <= neighbors <= MAX_RECALL_NEIGHBORS:
        raise ValueError(f"recall must lie in 0..1, above 0, and neighbors in 1..{MAX_RECALL_NEIGHBORS}")
    store = Datastore.open(path, verify_checksums=verify_checksums)
    most = _most_lists(_opened(store))
    if most <= 1:
        return store.manifest
    measured = _measured(path, store)
    with codecs.one_thread():
        errors = _ERRORS_TO_SPARE if confident else 0.0
        best = Hits.together(_hits(measured, most, neighbors))
        if best.recall - errors * best.standard_error < recall:
            raise UnreachableRecallError(path, store.manifest.codec, recall, best)
        nprobe = _least(measured, most, neighbors, recall, errors)
        chosen = Hits.together(_hits(measured, nprobe, neighbors))
        usual = _hits(measured, nprobe, RECALL_NEIGHBORS)
    by_directory = {each.directory: hits.recall for each, hits in zip(measured, usual, strict=True) if len(hits.found)}
    record = TuningRecord(
        target_recall=recall,
        neighbors=neighbors,
        recall=chosen.recall,
        standard_error=chosen.standard_error,
        every_list_recall=best.recall,
        held_out_keys=len(chosen.found),
    )
    manifest = _with(store.manifest, nprobe, record, by_directory)
    write_manifest(path, manifest)
    return manifest


def tune_built(path: Path) -> Manifest:
    """As `tune`, for what has just been written: recall 0.95, or nearly all that the codec can find where that is less.

    Raises:
        DatastoreError: the datastore cannot be read.
        OSError: the manifest cannot be written.
    """
    try:
        return tune(path, verify_checksums=False)
    except UnreachableRecallError as error:
        return tune(path, recall=_NEARLY * error.best, confident=False, verify_checksums=False)


def _opened(store: Datastore) -> list[OpenSegment]:
    return [opened for segments in store.segments.values() for opened in segments]


def _most_lists(segments: Sequence[OpenSegment]) -> int:
    """Of the token that has most."""
    return max((int(np.diff(opened.segment.token_lists.offsets).max()) for opened in segments), default=1)


def _measured(path: Path, store: Datastore) -> list[_Measured]:
    records = [record for partition in store.manifest.partitions for record in partition.segments if record.num_entries]
    measured = []
    for record, opened in zip(records, _opened(store), strict=True):
        if HELD_OUT_FILE not in record.files and _most_lists([opened]) <= 1:
            continue  # written while the datastore was small; all of a token is searched there whatever is chosen
        if HELD_OUT_FILE not in record.files:
            raise DatastoreError(
                f"{path / record.directory} has no {HELD_OUT_FILE}, so recall cannot be measured.",
                "It was written by an older version; build it anew.",
            )
        held_out = HeldOut.load(
            path / record.directory / HELD_OUT_FILE,
            dims=store.manifest.key_recipe.dims,
            num_entries=record.num_entries,
        )
        measured.append(_Measured(record.directory, opened.segment, held_out))
    return measured


def _least(measured: Sequence[_Measured], most: int, neighbors: int, recall: float, errors: float) -> int:
    """The least nprobe that reaches the recall with so many standard errors to spare, which `most` is known to."""

    def is_enough(nprobe: int) -> bool:
        hits = Hits.together(_hits(measured, nprobe, neighbors))
        return hits.recall - errors * hits.standard_error >= recall

    # Few lists are searched in no time, so upwards from few, and then by bisection.
    low, high = 1, 1
    while high < most and not is_enough(high):
        low, high = high + 1, min(2 * high, most)
    while low < high:
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle + 1
    return high


def _hits(measured: Sequence[_Measured], nprobe: int, neighbors: int) -> list[Hits]:
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as threads:
        return list(threads.map(lambda each: each.hits(nprobe, neighbors), measured))


def _with(manifest: Manifest, nprobe: int, record: TuningRecord, recalls: dict[str, float]) -> Manifest:
    def renewed(segment: SegmentRecord) -> SegmentRecord:
        return segment.model_copy(update={"recall": recalls.get(segment.directory, segment.recall)})

    partitions = [
        partition.model_copy(update={"segments": [renewed(segment) for segment in partition.segments]})
        for partition in manifest.partitions
    ]
    return manifest.model_copy(update={"nprobe": nprobe, "tuning": record, "partitions": partitions})
