"""More requests than a server can answer: how soon it answers those that it accepts, and what becomes of the others.

The saturating load is what a few streams get that ask again as soon as they are answered. Shares of it are then offered
by an open loop (`open_loop`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.load import Target, drive
from benchmarks.open_loop import Outcome, offer
from benchmarks.queries import queries_for, request_for
from benchmarks.servers import serving
from retriever_service.datastore import Datastore

SHARES = (0.7, 1.5, 3.0)
BATCHES = (32, 1)
_QUERIES = 2048
_FEW_STREAMS = 4
_STREAMS = 32
_PATIENCE_MS = 50.0
"""What decoders wait by default."""


@dataclass(frozen=True, slots=True)
class Overload:
    """Requests of `batch` queries each, at shares of the `saturating` number a second."""

    batch: int
    saturating: float
    offered: list[Outcome]


def measure(path: Path, seconds: float, batches: Sequence[int] = BATCHES) -> list[Overload]:
    """A server of its own for each kind of requests."""
    store = Datastore.open(path, verify_checksums=False)
    queries = queries_for(store, _QUERIES)
    measured = []
    for batch in batches:
        parts = np.arange(_QUERIES).reshape(-1, batch)
        requests = [request_for(queries.select(part), store.manifest.build_id) for part in parts]
        with serving(path) as (address, process):
            full = drive([Target(address, process, requests)], [(0,)] * len(requests), _FEW_STREAMS, seconds)
            offered = [
                offer(address, requests, share * full.queries_per_s, seconds, _STREAMS, _PATIENCE_MS)
                for share in SHARES
            ]
        measured.append(Overload(batch, full.queries_per_s, offered))
    return measured
