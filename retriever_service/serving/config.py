"""What a server is told when it starts, checked before anything else happens."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dresd.addresses import HIGHEST_PORT, AddressError, Discovery, split_target
from retriever_service.echo import echoed, quoted
from retriever_service.serving.access import Access
from retriever_service.serving.connections import ConnectionLimits
from retriever_service.serving.errors import ServeError
from retriever_service.serving.learning_config import LearningConfig

DEFAULT_LISTEN = "127.0.0.1:50051"
LOG_FORMATS = ("text", "json")
DEFAULT_COLLECTION = "default"
"""What a request that names no collection asks for."""
_COLLECTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST = re.compile(r"\[[\w:.%-]+\]|[\w.-]*", re.ASCII)
_LONGEST_HOST = 253
_MAX_WORKERS = 64
_MAX_SEARCH_THREADS = 256
"""Threads of their own, started as needed; more than any machine's cores are of no use."""
_MAX_QUEUE_SIZE = 65_536
"""A search waits in a few kB; nobody waits for so many before it."""
_MAX_PARTITION = 2**32 - 1
_MAX_ORDINAL = 2**32 - 1
_MAX_SECONDS = 1e6
"""Eleven days; what timers can count."""
_MAX_LIMIT = 2**32 - 1
"""What the wire can state."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask for; stated to clients at the handshake.

    Attributes:
        max_queries: queries in a request.
        max_neighbors: neighbours searched for each query.
        max_nodes: nodes of each draft tree.

    Raises:
        ServeError: a value is out of range.
    """

    max_queries: int = 256
    max_neighbors: int = 1024
    max_nodes: int = 1024

    def __post_init__(self) -> None:
        for name in ("max_queries", "max_neighbors", "max_nodes"):
            _within(name, getattr(self, name), 1, _MAX_LIMIT)


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """How to serve one or several datastores.

    Attributes:
        datastore: folder of the collection called "default": a build's, or a root whose `CURRENT` names one; None where
            all are named.
        collections: likewise of the others, by name.
        listen: "HOST:PORT"; an empty host is every interface, port 0 is any free port.
        partitions: the partitions to open, of every collection; None is all of them.
        ordinal: this server's number among many, from 0; of P partitions it opens the one of that number modulo P, of
            every collection and every build. None leaves the choice to `partitions`.
        peers: where the other servers of this service are, as for `Discovery`; what is not served here is passed on to
            them. None passes nothing on.
        workers: processes that share the port, 1 to 64.
        search_threads: searches that run at the same time in each of them, 1 to 256.
        queue_size: searches that may wait for a thread, 1 to 65,536; one more is refused with RESOURCE_EXHAUSTED.
        limits: what one request may ask for.
        connections: what one connection may do.
        access: who may call.
        metrics_listen: "HOST:PORT" where Prometheus may ask for numbers, over HTTP; None is nowhere.
        traces: whether requests are told to OpenTelemetry.
        log_format: of the process's log, "text" or "json".
        admin_listen: where the admin service listens, like `listen`; None is nowhere.
        health_listen: where health alone is told too, like `listen`, in plain text; None is nowhere.
        admin_token_file: bearer tokens of the admin service; None is those of `access`.
        reload_interval_s: seconds between looks at `CURRENT`; 0 never looks.
        build_grace_s: seconds that a build goes on answering those who ask for it after another has replaced it.
        shutdown_grace_s: seconds running requests get to finish after SIGTERM.
        learning: keep answers that decoders send; None keeps none.
        verify_checksums: hash every file before serving (sizes are always checked).

    Raises:
        ServeError: a value is out of range.
    """

    datastore: Path | None = None
    collections: Mapping[str, Path] = field(default_factory=dict)
    listen: str = DEFAULT_LISTEN
    partitions: Collection[int] | None = None
    ordinal: int | None = None
    peers: str | None = None
    workers: int = 1
    search_threads: int = field(default_factory=lambda: min(os.cpu_count() or 1, _MAX_SEARCH_THREADS))
    queue_size: int = 64
    limits: Limits = field(default_factory=Limits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    access: Access = field(default_factory=Access)
    metrics_listen: str | None = None
    traces: bool = False
    log_format: str = "text"
    admin_listen: str | None = None
    health_listen: str | None = None
    admin_token_file: Path | None = None
    reload_interval_s: float = 5.0
    build_grace_s: float = 60.0
    shutdown_grace_s: float = 10.0
    learning: LearningConfig | None = None
    verify_checksums: bool = True

    def __post_init__(self) -> None:
        if not self.folders:
            raise ServeError("no datastore was named; give its folder, or NAME=DIR for each of several collections")
        for name in self.collections:
            _check_collection(name)
        if self.datastore is not None and DEFAULT_COLLECTION in self.collections:
            raise ServeError(
                f"two datastores are called {DEFAULT_COLLECTION}, which is also the name of the one without a name; "
                "call the other something else"
            )
        host, _ = split_address(self.listen)
        if self.learning is not None and self.workers > 1:
            raise ServeError("only one worker can learn; serve without --workers, or without --learn")
        if self.learning is not None and not (_is_private(host) or self._knows_writers):
            raise ServeError(
                f"whoever reaches {quoted(self.listen)} could have answers learned; say who may with --learn-token-file"
            )
        if self.metrics_listen is not None:
            split_address(self.metrics_listen)
        if self.log_format not in LOG_FORMATS:
            raise ServeError(f"log_format is {quoted(self.log_format)}; it must be {' or '.join(LOG_FORMATS)}")
        if self.admin_listen is not None:
            split_address(self.admin_listen)
        if self.health_listen is not None:
            split_address(self.health_listen)
        if self.peers is not None:
            try:
                Discovery(self.peers)
            except AddressError as error:
                raise ServeError(f"peers: {echoed(error)}") from error
        _within("workers", self.workers, 1, _MAX_WORKERS)
        _within("search_threads", self.search_threads, 1, _MAX_SEARCH_THREADS)
        _within("queue_size", self.queue_size, 1, _MAX_QUEUE_SIZE)
        for name in ("reload_interval_s", "build_grace_s", "shutdown_grace_s"):
            if not 0.0 <= getattr(self, name) <= _MAX_SECONDS:
                raise ServeError(f"{name} is {getattr(self, name)}; it must be 0 to {_MAX_SECONDS:g} seconds")
        if self.ordinal is not None:
            if self.partitions is not None:
                raise ServeError("ordinal and partitions both choose what to serve; give one of them")
            _within("ordinal", self.ordinal, 0, _MAX_ORDINAL)
        if self.partitions is not None:
            if len(self.partitions) == 0:
                raise ServeError("no partition to serve was named; name at least one, or leave the choice out for all")
            for partition in self.partitions:
                _within("partitions", partition, 0, _MAX_PARTITION)

    @property
    def _knows_writers(self) -> bool:
        access = self.access
        return (
            access.learn_token_file is not None
            or access.token_file is not None
            or (access.tls is not None and access.tls.client_ca is not None)
        )

    @property
    def folders(self) -> dict[str, Path]:
        """Every collection's folder, by name."""
        return {**({} if self.datastore is None else {DEFAULT_COLLECTION: self.datastore}), **self.collections}


def split_address(listen: str) -> tuple[str, int]:
    """Splits "HOST:PORT" ("[v6]:PORT" too) into its host, "" for every interface, and its port.

    Raises:
        ServeError: it is not of that form.
    """
    target = split_target(listen)
    if (
        target is None
        or target.resolver
        or not _HOST.fullmatch(target.host)
        or len(target.host) > _LONGEST_HOST
        or target.port > HIGHEST_PORT
    ):
        raise ServeError(
            f"cannot listen on {quoted(listen)}; give HOST:PORT with a port from 0 to 65535, such as {DEFAULT_LISTEN}"
        )
    return target.host, target.port


def _is_private(host: str) -> bool:
    return host in ("localhost", "[::1]") or host.startswith("127.")


def _check_collection(name: str) -> None:
    if _COLLECTION.fullmatch(name) is None:
        raise ServeError(
            f"{quoted(name)} is no name of a collection; it has 1 to 64 letters, digits, dots, dashes and underscores, "
            "and begins with a letter or digit"
        )


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ServeError(f"{name} is {echoed(value)}; it must be {least} to {most}")
