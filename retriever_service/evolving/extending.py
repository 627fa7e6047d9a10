"""A datastore with more entries: the segments of one as they are, and a further one for each partition that grows.

The tokens that it has stay where they are, so queries go where they went; others go to the partitions that are
emptiest. Entries that it has verbatim are left out, so documents may be given again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dresd.routing import RoutingTable
from retriever_service.datastore import (
    REDUCER_FILE,
    ROUTING_FILE,
    TOKEN_TABLE_FILE,
    Datastore,
    EntryBatch,
    Manifest,
    PartitionRecord,
    SegmentRecord,
    build_id_of,
    dataset_files,
    save_routing,
    save_token_table,
    segment_directory,
    stored_batches,
    tune_built,
    write_manifest,
    write_partition,
)
from retriever_service.evolving.deriving import joined_corpora
from retriever_service.evolving.key_recipes import check_joinable
from retriever_service.evolving.sharing import share_files
from retriever_service.evolving.spreading import rows_of_partition
from retriever_service.evolving.token_tables import joined_tables
from retriever_service.versions import installed_versions

_SAME_KEY = 0.95
"""Of entries with the same 16 tokens or so on both sides; a codec may move a key so far."""
_LOOKED_AT = 8
"""Neighbours among which a verbatim entry is looked for."""


@dataclass(frozen=True, slots=True)
class Extended:
    """Entries added, those left out because they were there verbatim, and bytes of files that could not be shared."""

    manifest: Manifest
    added: int
    verbatim: int
    copied_bytes: int


def extend(path: Path, more: Path, directory: Path, *, seed: int = 0, command: str = "") -> Extended:
    """Writes a datastore of another's entries and some more, sharing the other's files.

    Args:
        path: of the other, every file of which is hashed first.
        more: a datastore with the same keys, whose entries are read back and coded as the other's are.
        directory: an empty folder.
        seed: of the clustering, and of the keys that recall is measured on.
        command: as typed, for the manifest.

    Raises:
        DatastoreError: one cannot be read, or they differ in what a key is.
        OSError: a file cannot be written.
    """
    base, addition = Datastore.open(path), Datastore.open(more)
    check_joinable([base, addition])
    routing = extended_routing(base, addition.entries_by_token())
    names = [REDUCER_FILE] + ([ROUTING_FILE] if np.array_equal(routing.tokens, base.routing.tokens) else [])
    copied = share_files(path, directory, names)
    if ROUTING_FILE not in names:
        save_routing(routing, directory / ROUTING_FILE)
    save_token_table(directory / TOKEN_TABLE_FILE, joined_tables([base, addition]))
    partitions, added = [], 0
    for record in base.manifest.partitions:
        segments = list(record.segments)
        for segment in segments:
            copied += share_files(path / segment.directory, directory / segment.directory, sorted(segment.files))
        written = write_partition(
            directory / _free_name(record.index, segments),
            _new_entries(base, addition, routing, record.index),
            codec=base.manifest.codec,
            vocab_size=base.manifest.model.vocab_size,
            num_entries_total=base.num_entries + addition.num_entries,
            seed=seed,
        )
        if written.num_entries > 0:
            segments.append(written)
            added += written.num_entries
        else:
            (directory / written.directory).rmdir()
        partitions.append(PartitionRecord(index=record.index, segments=segments))
    files = dataset_files(directory)
    manifest = base.manifest.model_copy(
        update={
            "build_id": build_id_of(base.manifest.key_recipe, base.manifest.model, files, partitions),
            "corpus": joined_corpora([base.manifest.corpus, addition.manifest.corpus]),
            "nprobe": 0,
            "tuning": None,
            "num_entries": base.num_entries + added,
            "files": files,
            "partitions": partitions,
            "versions": installed_versions(),
            "command": command,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
    )
    write_manifest(directory, manifest)
    return Extended(tune_built(directory), added, addition.num_entries - added, copied)


def extended_routing(base: Datastore, more: NDArray[np.int64]) -> RoutingTable:
    """The table with the tokens that only `more` has (int64 [vocab], entries of each).

    Largest first, each goes to the partition that is emptiest then, one however large it is: a token is split over
    several when it is built, or merged, anew.
    """
    old = base.routing
    loads = np.array([partition.num_entries for partition in base.manifest.partitions], np.int64)
    known = np.flatnonzero(more)
    known = known[np.isin(known, old.tokens)]
    for token in known.tolist():
        owners = old.partitions_of(token)
        loads[owners] += more[token] // len(owners)
    unknown = np.setdiff1d(np.flatnonzero(more), old.tokens)
    owner_of = {}
    for token in unknown[np.lexsort((unknown, -more[unknown]))].tolist():
        owner = int(np.argmin(loads))
        loads[owner] += more[token]
        owner_of[token] = [owner]
    owner_of |= {int(token): old.partitions_of(int(token)).tolist() for token in old.tokens}
    tokens = sorted(owner_of)
    offsets = np.cumsum([0, *(len(owner_of[token]) for token in tokens)])
    owners_in_order = [owner for token in tokens for owner in owner_of[token]]
    return RoutingTable(
        old.num_partitions,
        np.array(tokens, np.int64),
        offsets.astype(np.int64),
        np.array(owners_in_order, np.int64),
    )


def _free_name(partition: int, segments: Sequence[SegmentRecord]) -> str:
    taken = {segment.directory for segment in segments}
    return next(name for number in range(len(taken) + 1) if (name := segment_directory(partition, number)) not in taken)


def _new_entries(base: Datastore, addition: Datastore, routing: RoutingTable, partition: int) -> Iterator[EntryBatch]:
    for segments in addition.segments.values():
        for opened in segments:
            rows = rows_of_partition(opened, routing, partition, base.num_entries)
            for batch in stored_batches(opened.segment, rows):
                yield batch.select(~_verbatim(base, batch))


def _verbatim(base: Datastore, batch: EntryBatch) -> NDArray[np.bool_]:
    """bool [n]: which entries another datastore has with the same key, next token, continuation and left context."""
    near = base.search(batch.keys, batch.next_tokens, neighbors=_LOOKED_AT)
    rows, places = np.nonzero((near.ids >= 0) & (near.similarities >= _SAME_KEY))
    stored = base.entries(near.ids[rows, places])
    same = (stored.continuations == batch.continuations[rows]).all(axis=1)
    same &= (stored.left_contexts == batch.left_contexts[rows]).all(axis=1)
    found = np.zeros(len(batch), np.bool_)
    found[rows[same]] = True
    return found
