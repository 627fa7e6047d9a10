"""A smaller datastore of the entries that others stand in for least, and what leaving out the rest costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retriever_service.datastore import Datastore, EntryBatch, Manifest, entries_at, stored_batches
from retriever_service.evolving.deriving import OnEntries, write_derived
from retriever_service.evolving.draft_worth import tokens_per_pass
from retriever_service.evolving.redundancy import choose

_MEASURED = 2000
_ONE_IN = 20


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was left out, and what it costs.

    Attributes:
        manifest: the new datastore's.
        before: the old one's.
        near_duplicates: entries left out that had a near-duplicate.
        others: left out beside them.
        tokens_per_pass: of the new one, see `draft_worth`; 1 where nothing was measured.
        tokens_per_pass_before: of the old one, at the same places.
    """

    manifest: Manifest
    before: Manifest
    near_duplicates: int
    others: int
    tokens_per_pass: float
    tokens_per_pass_before: float


def prune(
    path: Path,
    directory: Path,
    max_entries: int,
    *,
    similarity: float = 0.98,
    measured: int = _MEASURED,
    seed: int = 0,
    command: str = "",
    on_entries: OnEntries = lambda _: None,
) -> Pruned:
    """Writes a datastore of at most `max_entries` entries of another.

    Args:
        path: of the other, every file of which is hashed first.
        directory: an empty folder.
        max_entries: at least 1.
        similarity: cosine from which keys with equal next token and continuation are near-duplicates.
        measured: so many entries (one in twenty at most) have no part in the choice, so that what is lost can be
            measured at places like theirs; the same share of them is kept as of all, at random.
        seed: of the clustering, and of what is measured.
        command: as typed, for the manifest.
        on_entries: told how many entries have been written since it was called last.

    Raises:
        DatastoreError: the other cannot be read.
        OSError: a file cannot be written.
    """
    store = Datastore.open(path)
    unseen = np.random.default_rng(seed).permutation(store.num_entries)[: min(measured, store.num_entries // _ONE_IN)]
    staying = unseen[: len(unseen) * min(max_entries, store.num_entries) // store.num_entries]
    kept, near_duplicates = choose(store, max_entries - len(staying), similarity=similarity, unseen=unseen)
    kept[staying] = True
    manifest = write_derived(
        directory,
        [store],
        routing=store.routing,
        token_table=store.token_table,
        batches=lambda partition: _entries_of(store, partition, kept),
        num_entries=int(kept.sum()),
        codec=store.manifest.codec,
        seed=seed,
        command=command,
        on_entries=on_entries,
    )
    places = entries_at(store, np.sort(unseen))
    after = Datastore.open(directory, verify_checksums=False)
    return Pruned(
        manifest,
        store.manifest,
        near_duplicates,
        store.num_entries - manifest.num_entries - near_duplicates,
        tokens_per_pass(after, places),
        tokens_per_pass(store, places),
    )


def _entries_of(store: Datastore, partition: int, kept: NDArray[np.bool_]) -> Iterator[EntryBatch]:
    for opened in store.segments[partition]:
        yield from stored_batches(opened.segment, kept[opened.first_id : opened.first_id + len(opened.segment)])
