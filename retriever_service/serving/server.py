"""A server's life: listen, load, serve, drain, stop.

`start` is for programs that have an event loop, `run` is the whole process. Knows nothing of queries.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2

from dresd.addresses import Discovery
from dresd.peer_access import PeerAccess, PeerAccessError
from retriever_service.datastore import Datastore, DatastoreError, read_manifest
from retriever_service.serving import logs
from retriever_service.serving.access import Access
from retriever_service.serving.address import bind, hold
from retriever_service.serving.admin import AdminService
from retriever_service.serving.background import in_thread
from retriever_service.serving.collection import Collection, Collections
from retriever_service.serving.config import DEFAULT_LISTEN, Limits, ServeConfig, split_address
from retriever_service.serving.crew import Crew
from retriever_service.serving.door import door
from retriever_service.serving.errors import ServeError
from retriever_service.serving.forwarding import Forwarding
from retriever_service.serving.ingest import IngestService
from retriever_service.serving.learning import Learning
from retriever_service.serving.meters import RequestMeter
from retriever_service.serving.peers import Peers
from retriever_service.serving.registration import (
    ADMIN_SERVICE_NAME,
    INGEST_SERVICE_NAME,
    SERVICE_NAME,
    register,
    register_admin,
    register_health,
    register_ingest,
    register_reflection,
)
from retriever_service.serving.reloading import Reloader
from retriever_service.serving.search_pool import SearchPool
from retriever_service.serving.service import RetrieverService
from retriever_service.serving.supervisor import Supervisor

if TYPE_CHECKING:
    from retriever_service.serving.metrics import MetricsPort
    from retriever_service.serving.tracing import RequestTracing

__all__ = ["DEFAULT_LISTEN", "Limits", "RunningServer", "ServeConfig", "ServeError", "run", "start"]

logger = logging.getLogger(__name__)


_LAST_WORDS_S = 0.5
"""Time for the last answers to leave after the last request is done."""


class RunningServer:
    """A server that answers; made by `start`.

    Attributes:
        port: the port it listens on.
        admin_port: the port the admin service listens on; None without one.
        health_port: the port that tells health alone; None without one.
        metrics: shows its numbers; None if nobody is to see them.
        tracing: traces its requests; None if nobody is to see them.
        learning: keeps what decoders send; None without.
    """

    def __init__(
        self,
        health_servicer: health.aio.HealthServicer,
        service: RetrieverService,
        pool: SearchPool,
        reloaders: Sequence[Reloader],
    ) -> None:
        self._servers: list[grpc.aio.Server] = []
        self._health = health_servicer
        self._service = service
        self._pool = pool
        self._reloaders = reloaders
        self._stopping: asyncio.Task[None] | None = None
        self._watching: list[asyncio.Task[None]] = []
        self.port = 0
        self.admin_port: int | None = None
        self.health_port: int | None = None
        self.metrics: MetricsPort | None = None
        self.tracing: RequestTracing | None = None
        self.learning: Learning | None = None

    @property
    def metrics_port(self) -> int | None:
        """Where its numbers are shown over HTTP; None is nowhere."""
        return None if self.metrics is None else self.metrics.port

    async def listen(self, servers: Sequence[grpc.aio.Server]) -> None:
        """Starts these, and stops them with itself."""
        self._servers += servers
        for server in servers:
            await server.start()

    async def load(self) -> None:
        """Opens every datastore; each one's health turns to SERVING.

        Raises:
            DatastoreError: one cannot be served.
        """
        for reloader in self._reloaders:
            await reloader.load()
            await self._health.set(health_name(reloader.collection.name), health_pb2.HealthCheckResponse.SERVING)

    def watch(self, interval_s: float) -> None:
        """From now on looks for other builds every `interval_s` seconds."""
        self._watching = [asyncio.create_task(reloader.watch(interval_s)) for reloader in self._reloaders]

    async def stop(self, grace_s: float) -> None:
        """Turns health to NOT_SERVING, lets running requests finish for up to `grace_s` seconds, and stops.

        New requests are refused by the service from the start on. Called again, it waits for the first call's end.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace_s))
        await asyncio.shield(self._stopping)

    async def _stop(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        for watching in self._watching:
            watching.cancel()
        await self._health.enter_graceful_shutdown()
        self._service.drain()
        idle = asyncio.create_task(self._service.idle())
        await asyncio.wait({idle}, timeout=grace_s)
        idle.cancel()
        # Watchers of health never end by themselves, so they are not worth the rest of the grace period.
        # gRPC's servers are stopped once: two `stop`s at a time may free one under each other and crash the process.
        last_words = min(deadline - time.monotonic(), _LAST_WORDS_S)
        await asyncio.gather(*(server.stop(last_words if last_words > 0 else None) for server in self._servers))
        for reloader in self._reloaders:
            reloader.close()
        await self._service.close()
        self._pool.close()
        if self.learning is not None:
            await in_thread(self.learning.close)
        if self.metrics is not None:
            await in_thread(self.metrics.close)
        if self.tracing is not None:
            await in_thread(self.tracing.close)


async def start(
    config: ServeConfig,
    open_datastore: Callable[[Path], Datastore] | None = None,
    crew: Crew | None = None,
    tracing: RequestTracing | None = None,
) -> RunningServer:
    """Listens at once (health NOT_SERVING, requests UNAVAILABLE), loads the datastores, then serves them.

    One of several workers listens when it has loaded.

    Args:
        config: what to serve and how.
        open_datastore: opens a build's folder, in a thread of its own; by default as the config says.
        crew: the other workers, where this is one of several.
        tracing: of requests, closed with the server; None is as the config says.

    Raises:
        ServeError: an address cannot be listened on, or certificates, tokens or a datastore cannot be read.
        DatastoreError: a datastore cannot be served.
    """
    opened = open_datastore or functools.partial(_open_share, config)
    meter = None if config.metrics_listen is None else RequestMeter()
    pool = SearchPool(config.search_threads, config.queue_size)
    collections = Collections(Collection(name, config.build_grace_s) for name in config.folders)
    learning = None if config.learning is None else Learning(config.learning)
    opened, follow = (opened, None) if learning is None else (learning.opener(opened), learning.follow)
    reloaders = [Reloader(one, config.folders[one.name], opened, config.limits, follow) for one in collections]
    forwarding = _forwarding(config)
    tracing = _tracing(config) if tracing is None else tracing
    service = RetrieverService(pool, collections, config.connections.stream_age_s, meter, forwarding, tracing)
    health_servicer = health.aio.HealthServicer()
    for name in ("", SERVICE_NAME, *map(health_name, config.folders)):
        await health_servicer.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)

    def add_services(server: grpc.aio.Server) -> None:
        register(service, server)
        if learning is not None:
            register_ingest(IngestService(collections, learning), server)
        add_health(server)

    def add_admin(server: grpc.aio.Server) -> None:
        register_admin(AdminService(collections, reloaders, crew), server)

    def add_health(server: grpc.aio.Server) -> None:
        register_health(health_servicer, server)

    running = RunningServer(health_servicer, service, pool, reloaders)
    running.tracing, running.learning = tracing, learning
    try:
        if crew is not None:
            # Whoever listens gets a share of the new connections, and the other workers may be serving.
            await running.load()
        names = [SERVICE_NAME, health.SERVICE_NAME] + ([] if learning is None else [INGEST_SERVICE_NAME])
        server, running.port = _bound(config, config.listen, meter, add_services, names)
        servers = [server]
        if config.admin_listen is not None:
            access = replace(config.access, token_file=config.admin_token_file or config.access.token_file)
            admin, running.admin_port = _bound(
                replace(config, access=access), config.admin_listen, meter, add_admin, (ADMIN_SERVICE_NAME,)
            )
            servers.append(admin)
        if config.health_listen is not None:
            bare = replace(config, access=Access(reflection=False))
            health_server, running.health_port = _bound(bare, config.health_listen, None, add_health, ())
            servers.append(health_server)
        await running.listen(servers)
        if meter is not None and config.metrics_listen is not None:
            # Prometheus's client is loaded by those who want numbers only.
            from retriever_service.serving.learning_metrics import LearningMetrics
            from retriever_service.serving.metrics import MetricsPort, ServerMetrics

            peer_states = None if forwarding is None else forwarding.peer_states
            metrics = ServerMetrics(meter, pool, collections, lambda: service.open_streams, peer_states)
            learned = [] if learning is None else [LearningMetrics(learning)]
            running.metrics = MetricsPort(config.metrics_listen, [metrics, *learned], crew)
        if crew is None:
            await running.load()
    except BaseException:
        await running.stop(0.0)
        raise
    for name in ("", SERVICE_NAME):
        await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    if config.reload_interval_s > 0.0:
        running.watch(config.reload_interval_s)
    ports = {
        "port": running.port,
        "admin_port": running.admin_port,
        "health_port": running.health_port,
        "metrics_port": running.metrics_port,
    }
    logger.info("ready", extra={"fields": {name: port for name, port in ports.items() if port is not None}})
    return running


