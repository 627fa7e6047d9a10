"""What a server counts about the requests it answers: a few additions a request, all in the event loop's thread.

Another thread may read at any time. Knows answers, not how numbers are shown to anybody.
"""

from __future__ import annotations

import grpc

from dresd.histogram import Histogram
from dresd.v1 import retriever_pb2 as pb


class CollectionMeter:
    """Of the answers from one collection.

    Attributes:
        queue, search, merge: time of each answer there.
        queries, nodes, dense_neighbors, sparse_neighbors: totals.
        partitions_asked, partitions_answered: totals.
    """

    __slots__ = (
        "dense_neighbors",
        "merge",
        "nodes",
        "partitions_answered",
        "partitions_asked",
        "queries",
        "queue",
        "search",
        "sparse_neighbors",
    )

    def __init__(self) -> None:
        self.queue, self.search, self.merge = Histogram(), Histogram(), Histogram()
        self.queries = self.nodes = self.dense_neighbors = self.sparse_neighbors = 0
        self.partitions_asked = self.partitions_answered = 0

    def answered(self, response: pb.RetrieveResponse) -> None:
        """One more."""
        timing, coverage = response.timing, response.coverage
        self.queue.observe(timing.queue_us * 1e-6)
        self.search.observe(timing.search_us * 1e-6)
        self.merge.observe(timing.merge_us * 1e-6)
        self.partitions_asked += coverage.partitions_asked
        self.partitions_answered += coverage.partitions_answered
        for tree in response.trees:
            self.queries += 1
            self.nodes += len(tree.tokens)
            self.dense_neighbors += tree.neighbors
            self.sparse_neighbors += tree.sparse_neighbors


class RequestMeter:
    """Of all retrieve requests of a server.

    Attributes:
        counts: requests by collection ("" where none was found), call and status.
        seconds: time to answer by collection and call.
        collections: what was answered, by collection.
        unauthenticated: calls turned away for want of a token.
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str, str], int] = {}
        self.seconds: dict[tuple[str, str], Histogram] = {}
        self.collections: dict[str, CollectionMeter] = {}
        self.unauthenticated = 0

    def answered(self, collection: str, call: str, seconds: float, response: pb.RetrieveResponse) -> None:
        """One more, in `seconds` from its arrival."""
        self._count(collection, call, "OK")
        histogram = self.seconds.get((collection, call))
        if histogram is None:
            histogram = self.seconds[collection, call] = Histogram()
        histogram.observe(seconds)
        meter = self.collections.get(collection)
        if meter is None:
            meter = self.collections[collection] = CollectionMeter()
        meter.answered(response)

    def refused(self, collection: str, call: str, code: grpc.StatusCode) -> None:
        """One got a status in place of an answer."""
        self._count(collection, call, code.name)

    def _count(self, collection: str, call: str, code: str) -> None:
        key = (collection, call, code)
        self.counts[key] = self.counts.get(key, 0) + 1
