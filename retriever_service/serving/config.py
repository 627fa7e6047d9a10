"""What a server is told when it starts, checked before anything else happens."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from retriever_service.echo import echoed, quoted

DEFAULT_LISTEN = "127.0.0.1:50051"
_ADDRESS = re.compile(r"(?P<host>\[[\w:.%-]+\]|[\w.-]*):(?P<port>[0-9]{1,5})", re.ASCII)
_LONGEST_HOST = 253
_HIGHEST_PORT = 65_535
_MAX_SEARCH_THREADS = 256
"""Threads of their own, started as needed; more than any machine's cores are of no use."""
_MAX_QUEUE_SIZE = 65_536
"""A search waits in a few kB; nobody waits for so many before it."""
_MAX_PARTITION = 2**32 - 1
_MAX_LIMIT = 2**32 - 1
"""What the wire can state."""


class ServeError(Exception):
    """A server that cannot start, in one sentence with what to do about it."""


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
    """How to serve one datastore.

    Attributes:
        datastore: its folder.
        listen: "HOST:PORT"; an empty host is every interface, port 0 is any free port.
        partitions: the partitions to open; None is all of them.
        search_threads: searches that run at the same time, 1 to 256.
        queue_size: searches that may wait for a thread, 1 to 65,536; one more is refused with RESOURCE_EXHAUSTED.
        limits: what one request may ask for.
        shutdown_grace_s: seconds running requests get to finish after SIGTERM.
        verify_checksums: hash every file before serving (sizes are always checked).

    Raises:
        ServeError: a value is out of range.
    """

    datastore: Path
    listen: str = DEFAULT_LISTEN
    partitions: Collection[int] | None = None
    search_threads: int = field(default_factory=lambda: min(os.cpu_count() or 1, _MAX_SEARCH_THREADS))
    queue_size: int = 64
    limits: Limits = field(default_factory=Limits)
    shutdown_grace_s: float = 10.0
    verify_checksums: bool = True

    def __post_init__(self) -> None:
        split_address(self.listen)
        _within("search_threads", self.search_threads, 1, _MAX_SEARCH_THREADS)
        _within("queue_size", self.queue_size, 1, _MAX_QUEUE_SIZE)
        if not self.shutdown_grace_s >= 0.0:
            raise ServeError(f"shutdown_grace_s is {self.shutdown_grace_s}; it must be 0 or more seconds")
        if self.partitions is not None:
            if len(self.partitions) == 0:
                raise ServeError("no partition to serve was named; name at least one, or leave the choice out for all")
            for partition in self.partitions:
                _within("partitions", partition, 0, _MAX_PARTITION)


def split_address(listen: str) -> tuple[str, int]:
    """Splits "HOST:PORT" ("[v6]:PORT" too) into its host, "" for every interface, and its port.

    Raises:
        ServeError: it is not of that form.
    """
    parts = _ADDRESS.fullmatch(listen)
    if parts is None or len(parts["host"]) > _LONGEST_HOST or int(parts["port"]) > _HIGHEST_PORT:
        raise ServeError(
            f"cannot listen on {quoted(listen)}; give HOST:PORT with a port from 0 to 65535, such as {DEFAULT_LISTEN}"
        )
    return parts["host"], int(parts["port"])


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ServeError(f"{name} is {echoed(value)}; it must be {least} to {most}")