def _open_share(config: ServeConfig, path: Path) -> Datastore:
    partitions = config.partitions if config.ordinal is None else read_manifest(path).partitions_of(config.ordinal)
    return Datastore.open(path, partitions=partitions, verify_checksums=config.verify_checksums)


def _bound(
    config: ServeConfig,
    listen: str,
    meter: RequestMeter | None,
    add_services: Callable[[grpc.aio.Server], None],
    names: Sequence[str],
) -> tuple[grpc.aio.Server, int]:
    """A server that is not started yet, with the door that the config says, and its port."""
    interceptors, credentials = door(config.access, listen, meter)
    # Without so_reuseport=0 a second server on the same port would start and take half of the connections.
    is_shared = config.workers > 1
    server = grpc.aio.server(
        interceptors=interceptors, options=[("grpc.so_reuseport", int(is_shared)), *config.connections.options()]
    )
    add_services(server)
    if config.access.reflection:
        register_reflection(names, server)
    return server, bind(server, listen, credentials, is_shared=is_shared)


def _forwarding(config: ServeConfig) -> Forwarding | None:
    if config.peers is None:
        return None
    try:
        access = PeerAccess.from_environment()
    except PeerAccessError as error:
        raise ServeError(str(error)) from error
    return Forwarding(Peers(Discovery(config.peers), access, list(config.folders)))


