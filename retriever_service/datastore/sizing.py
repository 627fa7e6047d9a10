"""What servers of a datastore need: memory, disk and how many of them, from the sizes that its manifest states.

A server maps one partition's files and reads the datastore's own files; while it swaps it holds two builds. Knows
sizes; not where servers run, nor how anybody writes that down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from retriever_service.datastore.layout import MAPPED_FILES
from retriever_service.datastore.manifest import Manifest

MIB = 1 << 20
GIB = 1 << 30
BASE_BYTES = 768 * MIB
"""A server without entries: 220 MB were resident, and 415 MB where it had just compiled its search."""
MOST_MEMORY = 32 * GIB
"""Of one server, where the number of partitions is ours to choose."""
_BUILDS_ON_DISK = 3
"""The current one, the one before, and one that arrives."""
_SPARE = 1.2
"""Disks are not filled to the brim."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a datastore whose partitions are alike.

    Attributes:
        entries: of all partitions.
        partitions: P.
        mapped: bytes of the memory-mapped files of the largest partition.
        read: bytes of files that every server reads whole, and keeps.
        fetched: bytes on disk of the largest partition, with the datastore's own files.
    """

    entries: int
    partitions: int
    mapped: int
    read: int
    fetched: int

    @classmethod
    def of(cls, manifest: Manifest) -> Sizes:
        """As the manifest says."""
        mapped = whole = 0
        for partition in manifest.partitions:
            files = [item for segment in partition.segments for item in segment.files.items()]
            mapped = max(mapped, sum(record.size for name, record in files if name in MAPPED_FILES))
            whole = max(whole, sum(record.size for _, record in files))
        own = sum(record.size for record in manifest.files.values())
        return cls(manifest.num_entries, len(manifest.partitions), mapped, own + whole - mapped, own + whole)

    def scaled(self, entries: int, partitions: int | None = None) -> Sizes:
        """As of a datastore of the same kind with `entries`, in `partitions`: None is as few as fit `MOST_MEMORY`.

        A partition grows as its entries do; the datastore's own files are taken to be as large as they are.
        """
        factor = entries * self.partitions / max(self.entries, 1)  # of a single partition that held everything
        whole = self.mapped * factor
        if partitions is None:
            room = (MOST_MEMORY - BASE_BYTES - 2 * self.read) / 2
            partitions = max(1, math.ceil(whole / max(room, MIB)))
        mapped = math.ceil(whole / partitions)
        return Sizes(entries, partitions, mapped, self.read, mapped + self.read)


@dataclass(frozen=True, slots=True)
class Needs:
    """Of a service with R servers a partition.

    Attributes:
        servers: P * R.
        memory_request: bytes of one server that serves one build from memory.
        memory_limit: bytes of one that serves two, as while it swaps.
        disk: bytes of one server's disk.
    """

    servers: int
    memory_request: int
    memory_limit: int
    disk: int


def needs(sizes: Sizes, replicas: int) -> Needs:
    """What `replicas` servers for each partition need, each of them; replicas at least 1."""
    return Needs(
        servers=sizes.partitions * replicas,
        memory_request=_whole(BASE_BYTES + 2 * sizes.read + sizes.mapped, MIB),
        memory_limit=_whole(BASE_BYTES + 2 * sizes.read + 2 * sizes.mapped, MIB),
        disk=_whole(_BUILDS_ON_DISK * sizes.fetched * _SPARE, GIB),
    )


def _whole(number: float, unit: int) -> int:
    return math.ceil(number / unit) * unit
