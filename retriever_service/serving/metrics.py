"""A server's numbers for Prometheus, on an HTTP port of their own.

Everything is read when it is asked for, in the HTTP server's thread; requests pay for none of it. Knows names and units
of metrics; what happens is counted elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dresd.histogram import Histogram
from retriever_service.serving.config import split_address
from retriever_service.serving.errors import ServeError
from retriever_service.serving.meters import RequestMeter

if TYPE_CHECKING:
    from retriever_service.serving.collection import Collections
    from retriever_service.serving.search_pool import SearchPool

_PREFIX = "dresd_retriever"


class ServerMetrics(Collector):
    """All numbers of one server, and what its process uses.

    Args:
        meter: of its requests.
        pool: of its searches.
        collections: that it serves.
        open_streams: how many there are now.
    """

    def __init__(
        self, meter: RequestMeter, pool: SearchPool, collections: Collections, open_streams: Callable[[], int]
    ) -> None:
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
        listen: where; port 0 is any free one.
        collectors: of what is shown.

    Attributes:
        port: the real one.

    Raises:
        ServeError: the address cannot be listened on.
    """

    def __init__(self, listen: str, collectors: Iterable[Collector]) -> None:
        registry = CollectorRegistry(auto_describe=False)
        for collector in collectors:
            registry.register(collector)
        host, port = split_address(listen)
        try:
            self._server, self._thread = start_http_server(port, host.strip("[]") or "0.0.0.0", registry)  # noqa: S104
        except OSError as error:
            raise ServeError(
                f"cannot show metrics on {listen}: {error.strerror or error}; choose another address"
            ) from error
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=value)


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], histogram: Histogram) -> None:
    buckets = [(str(bound) if bound < float("inf") else "+Inf", float(count)) for bound, count in histogram.cumulated()]
    family.add_metric(labels, buckets, sum_value=histogram.sum_s)
