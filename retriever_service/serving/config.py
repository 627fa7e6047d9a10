"""What a server is told when it starts, checked before anything else happens."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_LISTEN = "127.0.0.1:50051"


class ServeError(Exception):
    """A server that cannot start, in one sentence with what to do about it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask for; stated to clients at the handshake.

    Attributes:
        max_queries: queries in a request.
        max_neighbors: neighbours searched for each query.
        max_nodes: nodes of each draft tree.
    """

    max_queries: int = 256
    max_neighbors: int = 1024
    max_nodes: int = 1024

    def __post_init__(self) -> None:
        for name in ("max_queries", "max_neighbors", "max_nodes"):
            _at_least(name, getattr(self, name), 1)


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """How to serve one datastore.

    Attributes:
        datastore: its folder.
        listen: "HOST:PORT"; an empty host is every interface, port 0 is any free port.
        partitions: the partitions to open; None is all of them.
        search_threads: searches that run at the same time.
        queue_size: searches that may wait for a thread; one more is refused with RESOURCE_EXHAUSTED.
        limits: what one request may ask for.
        shutdown_grace_s: seconds running requests get to finish after SIGTERM.
        verify_checksums: hash every file before serving (sizes are always checked).

    Raises:
        ServeError: a value is out of range.
    """

    datastore: Path
    listen: str = DEFAULT_LISTEN
    partitions: Collection[int] | None = None
    search_threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    queue_size: int = 64
    limits: Limits = field(default_factory=Limits)
    shutdown_grace_s: float = 10.0
    verify_checksums: bool = True

    def __post_init__(self) -> None:
        split_address(self.listen)
        _at_least("search_threads", self.search_threads, 1)
        _at_least("queue_size", self.queue_size, 1)
        if not self.shutdown_grace_s >= 0.0:
            raise ServeError(f"shutdown_grace_s is {self.shutdown_grace_s}; it must be 0 or more seconds")
        if self.partitions is not None:
            if len(self.partitions) == 0:
                raise ServeError("no partition to serve was named; name at least one, or leave the choice out for all")
            for partition in self.partitions:
                _at_least("partitions", partition, 0)


def split_address(listen: str) -> tuple[str, int]:
    """Splits "HOST:PORT" ("[v6]:PORT" too) into its host, "" for every interface, and its port.

    Raises:
        ServeError: it is not of that form.
    """
    host, colon, port = listen.rpartition(":")
    bare_v6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if not colon or bare_v6 or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ServeError(
            f"cannot listen on {listen!r}; give HOST:PORT with a port from 0 to 65535, such as {DEFAULT_LISTEN}"
        )
    return host, int(port)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ServeError(f"{name} is {value}; it must be {least} or more")
