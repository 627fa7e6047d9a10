"""A server's life: listen, load, serve, drain, stop.

`start` is for programs that have an event loop, `run` is the whole process. Knows nothing of queries.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import faiss
import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from retriever_service.datastore import Datastore, DatastoreError
from retriever_service.echo import echoed
from retriever_service.serving import logs
from retriever_service.serving.address import bind
from retriever_service.serving.background import in_thread
from retriever_service.serving.collection import Collection, Collections
from retriever_service.serving.config import DEFAULT_LISTEN, Limits, ServeConfig, split_address
from retriever_service.serving.door import door
from retriever_service.serving.errors import ServeError
from retriever_service.serving.loaded_build import LoadedBuild
from retriever_service.serving.meters import RequestMeter
from retriever_service.serving.registration import SERVICE_NAME, register
from retriever_service.serving.search_pool import SearchPool
from retriever_service.serving.service import RetrieverService

if TYPE_CHECKING:
    from retriever_service.serving.metrics import MetricsPort

__all__ = ["DEFAULT_LISTEN", "Limits", "RunningServer", "ServeConfig", "ServeError", "run", "start"]

logger = logging.getLogger(__name__)


_LAST_WORDS_S = 0.5
"""Time for the last answers to leave after the last request is done."""


class RunningServer:
    """A server that answers; made by `start`.

    Attributes:
        port: the port it listens on.
        metrics: shows its numbers; None if nobody is to see them.
    """

    def __init__(
        self,
        server: grpc.aio.Server,
        health_servicer: health.aio.HealthServicer,
        service: RetrieverService,
        pool: SearchPool,
        port: int,
    ) -> None:
        self._server = server
        self._health = health_servicer
        self._service = service
        self._pool = pool
        self.port = port
        self.metrics: MetricsPort | None = None

    @property
    def metrics_port(self) -> int | None:
        """Where its numbers are shown over HTTP; None is nowhere."""
        return None if self.metrics is None else self.metrics.port

    async def stop(self, grace_s: float) -> None:
        """Turns health to NOT_SERVING, lets running requests finish for up to `grace_s` seconds, and stops.

        Called once. New requests are refused by the service from the start on.
        """
        deadline = time.monotonic() + grace_s
        await self._health.enter_graceful_shutdown()
        self._service.drain()
        idle = asyncio.create_task(self._service.idle())
        await asyncio.wait({idle}, timeout=grace_s)
        idle.cancel()
        # Watchers of health never end by themselves, so they are not worth the rest of the grace period.
        # gRPC's server is stopped once: two `stop`s at a time may free it under each other and crash the process.
        last_words = min(deadline - time.monotonic(), _LAST_WORDS_S)
        await self._server.stop(last_words if last_words > 0 else None)
        self._pool.close()
        if self.metrics is not None:
            await in_thread(self.metrics.close)


async def start(config: ServeConfig, open_datastore: Callable[[Path], Datastore] | None = None) -> RunningServer:
    """Listens at once (health NOT_SERVING, requests UNAVAILABLE), loads the datastores, then serves them.

    Args:
        config: what to serve and how.
        open_datastore: opens a folder, in a thread of its own; by default as the config says.

    Raises:
        ServeError: the address cannot be listened on, or certificates, tokens or a datastore cannot be read.
        DatastoreError: a datastore cannot be served.
    """
    opened = open_datastore or functools.partial(
        Datastore.open, partitions=config.partitions, verify_checksums=config.verify_checksums
    )
    meter = None if config.metrics_listen is None else RequestMeter()
    interceptors, credentials = door(config.access, config.listen, meter)
    pool = SearchPool(config.search_threads, config.queue_size, _prepare_search_thread)
    collections = Collections(Collection(name, config.build_grace_s) for name in config.folders)
    service = RetrieverService(pool, collections, config.connections.stream_age_s, meter)
    health_servicer = health.aio.HealthServicer()
    for name in ("", SERVICE_NAME, *map(health_name, config.folders)):
        await health_servicer.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
    # Without so_reuseport=0 a second server on the same port would start and take half of the connections.
    server = grpc.aio.server(
        interceptors=interceptors, options=[("grpc.so_reuseport", 0), *config.connections.options()]
    )
    register(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    if config.access.reflection:
        reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    running = RunningServer(server, health_servicer, service, pool, bind(server, config.listen, credentials))
    await server.start()
    try:
        if meter is not None and config.metrics_listen is not None:
            running.metrics = _metrics_port(config.metrics_listen, meter, pool, collections, service)
        for collection in collections:
            await _load(collection, config.folders[collection.name], opened, config.limits)
            await health_servicer.set(health_name(collection.name), health_pb2.HealthCheckResponse.SERVING)
    except BaseException:
        await running.stop(0.0)
        raise
    for name in ("", SERVICE_NAME):
        await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    ports = {"port": running.port} | ({} if running.metrics_port is None else {"metrics_port": running.metrics_port})
    logger.info("ready", extra={"fields": ports})
    return running


def _metrics_port(
    listen: str, meter: RequestMeter, pool: SearchPool, collections: Collections, service: RetrieverService
) -> MetricsPort:
    # Prometheus's client is loaded by those who want numbers only.
    from retriever_service.serving.metrics import MetricsPort, ServerMetrics

    return MetricsPort(listen, [ServerMetrics(meter, pool, collections, lambda: service.open_streams)])


def health_name(collection: str) -> str:
    """What a collection is called in grpc.health.v1."""
    return f"{SERVICE_NAME}/{collection}"


async def _load(
    collection: Collection, folder: Path, open_datastore: Callable[[Path], Datastore], limits: Limits
) -> None:
    try:
        build = await in_thread(lambda: LoadedBuild(open_datastore(folder), limits))
    except OSError as error:
        raise ServeError(f"cannot read the datastore {echoed(folder)}: {error.strerror or error}") from error
    collection.adopt(build)
    logger.info(
        "serving collection=%s build=%s entries=%d partition_numbers=%s of_partitions=%d",
        collection.name,
        build.build_id,
        build.datastore.num_entries,
        ",".join(map(str, build.datastore.served_partitions)),
        len(build.datastore.manifest.partitions),
    )


def run(config: ServeConfig, open_datastore: Callable[[Path], Datastore] | None = None) -> int:
    """Serves until SIGTERM, SIGINT or SIGHUP. Prints one line to stdout when ready; errors go to stderr.

    Args:
        config: what to serve and how.
        open_datastore: as for `start`; given up if a signal comes before it is done.

    Returns:
        The process's exit code: 0 after a graceful stop, 1 if the server could not start.
    """
    logs.set_up(config.log_format)
    try:
        asyncio.run(_serve(config, open_datastore))
    except (ServeError, DatastoreError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(config: ServeConfig, open_datastore: Callable[[Path], Datastore] | None) -> None:
    told_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
            loop.add_signal_handler(number, told_to_stop.set)
    starting = asyncio.create_task(start(config, open_datastore))
    stopping = asyncio.create_task(told_to_stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
        return
    running = starting.result()
    host, _ = split_address(config.listen)
    print(f"dresd-retriever ready on {host or '0.0.0.0'}:{running.port}", flush=True)  # noqa: S104
    await stopping
    logger.info("shutting down; running requests have %g s to finish", config.shutdown_grace_s)
    await running.stop(config.shutdown_grace_s)


def _prepare_search_thread() -> None:
    # Parallelism is across requests; FAISS's own threads would only fight over the same cores.
    faiss.omp_set_num_threads(1)
