"""Parts of a request that this server does not own, passed on to servers that do, and their answers merged.

A part that is not answered in time is missing from the answer's coverage; it never makes the answer late. Knows
messages, routing and peers; searches nothing.
"""

from __future__ import annotations

import asyncio
import time

import numpy as np
from numpy.typing import NDArray

from dresd.path_merging import compile_merging
from dresd.v1 import retriever_pb2 as pb
from retriever_service.serving.loaded_build import LoadedBuild
from retriever_service.serving.messages import merged_tree
from retriever_service.serving.peer_link import PeerLink
from retriever_service.serving.peers import Peers
from retriever_service.serving.validation import Queries

_LONGEST_S = 1.0
"""A part is waited for, where the caller names no deadline."""
_RESERVE, _LEAST_RESERVE_S = 0.1, 0.002
"""Of the time that is left, kept for merging and for the way back."""


class Forwarding:
    """What is passed on to `peers`."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        compile_merging()

    def peer_states(self) -> dict[str, bool]:
        """Whether each peer is asked now, by address; read from any thread."""
        return self._peers.states

    async def close(self) -> None:
        """Ends the connections to peers."""
        await self._peers.close()

    def begin(
        self, collection: str, build: LoadedBuild, request: pb.RetrieveRequest, queries: Queries, deadline: float | None
    ) -> Forwarded | None:
        """Passes on what is not served here; None where that is nothing.

        Args:
            collection: its name.
            build: that answers.
            request: checked.
            queries: what it asks.
            deadline: on `time.monotonic`'s clock; None is never.
        """
        store = build.datastore
        if request.forwarded or len(store.served_partitions) == store.routing.num_partitions:
            return None
        rows, partitions = store.routing.lookup(queries.next_tokens)
        missing = set(partitions.tolist()) - set(store.served_partitions)
        if queries.partitions is not None:
            missing &= queries.partitions
        parts: dict[PeerLink, list[int]] = {}
        for partition in sorted(missing):
            owners = self._peers.owners(collection, build.build_id, partition)
            owner = next((owner for owner in owners if owner in parts), owners[0] if owners else None)
            if owner is not None:
                parts.setdefault(owner, []).append(partition)
        if not parts:
            return None
        now = time.monotonic()
        left = _LONGEST_S if deadline is None else deadline - now
        until = now + left - max(_LEAST_RESERVE_S, _RESERVE * left)
        tasks = []
        for owner, mine in parts.items():
            concerned = np.unique(rows[np.isin(partitions, mine)])
            part = _part(request, collection, build.build_id, concerned, mine)
            tasks.append(asyncio.create_task(self._ask(owner, mine, part, until, concerned)))
        return Forwarded(tasks, request.max_nodes)

    async def _ask(
        self, owner: PeerLink, partitions: list[int], request: pb.RetrieveRequest, until: float, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], pb.RetrieveResponse] | None:
        response = await owner.ask(request, until)
        if response is None:
            # Lost with its connection, perhaps; another owner of all of it may have the time.
            owners = [
                set(self._peers.owners(request.collection, request.build_id, partition)) for partition in partitions
            ]
            others = set.intersection(*owners) - {owner}
            if others:
                response = await min(others, key=lambda link: link.outstanding).ask(request, until)
        if response is None or len(response.trees) != len(rows):
            return None
        return rows, response


class Forwarded:
    """Requests on their way.

    Args:
        tasks: each brings the rows of the batch that it is for, and the response; or nothing.
        max_nodes: of each tree.
    """

    def __init__(
        self, tasks: list[asyncio.Task[tuple[NDArray[np.int64], pb.RetrieveResponse] | None]], max_nodes: int
    ) -> None:
        self._tasks = tasks
        self._max_nodes = max_nodes

    async def merge_into(self, response: pb.RetrieveResponse) -> None:
        """Waits for the answers and adds them to what was found here."""
        for answer in await asyncio.gather(*self._tasks):
            if answer is None:
                continue
            rows, found = answer
            for row, tree in zip(rows.tolist(), found.trees, strict=True):
                response.trees[row].CopyFrom(merged_tree(response.trees[row], tree, self._max_nodes))
            coverage = response.coverage
            coverage.partitions_answered = min(
                coverage.partitions_asked, coverage.partitions_answered + found.coverage.partitions_answered
            )

    def cancel(self) -> None:
        """Nobody waits for the answers any more."""
        for task in self._tasks:
            task.cancel()


def _part(
    request: pb.RetrieveRequest, collection: str, build_id: str, rows: NDArray[np.int64], partitions: list[int]
) -> pb.RetrieveRequest:
    part = pb.RetrieveRequest()
    part.CopyFrom(request)
    part.build_id, part.collection = build_id, collection
    part.num_queries = len(rows)
    part.keys = _rows_of(request.keys, request.num_queries, rows)
    part.left_contexts = _rows_of(request.left_contexts, request.num_queries, rows)
    part.next_tokens[:] = [request.next_tokens[row] for row in rows.tolist()]
    part.partitions[:] = partitions
    part.forwarded, part.require_full_coverage = True, False
    return part


def _rows_of(content: bytes, count: int, rows: NDArray[np.int64]) -> bytes:
    # All rows are equally long, of no bytes where nothing was given.
    return np.frombuffer(content, np.uint8).reshape(count, -1)[rows].tobytes()
