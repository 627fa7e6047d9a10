"""What a datastore costs as it grows: to build, to keep, to open and to ask."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.latency import Latency
from benchmarks.latency import measure as measure_latency
from benchmarks.queries import NEIGHBORS, queries_for
from benchmarks.stores import Build, Spec, datastore
from benchmarks.synthetic import Generator
from benchmarks.truth import Identifier, Truth
from retriever_service.datastore import MAX_NPROBE, Datastore, inspect

_RECALL_QUERIES = 500
_OPEN = """
import json, sys, time
from benchmarks.stores import memory_of
from retriever_service.datastore import Datastore
begun = time.perf_counter()
store = Datastore.open(sys.argv[1], verify_checksums=sys.argv[2] == "checked")
print(json.dumps([time.perf_counter() - begun, *memory_of()]))
"""


@dataclass(frozen=True, slots=True)
class Size:
    """One datastore.

    Attributes:
        entries: in it.
        build: what building it took.
        bytes_per_entry: on disk.
        nprobe: lists of a token searched.
        recall: at 50 neighbours, of fresh queries against exact search over all keys.
        open_s: seconds to open it, files not hashed; a process of its own.
        open_checked_s: seconds with every file hashed.
        opened_bytes: memory of the process that opened it, its own.
        latency: of calls.
    """

    entries: int
    build: Build
    bytes_per_entry: float
    nprobe: int
    recall: float
    open_s: float
    open_checked_s: float
    opened_bytes: int
    latency: Latency


def measure(folder: Path, entries: int, calls: int) -> Size:
    """Builds the datastore unless it is there, and measures it."""
    spec = Spec(entries)
    path, build = datastore(folder, spec)
    found = inspect(path)
    checked_s, _ = _open(path, "checked")
    open_s, opened_bytes = _open(path, "unchecked")
    return Size(
        entries=entries,
        build=build,
        bytes_per_entry=found.bytes_per_entry,
        nprobe=Datastore.open(path, verify_checksums=False).manifest.nprobe,
        recall=recall(path, spec, min(_RECALL_QUERIES, calls)),
        open_s=open_s,
        open_checked_s=checked_s,
        opened_bytes=opened_bytes,
        latency=measure_latency(path, calls),
    )


def recall(path: Path, spec: Spec, number: int, *, every_list: bool = False) -> float:
    """Of the 50 nearest entries with the query's next token, the share that a search finds; queries are fresh."""
    store = Datastore.open(path, verify_checksums=False)
    generator = Generator(spec.seed)
    queries = queries_for(store, number, spec.seed)
    truth = Truth.of(generator.entries(spec.entries), queries, NEIGHBORS)
    identifier = Identifier(generator.entries(spec.entries))
    near = store.search(queries.keys, queries.next_tokens, neighbors=NEIGHBORS, nprobe=every_list * MAX_NPROBE)
    answers = (identifier.numbers(store, ids[ids >= 0]) for ids in near.ids)
    return truth.found(answers) / truth.total


def _open(path: Path, how: str) -> tuple[float, int]:
    done = subprocess.run([sys.executable, "-c", _OPEN, str(path), how], check=True, capture_output=True, text=True)
    seconds, own, _ = json.loads(done.stdout)
    return seconds, own
