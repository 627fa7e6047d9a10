"""An open datastore: a query's nearest entries over the partitions served here, and the draft tree they make.

It must not know who asks: no requests, no messages, no deadlines.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dresd.compiled import warm
from dresd.draft_tree import PAD
from dresd.routing import RoutingTable
from retriever_service.datastore.draft_trees import draft_trees
from retriever_service.datastore.errors import DatastoreError
from retriever_service.datastore.files import REBUILD_HINT, read_bytes
from retriever_service.datastore.finding import mark_partitions
from retriever_service.datastore.layout import MAPPED_FILES
from retriever_service.datastore.manifest import (
    REDUCER_FILE,
    ROUTING_FILE,
    TOKEN_TABLE_FILE,
    Manifest,
    read_manifest,
)
from retriever_service.datastore.reducer_file import read_reducer
from retriever_service.datastore.results import DraftBatch, Neighbors, StoredEntries
from retriever_service.datastore.routing import load_routing, routing_of_all
from retriever_service.datastore.searched import OpenSegment, Searched
from retriever_service.datastore.segment import Found, Segment, check_file
from retriever_service.datastore.token_table import parse_token_table
from retriever_service.datastore.weighing import keep_best
from retriever_service.echo import echoed


class _Found(NamedTuple):
    """What B queries found in the segments searched; the arrays are those of `segment.Found`."""

    similarities: NDArray[np.float32]
    ids: NDArray[np.int64]
    lengths: NDArray[np.int64]
    matched: NDArray[np.int64]
    partitions_asked: int
    partitions_answered: int


class Datastore:
    """An open datastore; its methods may be called from any thread. Its files are never written.

    Attributes:
        path: its folder.
        manifest: what it says about itself.
        routing: which partitions hold a token.
        token_table: likely next tokens.
        token_table_bytes: its safetensors file.
        reducer_bytes: the reducer's safetensors file.
        served_partitions: ascending; only these were opened.
        segments: of each served partition, those on disk.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        routing: RoutingTable,
        token_table_bytes: bytes,
        reducer_bytes: bytes,
        segments: Mapping[int, list[OpenSegment]],
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.routing = routing
        self.token_table = parse_token_table(path / TOKEN_TABLE_FILE, token_table_bytes, manifest.model.vocab_size)
        self.token_table_bytes = token_table_bytes
        self.reducer_bytes = reducer_bytes
        self.served_partitions = tuple(sorted(segments))
        self.segments = {partition: tuple(segments[partition]) for partition in self.served_partitions}
        self._searched = Searched.of(self.segments)

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
                f"{path} has the partitions 0 to {len(manifest.partitions) - 1}; {echoed(wanted)} were asked for.",
                "Name at least one of them.",
            )
        for name, file in manifest.files.items():
            check_file(path / name, file, checksum=verify_checksums)
        routing = load_routing(path / ROUTING_FILE)
        if routing.num_partitions != len(manifest.partitions):
            raise DatastoreError(f"{path / ROUTING_FILE} is of another number of partitions.", REBUILD_HINT)
        reducer_bytes = read_reducer(path / REDUCER_FILE, manifest)
        segments: dict[int, list[OpenSegment]] = {}
        first_id = 0
        for partition in manifest.partitions:
            for record in partition.segments:
                if partition.index in wanted and record.num_entries > 0:
                    segment = Segment.open(path / record.directory, record, manifest, verify_checksums=verify_checksums)
                    segments.setdefault(partition.index, []).append(OpenSegment(first_id, segment))
                first_id += record.num_entries
        store = cls(
            path,
            manifest,
            routing,
            read_bytes(path / TOKEN_TABLE_FILE),
            reducer_bytes,
            {partition: segments.get(partition, []) for partition in wanted},
        )
        try:
            warm(store._draft_once)
        except (RuntimeError, IndexError, MemoryError) as error:
            raise DatastoreError(f"A segment of {path} cannot be searched: {echoed(error)}.", REBUILD_HINT) from error
        return store

    @property
    def num_entries(self) -> int:
        """Entries in the served partitions, those in memory too."""
        return sum(len(opened.segment) for opened in self._searched.flat)

    def accept_any_token(self) -> None:
        """Gives every token of the vocabulary that has no entries yet a partition, which any build chooses alike."""
        self.routing = routing_of_all(self.routing, self.manifest.model.vocab_size)

    def attach(self, more: Mapping[int, Sequence[Segment]]) -> None:
        """Searches these segments beside those on disk from now on, in place of those attached before.

        Searches under way go on with what they began with. Ids of attached entries hold until the next call.

        Args:
            more: of some served partitions, those in memory; every token of theirs has a place in the routing table.
        """
        first_id, attached = self.manifest.num_entries, dict(self.segments)
        for partition, segments in more.items():
            for segment in segments:
                attached[partition] = (*attached[partition], OpenSegment(first_id, segment))
                first_id += len(segment)
        self._searched = Searched.of(attached)

    def warm_attached(self) -> None:
        """Compiles what searches of several segments call, once some are attached."""
        warm(self._draft_once)

    def _draft_once(self) -> None:
        width = self.manifest.left_context_length
        keys, contexts = np.zeros((1, self.manifest.key_recipe.dims), np.float32), np.full((1, width), PAD, np.int32)
        flat = self._searched.flat
        for opened in flat[:1]:
            token = opened.segment.tokens[:1].copy()
            self.draft(keys, token, neighbors=1, max_nodes=1, left_contexts=contexts, sparse_neighbors=min(width, 1))
        if len(flat) > 1:
            nothing = _nothing(1, 1, 1)
            keep_best(*nothing[:2], *nothing[:2])
            keep_best(*nothing[2:], *nothing[2:])

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the served segments' files that are memory-mapped."""
        return sum(
            file.size
            for partition in self.served_partitions
            for segment in self.manifest.partitions[partition].segments
            for name, file in segment.files.items()
            if name in MAPPED_FILES
        )

    def entries_by_token(self) -> NDArray[np.int64]:
        """int64 [vocab]: entries of each next token in the served partitions."""
        counts = np.zeros(self.manifest.model.vocab_size, np.int64)
        for opened in self._searched.flat:
            counts[opened.segment.tokens] += np.diff(opened.segment.entry_offsets)
        return counts

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
        self._check_queries(keys, next_tokens)
        if neighbors < 1 or nprobe < 0:
            raise ValueError("neighbors must be at least 1 and nprobe at least 0")
        found = self._look_up(
            keys, next_tokens, np.zeros((len(keys), 0), np.int32), neighbors, 0, nprobe, None, self._searched
        )
        counts = np.count_nonzero(found.ids >= 0, axis=1)
        return Neighbors(found.ids, found.similarities, counts, found.partitions_asked, found.partitions_answered)

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
        left_contexts: NDArray[np.int32] | None = None,
        sparse_neighbors: int = 0,
        match_temperature: float = 3.3,
        partitions: Collection[int] | None = None,
    ) -> DraftBatch:
        """Merges the continuations of each query's neighbours, dense and sparse, into a draft tree.

        A dense neighbour of cosine s adds exp((s - 1) / temperature) to every node of its continuation; a sparse one
        that matches L of the C tokens stored as left context adds exp((L - C) / match_temperature).

        Args:
            keys: float32 [B, dims], finite.
            next_tokens: int64 [B].
            neighbors: nearest entries searched for each query, 0 for none.
            max_nodes: of each tree.
            max_depth: of each tree; 0 for the whole continuation.
            temperature: above 0; not looked at without dense neighbours.
            nprobe: as for `search`.
            left_contexts: int32 [B, w] with 1 <= w <= C, the tokens before the next token, most recent first, `PAD`
                for none; may be None without sparse neighbours.
            sparse_neighbors: longest matches of the left context looked up for each query, 0 for none.
            match_temperature: above 0; not looked at without sparse neighbours.
            partitions: those searched, and counted as asked; None for all that the queries concern.

        Raises:
            ValueError: for shapes or numbers that break this contract, or neither kind of neighbour asked for.
        """
        self._check_queries(keys, next_tokens)
        if max_nodes < 0 or max_depth < 0:
            raise ValueError("max_nodes and max_depth must be at least 0")
        if (neighbors > 0 and not temperature > 0) or (sparse_neighbors > 0 and not match_temperature > 0):
            raise ValueError("temperatures must be above 0")
        if min(neighbors, sparse_neighbors, nprobe) < 0 or neighbors == sparse_neighbors == 0:
            raise ValueError("neighbors, sparse_neighbors and nprobe must be at least 0, one kind of neighbors above")
        width = self.manifest.left_context_length
        left_contexts = np.zeros((len(keys), 0), np.int32) if left_contexts is None else left_contexts
        if left_contexts.ndim != 2 or len(left_contexts) != len(keys) or left_contexts.shape[1] > width:
            raise ValueError(f"left_contexts must be [B, at most {width}], not {left_contexts.shape}")
        if sparse_neighbors > 0 and left_contexts.shape[1] == 0:
            raise ValueError("sparse neighbours are found by left_contexts; give at least one token of them")
        begun, here = time.perf_counter_ns(), self._searched
        found = self._look_up(keys, next_tokens, left_contexts, neighbors, sparse_neighbors, nprobe, partitions, here)
        searched = time.perf_counter_ns()
        ids, matched, stored, first_id = self._stored(found, here)
        depth = min(max_depth or self.manifest.continuation_length, self.manifest.continuation_length)
        ends, tokens, parents, masses, totals, bests, longest, counts = draft_trees(
            ids,
            found.similarities,
            temperature,
            matched,
            found.lengths,
            width,
            match_temperature,
            stored,
            first_id,
            depth,
            max_nodes,
        )
        return DraftBatch(
            ends,
            tokens,
            parents,
            masses,
            totals,
            bests,
            longest,
            counts,
            found.partitions_asked,
            found.partitions_answered,
            (searched - begun) // 1000,
            (time.perf_counter_ns() - searched) // 1000,
        )

    def entries(self, ids: NDArray[np.int64]) -> StoredEntries:
        """What is stored beside the keys of entries in the served partitions; ids int64 [m] as from `search`."""
        next_tokens = np.zeros(len(ids), np.int64)
        left_contexts = np.full((len(ids), self.manifest.left_context_length), PAD, np.int32)
        here = self._searched
        for opened, at in here.of_ids(ids):
            rows = ids[at] - opened.first_id
            next_tokens[at] = opened.segment.next_tokens_of(rows)
            left_contexts[at] = opened.segment.left_contexts_of(rows)
        return StoredEntries(next_tokens, here.continuations(ids, self.manifest.continuation_length), left_contexts)

    def _check_queries(self, keys: NDArray[np.float32], next_tokens: NDArray[np.int64]) -> None:
        dims = self.manifest.key_recipe.dims
        if keys.ndim != 2 or keys.shape[1] != dims or next_tokens.shape != keys.shape[:1]:
            raise ValueError(f"keys must be [B, {dims}] and next_tokens [B], not {keys.shape} and {next_tokens.shape}")

    def _look_up(
        self,
        keys: NDArray[np.float32],
        next_tokens: NDArray[np.int64],
        left_contexts: NDArray[np.int32],
        neighbors: int,
        sparse_neighbors: int,
        nprobe: int,
        wanted: Collection[int] | None,
        here: Searched,
    ) -> _Found:
        routing = self.routing
        is_asked = np.zeros(routing.num_partitions, np.bool_)
        mark_partitions(routing.tokens, routing.offsets, routing.partitions, next_tokens, is_asked)
        asked = np.flatnonzero(is_asked).tolist()
        if wanted is not None:
            asked = [partition for partition in asked if partition in wanted]
        answered = [partition for partition in asked if partition in here.by_partition]
        keys, nprobe = np.ascontiguousarray(keys, np.float32), nprobe or self.manifest.nprobe
        best: Found | None = None
        for opened in (opened for partition in answered for opened in here.by_partition[partition]):
            found = opened.segment.look_up(
                opened.first_id, keys, next_tokens, left_contexts, neighbors, sparse_neighbors, nprobe
            )
            if best is None:
                best = found
            else:
                keep_best(*best[:2], *found[:2])
                keep_best(*best[2:], *found[2:])
        return _Found(*(best or _nothing(len(keys), neighbors, sparse_neighbors)), len(asked), len(answered))

    def _stored(self, found: _Found, here: Searched) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any], int]:
        """The ids found, dense and sparse, with stored continuations that hold theirs, and the id of the first."""
        if len(here.flat) == 1:
            return found.ids, found.matched, here.flat[0].segment.stored_continuations, here.flat[0].first_id
        ids = np.concatenate([found.ids.ravel(), found.matched.ravel()])
        length = self.manifest.continuation_length
        some = np.zeros((len(ids), length), self.manifest.token_dtype)
        for opened, at in here.of_ids(ids):
            some[at] = opened.segment.stored_continuations[ids[at] - opened.first_id]
        places = np.where(ids >= 0, np.arange(len(ids)), -1)
        dense, sparse = places[: found.ids.size], places[found.ids.size :]
        return dense.reshape(found.ids.shape), sparse.reshape(found.matched.shape), some, 0


def _nothing(queries: int, neighbors: int, sparse_neighbors: int) -> Found:
    return (
        np.full((queries, neighbors), -np.inf, np.float32),
        np.full((queries, neighbors), -1, np.int64),
        np.zeros((queries, sparse_neighbors), np.int64),
        np.full((queries, sparse_neighbors), -1, np.int64),
    )
