"""A server's numbers for Prometheus, on an HTTP port of their own.

Everything is read when it is asked for, in the HTTP server's thread; requests pay for none of it. Knows names and units
of metrics; what happens is counted elsewhere.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from dresd.histogram import Histogram
from retriever_service.serving.config import split_address
from retriever_service.serving.crew import Crew
from retriever_service.serving.errors import ServeError
from retriever_service.serving.meters import RequestMeter

if TYPE_CHECKING:
    from retriever_service.serving.collection import Collections
    from retriever_service.serving.search_pool import SearchPool

_PREFIX = "dresd_retriever"
_METRICS = "metrics"
_OTHERS_S = 2.0
"""Longest wait for the other workers' numbers."""


class ServerMetrics(Collector):
    """All numbers of one server, and what its process uses.

    Args:
        meter: of its requests.
        pool: of its searches.
        collections: that it serves.
        open_streams: how many there are now.
        peer_states: whether each peer is asked, by address; None where nothing is passed on.
    """

    def __init__(
        self,
        meter: RequestMeter,
        pool: SearchPool,
        collections: Collections,
        open_streams: Callable[[], int],
        peer_states: Callable[[], Mapping[str, bool]] | None = None,
    ) -> None:
        self._peer_states = peer_states
        self._meter = meter
        self._pool = pool
        self._collections = collections
        self._open_streams = open_streams
        self._process = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        """The numbers now."""
        yield from self._process.collect()
        yield from self._requests()
        yield from self._answers()
        yield from self._builds()
        yield CounterMetricFamily(
            f"{_PREFIX}_unauthenticated_calls", "Calls without an accepted token", value=self._meter.unauthenticated
        )
        yield _gauge("queue_depth", "Searches that wait for a thread", self._pool.waiting)
        yield _gauge("searches_in_flight", "Searches that run", self._pool.running)
        yield _gauge("streams_open", "RetrieveStream calls that are open", self._open_streams())
        if self._peer_states is not None:
            text = "1 for a peer that is asked, 0 for one that is left alone"
            peers = GaugeMetricFamily(f"{_PREFIX}_peer_state", text, labels=("peer",))
            for address, is_asked in sorted(self._peer_states().items()):
                peers.add_metric((address,), float(is_asked))
            yield peers

    def _requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            f"{_PREFIX}_requests", "Retrieve requests by status", labels=("collection", "method", "code")
        )
        for key, count in list(self._meter.counts.items()):
            requests.add_metric(key, count)
        yield requests
        seconds = HistogramMetricFamily(
            f"{_PREFIX}_request_duration_seconds",
            "From the arrival of a request to its answer",
            labels=("collection", "method"),
        )
        for labels, histogram in list(self._meter.seconds.items()):
            _add(seconds, labels, histogram)
        yield seconds

    def _answers(self) -> Iterator[Metric]:
        meters = list(self._meter.collections.items())
        for name, text in (
            ("queue", "Waiting for a search thread"),
            ("search", "Searching"),
            ("merge", "Making trees of what was found"),
        ):
            family = HistogramMetricFamily(f"{_PREFIX}_{name}_duration_seconds", text, labels=("collection",))
            for collection, meter in meters:
                _add(family, (collection,), getattr(meter, name))
            yield family
        for name, text in (
            ("queries", "Queries answered"),
            ("nodes", "Draft tree nodes returned"),
            ("partitions_asked", "Partitions that answered requests concerned"),
            ("partitions_answered", "Those of them that answered"),
        ):
            counter = CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=("collection",))
            for collection, meter in meters:
                counter.add_metric((collection,), getattr(meter, name))
            yield counter
        neighbors = CounterMetricFamily(f"{_PREFIX}_neighbors", "Neighbours found", labels=("collection", "source"))
        for collection, meter in meters:
            neighbors.add_metric((collection, "dense"), meter.dense_neighbors)
            neighbors.add_metric((collection, "sparse"), meter.sparse_neighbors)
        yield neighbors

    def _builds(self) -> Iterator[Metric]:
        info = InfoMetricFamily(f"{_PREFIX}_build", "The build that is current", labels=("collection",))
        entries = GaugeMetricFamily(f"{_PREFIX}_entries", "Entries served", labels=("collection",))
        mapped = GaugeMetricFamily(f"{_PREFIX}_mapped_bytes", "Bytes of mapped files", labels=("collection",))
        builds = GaugeMetricFamily(f"{_PREFIX}_builds", "Builds that answer, retiring ones too", labels=("collection",))
        for collection in self._collections:
            loaded = collection.builds
            builds.add_metric((collection.name,), len(loaded))
            mapped.add_metric((collection.name,), sum(build.datastore.mapped_bytes for build in loaded))
            if loaded:
                current = loaded[0].datastore
                labels = {
                    "build_id": current.manifest.build_id,
                    "model": current.manifest.model.name,
                    "version": version("dresd"),
                }
                info.add_metric((collection.name,), labels)
                entries.add_metric((collection.name,), current.num_entries)
        yield from (info, entries, mapped, builds)


