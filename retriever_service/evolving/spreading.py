"""Which entries of an open segment go to a partition of another datastore. Knows routing tables and segments."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dresd.routing import RoutingTable
from retriever_service.datastore import OpenSegment, split_entries


def rows_of_partition(opened: OpenSegment, routing: RoutingTable, partition: int, before: int) -> NDArray[np.bool_]:
    """bool [n]: the rows of a segment that go there; `before` counts entries before those of its datastore."""
    segment = opened.segment
    queries, partitions = routing.lookup(segment.tokens)
    parts = np.bincount(queries, minlength=len(segment.tokens))
    wanted = np.zeros(len(segment), np.bool_)
    for place in queries[partitions == partition].tolist():
        begin, end = segment.entry_offsets[place : place + 2].tolist()
        if parts[place] == 1:
            wanted[begin:end] = True
        else:
            ordinals = before + opened.first_id + np.arange(begin, end)
            tokens = np.full(end - begin, segment.tokens[place])
            wanted[begin:end] = split_entries(routing, tokens, ordinals) == partition
    return wanted
