"""How long one call takes, beside the least it could take: FAISS alone, and gRPC alone.

All in one run and in turn: the search against FAISS alone on the same lists, inside this process and inside a server
that waits for each request; whole calls of a server process against an echo of the same sizes; and a batch of 32
queries against one.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
from numpy.typing import NDArray

from benchmarks.echo import STREAM, UNARY
from benchmarks.queries import NEIGHBORS, NODES, TEMPERATURE, BareSearch, queries_for, request_for
from benchmarks.servers import Client, Stream, echoing, serving, serving_beside_faiss
from benchmarks.timing import Times, in_turn
from dresd.v1 import retriever_pb2 as pb
from retriever_service.datastore import Datastore, codecs

BATCH = 32
_QUERIES = 500
_WARMING = 50
"""Calls of each kind that do not count."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Times by name, and the ratios of their medians that are of interest.

    Attributes:
        entries: of the datastore.
        times: by name.
        ratios: by name.
    """

    entries: int
    times: dict[str, Times]
    ratios: dict[str, float]


def measure(path: Path, calls: int) -> Latency:
    """Takes all times of one datastore of one partition."""
    store = Datastore.open(path, verify_checksums=False)
    with codecs.one_thread():
        inside = _inside(store, calls)
    outside = _outside(path, store, calls)
    taken = inside | outside | _beside_faiss(path, store, calls)
    times = {name: Times.of(microseconds) for name, microseconds in taken.items()}
    pairs = {
        "search and merge / FAISS": ("draft", "FAISS"),
        "sparse lookup / dense lookup": ("sparse lookup", "dense lookup"),
        "draft / FAISS in a server": ("draft in a server", "FAISS in a server"),
        "server time / FAISS in a server": ("server time", "FAISS in a server"),
        "unary / echo": ("unary", "unary echo"),
        "stream / echo": ("stream", "stream echo"),
        f"batch of {BATCH} / one": (f"stream, {BATCH} queries", "stream"),
        "with sparse lookups / without": ("stream with sparse", "stream"),
    }
    ratios = {name: times[one].median / times[other].median for name, (one, other) in pairs.items()}
    return Latency(store.num_entries, times, ratios)


def _inside(store: Datastore, calls: int) -> dict[str, NDArray[np.float64]]:
    """FAISS alone; lookups of either kind; our search; search and merge; in this process, one query a call."""
    queries = queries_for(store, _QUERIES)
    keys, next_tokens = queries.keys, queries.next_tokens

    def row(number: int) -> slice:
        return slice(number % len(keys), number % len(keys) + 1)

    def search(number: int) -> None:
        store.search(keys[row(number)], next_tokens[row(number)], neighbors=NEIGHBORS)

    def draft(number: int) -> None:
        store.draft(
            keys[row(number)], next_tokens[row(number)], neighbors=NEIGHBORS, max_nodes=NODES, temperature=TEMPERATURE
        )

    ((opened,),) = store.segments.values()
    nprobe = store.manifest.nprobe

    def look_up(number: int, neighbors: int, sparse_neighbors: int) -> None:
        some = row(number)
        contexts = queries.left_contexts[some]
        opened.segment.look_up(0, keys[some], next_tokens[some], contexts, neighbors, sparse_neighbors, nprobe)

    kinds: dict[str, Callable[[int], object]] = {
        "FAISS": BareSearch.of(store, queries),
        "dense lookup": lambda number: look_up(number, NEIGHBORS, 0),
        "sparse lookup": lambda number: look_up(number, 0, NEIGHBORS),
        "search": search,
        "draft": draft,
    }
    return in_turn(kinds, calls)


def _outside(path: Path, store: Datastore, calls: int) -> dict[str, NDArray[np.float64]]:
    queries = queries_for(store, _QUERIES)
    build_id = store.manifest.build_id
    ones = [request_for(queries.select(np.array([at])), build_id) for at in range(len(queries))]
    sparse = [request_for(queries.select(np.array([at])), build_id, sparse=NEIGHBORS) for at in range(len(queries))]
    batches = [request_for(queries.select(np.arange(at, at + BATCH)), build_id) for at in range(len(queries) - BATCH)]
    server_times = np.zeros(calls)
    with serving(path) as (address, _):
        client = Client(address)
        stream = client.stream()

        def ask(requests: list[pb.RetrieveRequest]) -> Callable[[int], pb.RetrieveStreamResponse]:
            def call(number: int) -> pb.RetrieveStreamResponse:
                return stream.ask(
                    pb.RetrieveStreamRequest(request_id=number + 1, request=requests[number % len(requests)])
                )

            return call

        one = ask(ones)
        usual = one(0).response
        size = int(np.median([len(one(number).SerializeToString()) for number in range(100)]))

        def noting(number: int) -> None:
            timing = one(number).response.timing
            server_times[number] = timing.queue_us + timing.search_us + timing.merge_us

        with echoing(bytes(size)) as (echo_address, _):
            echo = Client(echo_address)
            echo_unary: grpc.UnaryUnaryMultiCallable[bytes, bytes] = echo.channel.unary_unary(UNARY)
            streams: grpc.StreamStreamMultiCallable[bytes, bytes] = echo.channel.stream_stream(STREAM)
            echo_stream: Stream[bytes, bytes] = Stream(streams)
            raw = ones[0].SerializeToString()
            taken = in_turn(
                {
                    "unary echo": lambda _: echo_unary(raw),
                    "unary": lambda number: client.stub.Retrieve(ones[number % len(ones)]),
                    "stream echo": lambda _: echo_stream.ask(raw),
                    "stream": noting,
                    "stream with sparse": ask(sparse),
                },
                calls,
            )
            taken |= in_turn({f"stream, {BATCH} queries": ask(batches)}, max(1, calls // 8))
            echo_stream.close()
            echo.close()
        stream.close()
        client.close()
    if len(usual.trees) != 1:
        raise RuntimeError("the server answered one query with another number of trees")
    return taken | {"server time": server_times}


def _beside_faiss(path: Path, store: Datastore, calls: int) -> dict[str, NDArray[np.float64]]:
    """FAISS alone, and our search and merge, inside a server that has just read a request."""
    queries = queries_for(store, _QUERIES)
    odd = len(queries) - 1 + len(queries) % 2  # so that each query comes to both
    requests = [request_for(queries.select(np.array([at])), store.manifest.build_id) for at in range(odd)]
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        with serving_beside_faiss(path, times) as (address, _):
            client = Client(address)
            stream = client.stream()
            for number in range(2 * calls):
                stream.ask(pb.RetrieveStreamRequest(request_id=number + 1, request=requests[number % len(requests)]))
            stream.close()
            client.close()
        taken = json.loads(times.read_text())
    warm = min(calls // 2, _WARMING)
    return {
        "FAISS in a server": np.array(taken["faiss_us"][warm:]),
        "draft in a server": np.array(taken["draft_us"][warm:]),
    }
