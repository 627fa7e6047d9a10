"""Every codec on the same entries: what it keeps, what it costs, how long a search takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.growth import recall
from benchmarks.queries import NEIGHBORS, queries_for
from benchmarks.stores import Spec, datastore
from benchmarks.timing import in_turn
from retriever_service.datastore import CODECS, Datastore, codecs, inspect


@dataclass(frozen=True, slots=True)
class CodecSize:
    """One codec: recall and bytes of the same entries, and the time of a search in this process, µs."""

    codec: str
    bytes_per_entry: float
    nprobe: int
    recall: float
    every_list_recall: float
    search_us: float


def measure(folder: Path, entries: int, calls: int) -> list[CodecSize]:
    """Builds what is not there, and searches all in turn."""
    specs = [Spec(entries, codec) for codec in CODECS]
    paths = [datastore(folder, spec)[0] for spec in specs]
    stores = [Datastore.open(path, verify_checksums=False) for path in paths]
    queries = queries_for(stores[0], calls)

    def search_of(store: Datastore) -> Callable[[int], None]:
        def search(number: int) -> None:
            row = slice(number % len(queries), number % len(queries) + 1)
            store.search(queries.keys[row], queries.next_tokens[row], neighbors=NEIGHBORS)

        return search

    with codecs.one_thread():
        taken = in_turn({store.manifest.codec: search_of(store) for store in stores}, calls)
    return [
        CodecSize(
            codec=spec.codec,
            bytes_per_entry=inspect(path).bytes_per_entry,
            nprobe=store.manifest.nprobe,
            recall=recall(path, spec, calls),
            every_list_recall=recall(path, spec, calls, every_list=True),
            search_us=float(np.median(taken[spec.codec])),
        )
        for spec, path, store in zip(specs, paths, stores, strict=True)
    ]
