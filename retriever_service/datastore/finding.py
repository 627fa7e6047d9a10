"""Which partitions queries concern, and the stored tokens of rows, compiled. Takes arrays only."""

from __future__ import annotations

import numpy as np

from dresd.compiled import njit
from dresd.finding import find


@njit
def mark_partitions(tokens, offsets, partitions, next_tokens, marked):
    """Sets the places of all partitions that some queries concern, by a routing table's arrays.

    Args:
        tokens, offsets, partitions: of a `RoutingTable`.
        next_tokens: int64 [B].
        marked: bool [P].
    """
    for place in find(tokens, next_tokens):
        if place >= 0:
            for at in range(offsets[place], offsets[place + 1]):
                marked[partitions[at]] = True


@njit
def gather(stored, rows, depth):
    """int32 [m, depth]: the first tokens of some rows, -1 for the greatest value of the type, which is stored for none.

    Raises:
        IndexError: a row is beyond the end.
    """
    padding = np.iinfo(stored.dtype).max
    tokens = np.empty((len(rows), depth), np.int32)
    for place in range(len(rows)):
        if rows[place] < 0 or rows[place] >= len(stored):
            raise IndexError("a row beyond the end")
        for at in range(depth):
            token = stored[rows[place], at]
            tokens[place, at] = -1 if token == padding else np.int32(token)
    return tokens