def _tracing(config: ServeConfig) -> RequestTracing | None:
    if not config.traces:
        return None
    try:
        # OpenTelemetry is an optional extra.
        from retriever_service.serving.tracing import RequestTracing, provider_from_environment
    except ModuleNotFoundError as error:
        raise ServeError(f"traces need the module {error.name}; run: pip install 'dresd[tracing]'") from error
    return RequestTracing(provider_from_environment())


def health_name(collection: str) -> str:
    """What a collection is called in grpc.health.v1."""
    return f"{SERVICE_NAME}/{collection}"


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
        if config.workers > 1:
            return _run_workers(config, open_datastore)
        asyncio.run(_serve(config, open_datastore))
    except (ServeError, DatastoreError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _run_workers(config: ServeConfig, open_datastore: Callable[[Path], Datastore] | None) -> int:
    with ExitStack() as stack:
        held: dict[str, str] = {}
        for name in ("listen", "admin_listen", "metrics_listen", "health_listen"):
            if (listen := getattr(config, name)) is not None:
                holder, held[name] = hold(listen)
                stack.enter_context(holder)
        shared = replace(
            config,
            listen=held["listen"],
            admin_listen=held.get("admin_listen"),
            metrics_listen=held.get("metrics_listen"),
            health_listen=held.get("health_listen"),
        )

        def work(number: int, supervisor: socket.socket) -> int:
            logs.name_worker(number)
            return asyncio.run(_work(shared, open_datastore, number, supervisor))

        def when_ready() -> None:
            _say_ready(shared, split_address(shared.listen)[1], split_address(shared.admin_listen or ":0")[1])

        return Supervisor(config.workers, work, config.shutdown_grace_s, when_ready).run()


async def _work(
    config: ServeConfig, open_datastore: Callable[[Path], Datastore] | None, number: int, supervisor: socket.socket
) -> int:
    crew = Crew(number, supervisor)
    try:
        await _serve(config, open_datastore, crew)
    except (ServeError, DatastoreError) as error:
        await crew.failed(str(error))
        return 1
    return 0


async def _serve(
    config: ServeConfig, open_datastore: Callable[[Path], Datastore] | None, crew: Crew | None = None
) -> None:
    told_to_stop = asyncio.Event() if crew is None else crew.is_alone
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
            loop.add_signal_handler(number, told_to_stop.set)
    starting = asyncio.create_task(start(config, open_datastore, crew))
    stopping = asyncio.create_task(told_to_stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
        return
    running = starting.result()
    if crew is None:
        _say_ready(config, running.port, running.admin_port)
    else:
        await crew.ready()
    await stopping
    logger.info("shutting down; running requests have %g s to finish", config.shutdown_grace_s)
    await running.stop(config.shutdown_grace_s)


def _say_ready(config: ServeConfig, port: int, admin_port: int | None) -> None:
    if config.admin_listen is not None and admin_port is not None:
        print(f"dresd-retriever admin on {_shown(config.admin_listen, admin_port)}", flush=True)
    print(f"dresd-retriever ready on {_shown(config.listen, port)}", flush=True)


def _shown(listen: str, port: int) -> str:
    host, _ = split_address(listen)
    return f"{host or '0.0.0.0'}:{port}"  # noqa: S104
