"""Joining datastores of one key recipe into one, or one's many segments into one a partition.

The entries are read back, spread anew over the partitions and written by the writer that builds use, so the result is
searched like any build. Duplicates stay: how often something was said is what a draft's masses are made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dresd.routing import RoutingTable
from retriever_service.datastore import (
    Datastore,
    DatastoreError,
    EntryBatch,
    Manifest,
    assign_tokens,
    stored_batches,
)
from retriever_service.evolving.deriving import OnEntries, write_derived
from retriever_service.evolving.key_recipes import check_joinable
from retriever_service.evolving.spreading import rows_of_partition
from retriever_service.evolving.token_tables import joined_tables


def merge(
    paths: Sequence[Path],
    directory: Path,
    *,
    partitions: int | None = None,
    codec: str | None = None,
    seed: int = 0,
    command: str = "",
    on_entries: OnEntries = lambda _: None,
) -> Manifest:
    """Writes a datastore of all entries of some others.

    Args:
        paths: theirs, one at least; every file of them is hashed first.
        directory: an empty folder.
        partitions: parts by next token, at least 1; None for as many as the source that has most.
        codec: one of `CODECS`; None for the sources' own.
        seed: of the clustering, and of the keys that recall is measured on.
        command: as typed, for the manifest.
        on_entries: told how many entries have been read back since it was called last.

    Raises:
        DatastoreError: a source cannot be read, or they differ in what a key is.
        OSError: a file cannot be written.
    """
    sources = [Datastore.open(path) for path in paths]
    check_joinable(sources)
    codecs = sorted({source.manifest.codec for source in sources})
    if codec is None and len(codecs) > 1:
        raise DatastoreError(f"The datastores have the codecs {' and '.join(codecs)}.", "Choose one with --codec.")
    counts = sum((source.entries_by_token() for source in sources), np.zeros(1, np.int64))
    number = partitions or max(len(source.manifest.partitions) for source in sources)
    routing = assign_tokens(counts, number)
    return write_derived(
        directory,
        sources,
        routing=routing,
        token_table=joined_tables(sources),
        batches=lambda partition: _entries_of(sources, routing, partition),
        num_entries=int(counts.sum()),
        codec=codec or codecs[0],
        seed=seed,
        command=command,
        on_entries=on_entries,
    )


def _entries_of(sources: Sequence[Datastore], routing: RoutingTable, partition: int) -> Iterator[EntryBatch]:
    before = 0
    for source in sources:
        for segments in source.segments.values():
            for opened in segments:
                yield from stored_batches(opened.segment, rows_of_partition(opened, routing, partition, before))
        before += source.num_entries
