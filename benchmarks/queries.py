"""The queries of a benchmark as every kind of callee wants them: arrays, messages, and FAISS's own arguments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.synthetic import WIDTH, Generator
from dresd.v1 import retriever_pb2 as pb
from retriever_service.datastore import Datastore, EntryBatch, codecs

NEIGHBORS = 50
NODES = 32
TEMPERATURE = 0.1


def queries_for(store: Datastore, number: int, seed: int = 0) -> EntryBatch:
    """Entries that no datastore holds, of tokens that this one has entries of."""
    some = Generator(seed).queries(4 * number)
    known = np.flatnonzero(np.isin(some.next_tokens, store.routing.tokens))[:number]
    return some.select(known)


def request_for(queries: EntryBatch, build_id: str, *, sparse: int = 0) -> pb.RetrieveRequest:
    """A request for drafts of all these queries, as a decoder sends it."""
    return pb.RetrieveRequest(
        build_id=build_id,
        keys=queries.keys.astype("<f2").tobytes(),
        key_type=pb.KEY_TYPE_FLOAT16,
        num_queries=len(queries),
        dims=queries.keys.shape[1],
        next_tokens=queries.next_tokens.tolist(),
        neighbors=NEIGHBORS,
        max_nodes=NODES,
        similarity_temperature=TEMPERATURE,
        left_contexts=queries.left_contexts.astype("<i4").tobytes() if sparse else b"",
        left_context_width=WIDTH if sparse else 0,
        sparse_neighbors=sparse,
        match_temperature=3.3 if sparse else 0.0,
    )


@dataclass(frozen=True)
class BareSearch:
    """FAISS alone: what one search of the same lists costs when nothing else is done."""

    index: codecs.FaissIndex
    keys: NDArray[np.float32]
    lists: list[NDArray[np.int64]]
    neighbors: list[int]

    @classmethod
    def of(cls, store: Datastore, queries: EntryBatch) -> BareSearch:
        """Chooses the lists beforehand; the datastore has one partition."""
        ((opened,),) = store.segments.values()
        segment = opened.segment
        places = np.searchsorted(segment.tokens, queries.next_tokens)
        keys = np.ascontiguousarray(queries.keys)
        lists = [
            segment.token_lists.choose(keys[at : at + 1], places[at : at + 1], store.manifest.nprobe)
            for at in range(len(keys))
        ]
        available = np.diff(segment.entry_offsets)[places]
        return cls(segment.index, keys, lists, np.minimum(available, NEIGHBORS).tolist())

    def __call__(self, number: int) -> None:
        """One query."""
        at = number % len(self.lists)
        codecs.search_lists(self.index, self.keys[at : at + 1], self.lists[at], self.neighbors[at])
