"""Other ways to find neighbours with the query's next token, over the same keys in the same run.

DReSD as published asks ScaNN for the 50 nearest keys of all and keeps those with the right token; so does FAISS here.
LanceDB is a vector database that filters first. A neighbour is *useful* when it is one of the 50 true nearest with the
query's next token; what counts is how many of those a millisecond buys. Everything runs in this process, on one thread
where it can be told so.
"""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks.queries import NEIGHBORS, queries_for
from benchmarks.stores import Spec
from benchmarks.synthetic import DIMS, Generator
from benchmarks.timing import Times, in_turn
from benchmarks.truth import Identifier, Truth
from retriever_service.datastore import Datastore, EntryBatch, codecs

_QUERIES = 300

Answer = Callable[[int], NDArray[np.int64]]
"""A query's number to the numbers of the entries found that share its next token."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One way, measured.

    Attributes:
        name: what it is and how it was set.
        build_seconds: of its index; 0 for a datastore that was there.
        times: of one query.
        found: neighbours with the query's next token, a query.
        useful: of those, true nearest ones, a query.
        recall: useful ones of all true nearest.
    """

    name: str
    build_seconds: float
    times: Times
    found: float
    useful: float
    recall: float

    @property
    def useful_per_ms(self) -> float:
        """Useful neighbours bought by a millisecond."""
        return self.useful / (self.times.median / 1000)


@dataclass(frozen=True, slots=True)
class _Keys:
    keys: NDArray[np.float32]
    next_tokens: NDArray[np.int64]
    queries: EntryBatch


def measure(path: Path, spec: Spec, calls: int) -> tuple[list[Peer], list[str]]:
    """All peers that are installed; the second list says which are not, and how to install them."""
    store = Datastore.open(path, verify_checksums=False)
    generator = Generator(spec.seed)
    queries = queries_for(store, min(_QUERIES, calls), spec.seed)
    truth = Truth.of(generator.entries(spec.entries), queries, NEIGHBORS)
    ours = _ours(store, Identifier(generator.entries(spec.entries)), queries)
    batches = list(generator.entries(spec.entries))
    data = _Keys(
        np.concatenate([batch.keys for batch in batches]),
        np.concatenate([batch.next_tokens for batch in batches]),
        queries,
    )
    del batches
    ways: dict[str, tuple[float, Answer]] = {"dresd: filter first": (0.0, ours)}
    missing = []
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch, codecs.one_thread():
        for prepare, module, extra in (
            (_faiss, "faiss", "server"),
            (_scann, "scann", "scann"),
            (_lancedb, "lancedb", "bench-service"),
        ):
            try:
                importlib.import_module(module)
            except ImportError:
                missing.append(f'{module} is not installed: pip install ".[{extra}]"')
                continue
            for name, seconds, answer in prepare(data, Path(scratch)):
                ways[name] = (seconds, answer)
        taken = in_turn({name: answer for name, (_, answer) in ways.items()}, len(queries))
        peers = [
            _peer(name, seconds, taken[name], [answer(number) for number in range(len(queries))], truth)
            for name, (seconds, answer) in ways.items()
        ]
    return peers, missing


def _peer(
    name: str, build_seconds: float, taken: NDArray[np.float64], answers: list[NDArray[np.int64]], truth: Truth
) -> Peer:
    useful = truth.found(answers)
    return Peer(
        name,
        build_seconds,
        Times.of(taken),
        found=sum(map(len, answers)) / len(answers),
        useful=useful / len(answers),
        recall=useful / truth.total,
    )


def _ours(store: Datastore, identifier: Identifier, queries: EntryBatch) -> Answer:
    known: dict[int, NDArray[np.int64]] = {}

    def answer(number: int) -> NDArray[np.int64]:
        row = slice(number, number + 1)
        ids = store.search(queries.keys[row], queries.next_tokens[row], neighbors=NEIGHBORS).ids[0]
        if number in known:  # the search is what is timed
            return known[number]
        known[number] = identifier.numbers(store, ids[ids >= 0])
        return known[number]

    for number in range(len(queries)):
        answer(number)
    return answer


def _faiss(data: _Keys, scratch: Path) -> Iterator[tuple[str, float, Answer]]:  # noqa: ARG001
    begun = time.perf_counter()
    lists = max(1, round(4 * np.sqrt(len(data.keys))))
    index: codecs.FaissIndex = faiss.index_factory(DIMS, f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1
    index.train(data.keys[: 64 * lists])
    index.add(data.keys)
    index.nprobe = max(1, lists // 64)
    seconds = time.perf_counter() - begun
    for neighbors in (NEIGHBORS, 20 * NEIGHBORS):

        def answer(number: int, neighbors: int = neighbors) -> NDArray[np.int64]:
            found = index.search(data.queries.keys[number : number + 1], neighbors)[1][0]
            return _filtered(data, number, found)

        yield f"FAISS IVF{lists},SQ8, nprobe {index.nprobe}, {neighbors} then filter", seconds, answer


def _scann(data: _Keys, scratch: Path) -> Iterator[tuple[str, float, Answer]]:  # noqa: ARG001
    import scann

    begun = time.perf_counter()
    number_of_keys = len(data.keys)
    root = np.sqrt(number_of_keys)
    leaves = min(int(root) * 5, number_of_keys // 2)
    # As in the published code of DReSD: arXiv 2502.15572.
    searcher = (
        scann.scann_ops_pybind.builder(data.keys, NEIGHBORS, "dot_product")
        .tree(
            num_leaves=leaves,
            num_leaves_to_search=min(250, leaves),
            training_sample_size=min(int(root * 250), number_of_keys),
        )
        .score_ah(2, anisotropic_quantization_threshold=0.2)
        .reorder(250)
        .build()
    )
    seconds = time.perf_counter() - begun

    def answer(number: int) -> NDArray[np.int64]:
        found, _ = searcher.search(data.queries.keys[number])
        return _filtered(data, number, found.astype(np.int64))

    yield f"ScaNN as DReSD sets it, {NEIGHBORS} then filter", seconds, answer


def _lancedb(data: _Keys, scratch: Path) -> Iterator[tuple[str, float, Answer]]:
    import lancedb
    import pyarrow as pa
    from lancedb.index import BTree, IvfSq

    begun = time.perf_counter()
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(data.keys.ravel()), DIMS)
    numbers = pa.array(np.arange(len(data.keys)))
    rows = pa.table({"number": numbers, "token": pa.array(data.next_tokens), "vector": vectors})
    # Any: the library's own types say too little.
    table: Any = lancedb.connect(scratch / "lancedb").create_table("keys", rows)
    partitions = max(1, round(np.sqrt(len(data.keys))))
    table.create_index("vector", config=IvfSq(distance_type="dot", num_partitions=partitions))
    table.create_index("token", config=BTree())
    seconds = time.perf_counter() - begun
    for probes in (20, 100):

        def answer(number: int, probes: int = probes) -> NDArray[np.int64]:
            token = int(data.queries.next_tokens[number])
            query = table.search(data.queries.keys[number]).where(f"token = {token}").nprobes(probes).limit(NEIGHBORS)
            found = query.select(["number", "_distance"]).to_arrow()["number"]
            return np.asarray(found.to_numpy(), np.int64)

        yield f"LanceDB IVF{partitions},SQ, nprobes {probes}, filter first", seconds, answer


def _filtered(data: _Keys, number: int, found: NDArray[np.int64]) -> NDArray[np.int64]:
    found = found[found >= 0]
    kept: NDArray[np.int64] = found[data.next_tokens[found] == data.queries.next_tokens[number]]
    return kept