class MetricsPort:
    """Answers `GET /metrics` on "HOST:PORT".

    Args:
        listen: where; port 0 is any free one. Held for all workers where there are several.
        collectors: of what is shown.
        crew: the other workers, whose numbers are shown as well, each with its `worker`.

    Attributes:
        port: the real one.

    Raises:
        ServeError: the address cannot be listened on.
    """

    def __init__(self, listen: str, collectors: Iterable[Collector], crew: Crew | None = None) -> None:
        registry = CollectorRegistry(auto_describe=False)
        for collector in collectors:
            registry.register(collector)
        shown = registry
        if crew is not None:
            shown = CollectorRegistry(auto_describe=False)
            shown.register(CrewMetrics(registry, crew, asyncio.get_running_loop()))
        host, port = split_address(listen)
        try:
            self._server = _Server((host.strip("[]") or "0.0.0.0", port), is_shared=crew is not None)  # noqa: S104
        except OSError as error:
            raise ServeError(
                f"cannot show metrics on {listen}: {error.strerror or error}; choose another address"
            ) from error
        self._server.set_app(make_wsgi_app(shown))
        self._thread = threading.Thread(target=self._server.serve_forever, name="dresd-metrics", daemon=True)
        self._thread.start()
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class CrewMetrics(Collector):
    """The numbers of all workers, each with the label `worker`.

    Args:
        registry: of this worker's.
        crew: the others.
        loop: the crew's.
    """

    def __init__(self, registry: CollectorRegistry, crew: Crew, loop: asyncio.AbstractEventLoop) -> None:
        self._registry, self._crew, self._loop = registry, crew, loop
        crew.on(_METRICS, self._answer)

    async def _answer(self, _: str) -> str:
        return generate_latest(self._registry).decode()

    def collect(self) -> Iterator[Metric]:
        """The numbers now."""
        asked = asyncio.run_coroutine_threadsafe(self._crew.ask(_METRICS, "", _OTHERS_S), self._loop)
        own = (self._crew.number, generate_latest(self._registry).decode())
        merged: dict[str, Metric] = {}
        for number, content in sorted([own, *asked.result()]):
            for family in text_string_to_metric_families(content):
                metric = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    metric.add_sample(sample.name, {"worker": str(number), **sample.labels}, sample.value)
        yield from merged.values()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], *, is_shared: bool) -> None:
        self._is_shared = is_shared
        self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        super().__init__(address, _Silent)

    def server_bind(self) -> None:
        if self._is_shared:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Who asks for numbers is not logged."""


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=value)


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], histogram: Histogram) -> None:
    buckets = [(str(bound) if bound < float("inf") else "+Inf", float(count)) for bound, count in histogram.cumulated()]
    family.add_metric(labels, buckets, sum_value=histogram.sum_s)
