"""What a decoder asks a retriever: a batch of positions, checked, and the requests that carry it.

Knows the contract and what a handshake allows; sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from decoder_client.handshake import Handshake
from dresd.v1 import retriever_pb2 as pb


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """B positions; see `RetrieverClient.retrieve` for what each attribute means.

    Raises:
        ValueError: the arrays do not form a batch, or neither kind of neighbour is asked for.
    """

    keys: NDArray[np.float16]
    next_tokens: Sequence[int]
    left_contexts: NDArray[np.int32] | None
    neighbors: int
    sparse_neighbors: int
    max_nodes: int
    max_depth: int
    temperature: float
    match_temperature: float

    def __post_init__(self) -> None:
        keys, contexts, count = self.keys, self.left_contexts, len(self.next_tokens)
        if keys.ndim != 2 or keys.shape[0] != count:
            raise ValueError(f"keys of shape {list(keys.shape)} for {count} next tokens; expected [B, dims]")
        if contexts is not None and (contexts.ndim != 2 or len(contexts) != count or contexts.dtype != np.int32):
            raise ValueError(
                f"left_contexts of {contexts.dtype} {list(contexts.shape)} for {count} next tokens; "
                "expected int32 [B, C]"
            )
        if min(self.neighbors, self.sparse_neighbors) < 0 or self.neighbors == self.sparse_neighbors == 0:
            raise ValueError("neighbors and sparse_neighbors must be at least 0, one of them above")
        if self.sparse_neighbors > 0 and contexts is None:
            raise ValueError("sparse_neighbors are found by left_contexts, which are missing")

    def take(self, rows: NDArray[np.int64]) -> QueryBatch:
        """Some of the positions."""
        contexts = self.left_contexts
        return replace(
            self,
            keys=self.keys[rows],
            next_tokens=[self.next_tokens[row] for row in rows.tolist()],
            left_contexts=None if contexts is None else contexts[rows],
        )

    def requests(self, handshake: Handshake, partitions: Sequence[int] = ()) -> Iterator[pb.RetrieveRequest]:
        """The batch in as many requests as the server's limits need, none asking for more than they allow.

        Args:
            handshake: whose datastore the keys are for.
            partitions: to be searched; empty is all that the positions concern.
        """
        limits = handshake.limits
        if self.left_contexts is None or self.sparse_neighbors == 0:
            contexts = np.zeros((len(self.next_tokens), 0), np.int32)
        else:
            contexts = self.left_contexts[:, : handshake.left_context_length]
        for start in range(0, len(self.next_tokens), limits.max_queries):
            part = slice(start, start + limits.max_queries)
            yield pb.RetrieveRequest(
                build_id=handshake.build_id,
                keys=self.keys[part].astype("<f2", order="C", copy=False).tobytes(),
                key_type=pb.KEY_TYPE_FLOAT16,
                num_queries=len(self.next_tokens[part]),
                dims=self.keys.shape[1],
                next_tokens=self.next_tokens[part],
                left_contexts=contexts[part].astype("<i4", order="C", copy=False).tobytes(),
                left_context_width=contexts.shape[1],
                neighbors=min(self.neighbors, limits.max_neighbors),
                sparse_neighbors=min(self.sparse_neighbors, limits.max_neighbors),
                max_nodes=min(self.max_nodes, limits.max_nodes),
                max_depth=min(self.max_depth, handshake.continuation_length),
                similarity_temperature=self.temperature,
                match_temperature=self.match_temperature,
                collection=handshake.collection,
                partitions=partitions,
            )
