"""The full check of a datastore: every byte hashed, every count taken again, a sample searched for itself.

Opening a datastore checks what a server must know before it trusts a file; this checks everything.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever_service.datastore import codecs
from retriever_service.datastore.errors import DatastoreError
from retriever_service.datastore.files import REBUILD_HINT
from retriever_service.datastore.held_out import HeldOut
from retriever_service.datastore.layout import (
    CONTINUATIONS_FILE,
    DIRECTORY_FILE,
    HELD_OUT_FILE,
    INDEX_FILE,
    LEFT_CONTEXTS_FILE,
    RECALL_NEIGHBORS,
    SUFFIX_ORDER_FILE,
)
from retriever_service.datastore.manifest import (
    MANIFEST_FILE,
    FileRecord,
    Manifest,
    SegmentRecord,
    is_laid_out_as_written,
    read_manifest,
)
from retriever_service.datastore.segment import Segment, check_file
from retriever_service.datastore.store import Datastore
from retriever_service.echo import echoed

_ROWS_AT_ONCE = 1 << 18
_TIE = 1e-5
_EXTRA_HINT = "Nothing reads it; move it out of the folder."
_OTHER_LAYOUT = f"{MANIFEST_FILE} says what was written, but is laid out in another way (white space, JSON's spelling)."


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """What was checked and found right.

    Attributes:
        path: the datastore's folder.
        files: files hashed.
        bytes: bytes hashed.
        partitions: partitions counted.
        entries: entries counted.
        sampled: stored keys searched for.
        self_recall: share of them found among their own nearest neighbours with the datastore's own nprobe: 1 for an
            exact search, None without a sample.
        notes: what differs from what was written and means nothing.
    """

    path: str
    files: int
    bytes: int
    partitions: int
    entries: int
    sampled: int
    self_recall: float | None
    notes: list[str]


def verify(path: Path | str, *, sample: int = 1000, seed: int = 0) -> VerificationReport:
    """Checks a datastore completely.

    Raises:
        DatastoreError: naming every file that is missing, has another size or sha256, holds what cannot be, or does
            not belong to it.
    """
    path = Path(path)
    manifest = read_manifest(path)
    files = dict(_files(path, manifest))
    _raise_for(list(_broken_files(files)))
    extra = list(_extra_files(path, {path / MANIFEST_FILE, *files}))
    _raise_for([f"{echoed(file)} does not belong to the datastore." for file in extra], _EXTRA_HINT)
    store = Datastore.open(path, verify_checksums=False)
    _raise_for(
        [
            f"{path / record.directory / name}: {problem}"
            for partition in manifest.partitions
            for record, opened in zip(
                [record for record in partition.segments if record.num_entries > 0],
                store.segments[partition.index],
                strict=True,
            )
            for name, problem in _problems(store, partition.index, record, opened.segment)
        ]
    )
    sampled = min(sample, store.num_entries)
    return VerificationReport(
        path=str(path),
        files=len(files),
        bytes=sum(record.size for record in files.values()),
        partitions=len(manifest.partitions),
        entries=store.num_entries,
        sampled=sampled,
        self_recall=_self_recall(store, sampled, seed),
        notes=[] if is_laid_out_as_written(path) else [_OTHER_LAYOUT],
    )


def _files(path: Path, manifest: Manifest) -> Iterator[tuple[Path, FileRecord]]:
    for name, record in manifest.files.items():
        yield path / name, record
    for partition in manifest.partitions:
        for segment in partition.segments:
            for name, record in segment.files.items():
                yield path / segment.directory / name, record


def _broken_files(files: dict[Path, FileRecord]) -> Iterator[str]:
    for path, record in files.items():
        problem = _breakage(path, record)
        if problem is not None:
            yield problem


def _extra_files(path: Path, known: Collection[Path]) -> Iterator[Path]:
    """Whatever is no folder and not known, or a link to a folder, which is not looked into."""
    folders = {file.parent for file in known}
    for place, subfolders, names in os.walk(path):
        links = [name for name in subfolders if (Path(place) / name).is_symlink() and Path(place) / name not in folders]
        yield from (Path(place) / name for name in sorted([*names, *links]) if Path(place) / name not in known)


def _breakage(path: Path, record: FileRecord) -> str | None:
    try:
        check_file(path, record, checksum=True)
    except DatastoreError as error:
        return error.message
    return None


def _raise_for(problems: list[str], hint: str = REBUILD_HINT) -> None:
    if problems:
        raise DatastoreError(" ".join(problems), hint)


def _problems(store: Datastore, partition: int, record: SegmentRecord, segment: Segment) -> Iterator[tuple[str, str]]:
    """What no build writes, by file: hashes only tell that a file is as it was written."""
    vocab_size = store.manifest.model.vocab_size
    queries, partitions = store.routing.lookup(segment.tokens)
    if len(np.unique(queries[partitions == partition])) != len(segment.tokens):
        yield DIRECTORY_FILE, "it has tokens that the routing table leads elsewhere."
    sizes = np.diff(segment.lists.rows).tolist()
    ids = [codecs.list_ids(segment.index, number, size) for number, size in enumerate(sizes)]
    if not np.array_equal(np.concatenate(ids), np.arange(len(segment))):
        yield INDEX_FILE, "its ids are not its rows."
    for name, stored in (
        (CONTINUATIONS_FILE, segment.stored_continuations),
        (LEFT_CONTEXTS_FILE, segment.stored_left_contexts),
    ):
        if not all(_are_padded_tokens(rows, vocab_size) for rows in _chunks(stored)):
            yield name, "it has tokens beyond the vocabulary or after padding."
    if not _is_suffix_order(segment):
        yield SUFFIX_ORDER_FILE, "its rows are not ordered by left context."
    if HELD_OUT_FILE in record.files:
        file = store.path / record.directory / HELD_OUT_FILE
        held_out = HeldOut.load(file, dims=store.manifest.key_recipe.dims, num_entries=len(segment))
        near = np.repeat(segment.next_tokens_of(held_out.rows), np.diff(held_out.offsets))
        if not np.array_equal(segment.next_tokens_of(held_out.neighbors), near):
            yield HELD_OUT_FILE, "its neighbours have other next tokens."


def _chunks(stored: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for begin in range(0, len(stored), _ROWS_AT_ONCE):
        yield stored[begin : begin + _ROWS_AT_ONCE]


def _are_padded_tokens(rows: NDArray[Any], vocab_size: int) -> bool:
    is_pad = rows == np.iinfo(rows.dtype).max
    return bool(((rows < vocab_size) | is_pad).all()) and not (is_pad[:, :-1] & ~is_pad[:, 1:]).any()


def _is_suffix_order(segment: Segment) -> bool:
    if segment.suffix_order.max() >= len(segment):
        return False
    rows = segment.suffix_order.astype(np.int64)
    tokens = np.repeat(np.arange(len(segment.tokens)), np.diff(segment.entry_offsets))
    if (np.bincount(rows, minlength=len(segment)) != 1).any() or (tokens[rows] != tokens).any():
        return False
    for begin in range(0, len(rows), _ROWS_AT_ONCE):
        contexts = segment.stored_left_contexts[rows[begin : begin + _ROWS_AT_ONCE + 1]]
        before, after = contexts[:-1], contexts[1:]
        first = np.argmax(before != after, axis=1)[:, None]
        falls = np.take_along_axis(before, first, 1)[:, 0] > np.take_along_axis(after, first, 1)[:, 0]
        of = tokens[begin : begin + len(contexts)]
        if (falls & (of[:-1] == of[1:])).any():
            return False
    return True


def _self_recall(store: Datastore, sampled: int, seed: int) -> float | None:
    if sampled == 0:
        return None
    ids = np.sort(np.random.default_rng(seed).choice(store.num_entries, sampled, replace=False))
    found = 0
    for segments in store.segments.values():
        for opened in segments:
            mine = ids[(ids >= opened.first_id) & (ids < opened.first_id + len(opened.segment))]
            if len(mine) == 0:
                continue
            rows = mine - opened.first_id
            keys = opened.segment.keys_of(rows)
            near = store.search(keys, opened.segment.next_tokens_of(rows), neighbors=RECALL_NEIGHBORS)
            # Entries with the same key may push one another out of the nearest: tied with the last is found too.
            tied = near.similarities[:, -1] >= (keys * keys).sum(axis=1) - _TIE
            found += int(((near.ids == mine[:, None]).any(axis=1) | tied).sum())
    return found / sampled
