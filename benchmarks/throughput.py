"""Queries a second: against the number of streams, beside FAISS alone in a loop, and over several partitions.

Partitions are server processes of their own; every query goes straight to those that hold its next token. What must not
grow with their number is the work a query costs all of them together, at the same load. Streams that ask without a
pause are not the same load: they keep one server so busy that it reads several requests each time it wakes, which
spares it most of its waking; spread over more servers than there are cores, each wakes for one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.load import Load, Target, drive
from benchmarks.queries import BareSearch, queries_for, request_for
from benchmarks.servers import serving
from retriever_service.datastore import Datastore, codecs

STREAMS = (1, 2, 4, 8, 16)
_QUERIES = 2000
_THREADS = "1"
"""Searches at a time of each server: the processes are what shares the cores."""
_PAUSE_S = 0.015
"""A forward pass of a small model."""
_ROUNDS = 3
"""Of all numbers of partitions in turn, whose middle one counts."""


@dataclass(frozen=True, slots=True)
class Partitioned:
    """Loads on P partitions: of decoders, which pause between queries, and without pauses."""

    partitions: int
    load: Load
    without_pauses: Load


def faiss_per_s(path: Path, seconds: float) -> float:
    """Searches a second of FAISS alone, on one core, in a loop."""
    store = Datastore.open(path, verify_checksums=False)
    search = BareSearch.of(store, queries_for(store, _QUERIES))
    with codecs.one_thread():
        for number in range(100):
            search(number)
        begun, number = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            search(number)
            number += 1
        return number / (time.perf_counter() - begun)


def against_streams(path: Path, streams: Sequence[int], seconds: float) -> list[Load]:
    """One server, more and more streams."""
    with ExitStack() as stack:
        targets, plan = _targets(path, stack)
        return [drive(targets, plan, number, seconds) for number in streams]


def against_partitions(paths: Sequence[Path], streams: int, seconds: float) -> list[Partitioned]:
    """The same loads on datastores of more and more partitions, each partition its own process; all started at first,
    and loaded in turn.
    """
    with ExitStack() as stack:
        served = [_targets(path, stack) for path in paths]
        part_s = seconds / _ROUNDS
        rounds = [
            [(drive(*each, streams, part_s, _PAUSE_S), drive(*each, streams, part_s)) for each in served]
            for _ in range(_ROUNDS)
        ]
    return [
        Partitioned(len(targets), *(_middle(loads) for loads in zip(*(one[at] for one in rounds), strict=True)))
        for at, (targets, _) in enumerate(served)
    ]


def _middle(loads: Sequence[Load]) -> Load:
    return sorted(loads, key=lambda load: load.server_us)[len(loads) // 2]


def _targets(path: Path, stack: ExitStack) -> tuple[list[Target], list[list[int]]]:
    """A server for every partition, with the queries it is to answer; and the partitions of each query."""
    store = Datastore.open(path, verify_checksums=False)
    queries = queries_for(store, _QUERIES)
    plan = [store.routing.partitions_of(token).tolist() for token in queries.next_tokens.tolist()]
    targets = []
    for number in store.served_partitions:
        address, process = stack.enter_context(serving(path, "--partitions", str(number), "--search-threads", _THREADS))
        mine = [query for query, asked in enumerate(plan) if number in asked]
        requests = [request_for(queries.select(np.array([query])), store.manifest.build_id) for query in mine]
        targets.append(Target(address, process, requests))
    return targets, plan
