"""An open datastore: a query's nearest entries over the partitions served here, and the draft tree they make.

It must not know who asks: no requests, no messages, no deadlines.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dresd.draft_tree import PAD, DraftTree, merge_paths
from retriever_service.datastore.errors import DatastoreError
from retriever_service.datastore.files import REBUILD_HINT, read_bytes
from retriever_service.datastore.manifest import (
    REDUCER_FILE,
    ROUTING_FILE,
    TOKEN_TABLE_FILE,
    Manifest,
    read_manifest,
)
from retriever_service.datastore.routing import RoutingTable
from retriever_service.datastore.segment import Segment, check_file
from retriever_service.datastore.token_table import TokenTable


@dataclass(frozen=True, slots=True)
class Neighbors:
    """The nearest entries of each of B queries, nearest first.

    Attributes:
        ids: int64 [B, k], entries of the whole datastore (the same whatever partitions are served), -1 for none.
        similarities: float32 [B, k], -inf for none.
        counts: int64 [B].
        partitions_asked: partitions that the queries concern.
        partitions_answered: those of them that are served here.
    """

    ids: NDArray[np.int64]
    similarities: NDArray[np.float32]
    counts: NDArray[np.int64]
    partitions_asked: int
    partitions_answered: int


@dataclass(frozen=True, slots=True)
class StoredEntries:
    """What is stored beside the keys of m entries: int64 [m], int32 [m, N] and int32 [m, C], `PAD` for none."""

    next_tokens: NDArray[np.int64]
    continuations: NDArray[np.int32]
    left_contexts: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """The drafts of B queries.

    Attributes:
        trees: one a query, of one source (dense).
        total_masses: float64 [B], of all neighbours, those pruned or without a continuation too.
        best_similarities: float32 [B], 0 without neighbours.
        neighbor_counts: int64 [B].
        partitions_asked: partitions that the queries concern.
        partitions_answered: those of them that are served here.
        search_us: time of the search.
        merge_us: time of gathering the continuations and merging them.
    """

    trees: list[DraftTree]
    total_masses: NDArray[np.float64]
    best_similarities: NDArray[np.float32]
    neighbor_counts: NDArray[np.int64]
    partitions_asked: int
    partitions_answered: int
    search_us: int
    merge_us: int


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """A segment and the id of its first entry."""

    first_id: int
    segment: Segment


class Datastore:
    """An open datastore; read-only, its methods may be called from any thread.

    Attributes:
        path: its folder.
        manifest: what it says about itself.
        routing: which partitions hold a token.
        token_table: likely next tokens.
        reducer_bytes: the reducer's safetensors file.
        served_partitions: ascending; only these were opened.
        num_entries: entries in them.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        routing: RoutingTable,
        token_table: TokenTable,
        reducer_bytes: bytes,
        segments: Mapping[int, list[OpenSegment]],
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.routing = routing
        self.token_table = token_table
        self.reducer_bytes = reducer_bytes
        self.served_partitions = tuple(sorted(segments))
        self.segments = {partition: tuple(segments[partition]) for partition in self.served_partitions}
        self._flat = [segment for partition in self.served_partitions for segment in self.segments[partition]]
        self._first_ids = np.array([segment.first_id for segment in self._flat], np.int64)
        self.num_entries = sum(len(segment.segment) for segment in self._flat)

    @classmethod
    def open(
        cls, path: Path | str, *, partitions: Collection[int] | None = None, verify_checksums: bool = True
    ) -> Datastore:
        """Opens a datastore's folder by memory map.

        Args:
            path: the folder.
            partitions: those to serve; None for all.
            verify_checksums: hash every file first. Sizes are compared in any case.

        Raises:
            DatastoreError: for a folder without a manifest, a newer format, a partition it does not have, or a file
                that is missing, truncated or corrupt; it names the file.
        """
        path = Path(path)
        manifest = read_manifest(path)
        wanted = sorted(set(range(len(manifest.partitions)) if partitions is None else partitions))
        if not wanted or wanted[0] < 0 or wanted[-1] >= len(manifest.partitions):
            raise DatastoreError(
                f"{path} has the partitions 0 to {len(manifest.partitions) - 1}; {wanted} were asked for.",
                "Name at least one of them.",
            )
        for name, file in manifest.files.items():
            check_file(path / name, file, checksum=verify_checksums)
        routing = RoutingTable.load(path / ROUTING_FILE)
        if routing.num_partitions != len(manifest.partitions):
            raise DatastoreError(f"{path / ROUTING_FILE} is of another number of partitions.", REBUILD_HINT)
        segments: dict[int, list[OpenSegment]] = {}
        first_id = 0
        for partition in manifest.partitions:
            for record in partition.segments:
                if partition.index in wanted and record.num_entries > 0:
                    segment = Segment.open(path / record.directory, record, manifest, verify_checksums=verify_checksums)
                    segments.setdefault(partition.index, []).append(OpenSegment(first_id, segment))
                first_id += record.num_entries
        return cls(
            path,
            manifest,
            routing,
            TokenTable.load(path / TOKEN_TABLE_FILE),
            read_bytes(path / REDUCER_FILE),
            {partition: segments.get(partition, []) for partition in wanted},
        )

    def search(
        self, keys: NDArray[np.float32], next_tokens: NDArray[np.int64], *, neighbors: int, nprobe: int = 0
    ) -> Neighbors:
        """The nearest entries with the same next token, over all partitions served.

        Args:
            keys: float32 [B, dims], finite.
            next_tokens: int64 [B]; one without entries has no neighbours.
            neighbors: k, at least 1.
            nprobe: inverted lists searched within a token's; 0 for the datastore's own setting.

        Raises:
            ValueError: for shapes or numbers that break this contract.
        """
        dims = self.manifest.key_recipe.dims
        if keys.ndim != 2 or keys.shape[1] != dims or next_tokens.shape != keys.shape[:1]:
            raise ValueError(f"keys must be [B, {dims}] and next_tokens [B], not {keys.shape} and {next_tokens.shape}")
        if neighbors < 1 or nprobe < 0:
            raise ValueError("neighbors must be at least 1 and nprobe at least 0")
        keys = np.ascontiguousarray(keys, np.float32)
        nprobe = nprobe or self.manifest.nprobe
        similarities = np.full((len(keys), neighbors), -np.inf, np.float32)
        ids = np.full((len(keys), neighbors), -1, np.int64)
        queries, partitions = self.routing.lookup(next_tokens)
        asked = np.unique(partitions).tolist()
        answered = [partition for partition in asked if partition in self.segments]
        for partition in answered:
            concerned = queries[partitions == partition]
            for opened in self.segments[partition]:
                places = opened.segment.find(next_tokens[concerned])
                rows = concerned[places >= 0]
                if len(rows) == 0:
                    continue
                near, found = opened.segment.search(keys[rows], places[places >= 0], neighbors, nprobe)
                found[found >= 0] += opened.first_id
                _keep_nearest(similarities, ids, rows, near, found)
        return Neighbors(ids, similarities, (ids >= 0).sum(axis=1), len(asked), len(answered))

    def draft(
        self,
        keys: NDArray[np.float32],
        next_tokens: NDArray[np.int64],
        *,
        neighbors: int,
        max_nodes: int,
        max_depth: int = 0,
        temperature: float = 0.1,
        nprobe: int = 0,
    ) -> DraftBatch:
        """Merges the continuations of each query's neighbours into a draft tree.

        A neighbour of cosine s adds exp((s - 1) / temperature) to every node of its continuation.

        Args:
            keys: float32 [B, dims], finite.
            next_tokens: int64 [B].
            neighbors: searched for each query.
            max_nodes: of each tree.
            max_depth: of each tree; 0 for the whole continuation.
            temperature: above 0.
            nprobe: as for `search`.

        Raises:
            ValueError: for shapes or numbers that break this contract.
        """
        if max_nodes < 0 or max_depth < 0 or not temperature > 0:
            raise ValueError("max_nodes and max_depth must be at least 0 and temperature above 0")
        begun = time.perf_counter_ns()
        near = self.search(keys, next_tokens, neighbors=neighbors, nprobe=nprobe)
        searched = time.perf_counter_ns()
        found = near.ids >= 0
        queries = np.nonzero(found)[0]
        # A key decoded from its code may be slightly longer than 1; no neighbour counts more than an equal key.
        cosines = np.minimum(near.similarities[found].astype(np.float64), 1.0)
        weights = np.exp((cosines - 1.0) / temperature)
        depth = min(max_depth or self.manifest.continuation_length, self.manifest.continuation_length)
        paths = self._continuations(near.ids[found], depth)
        trees = merge_paths(queries, paths, weights[:, None], num_queries=len(keys), max_nodes=max_nodes)
        best = np.where(near.counts > 0, near.similarities[:, 0], np.float32(0))
        return DraftBatch(
            trees,
            np.bincount(queries, weights, len(keys)).astype(np.float64),
            best,
            near.counts,
            near.partitions_asked,
            near.partitions_answered,
            (searched - begun) // 1000,
            (time.perf_counter_ns() - searched) // 1000,
        )

    def entries(self, ids: NDArray[np.int64]) -> StoredEntries:
        """What is stored beside the keys of entries in the served partitions; ids int64 [m] as from `search`."""
        next_tokens = np.zeros(len(ids), np.int64)
        left_contexts = np.full((len(ids), self.manifest.left_context_length), PAD, np.int32)
        for opened, at in self._by_segment(ids):
            rows = ids[at] - opened.first_id
            next_tokens[at] = opened.segment.next_tokens_of(rows)
            left_contexts[at] = opened.segment.left_contexts_of(rows)
        return StoredEntries(next_tokens, self._continuations(ids, self.manifest.continuation_length), left_contexts)

    def _continuations(self, ids: NDArray[np.int64], depth: int) -> NDArray[np.int32]:
        paths = np.full((len(ids), depth), PAD, np.int32)
        for opened, at in self._by_segment(ids):
            paths[at] = opened.segment.continuations_of(ids[at] - opened.first_id, depth)
        return paths

    def _by_segment(self, ids: NDArray[np.int64]) -> list[tuple[OpenSegment, NDArray[np.int64]]]:
        """Each segment concerned, with the places of its ids."""
        numbers = np.searchsorted(self._first_ids, ids, side="right") - 1
        return [(self._flat[number], np.flatnonzero(numbers == number)) for number in np.unique(numbers).tolist()]


def _keep_nearest(
    similarities: NDArray[np.float32],
    ids: NDArray[np.int64],
    rows: NDArray[np.int64],
    near: NDArray[np.float32],
    found: NDArray[np.int64],
) -> None:
    """Merges one segment's neighbours of some queries into the nearest so far, in place."""
    width = similarities.shape[1]
    if (ids[rows, 0] < 0).all():
        similarities[rows, : near.shape[1]] = near
        ids[rows, : near.shape[1]] = found
        return
    both = np.concatenate([similarities[rows], near], axis=1)
    order = np.argsort(-both, axis=1, kind="stable")[:, :width]
    similarities[rows] = np.take_along_axis(both, order, axis=1)
    ids[rows] = np.take_along_axis(np.concatenate([ids[rows], found], axis=1), order, axis=1)
