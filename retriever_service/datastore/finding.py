"""Which queries concern a segment, and the stored tokens of rows, compiled. Takes arrays only."""

from __future__ import annotations

import numpy as np

from dresd.compiled import njit
from dresd.finding import find


@njit
def find_some(ascending, wanted, queries):
    """Which of some queries have their token in `ascending`, and where.

    Args:
        ascending: int64 [T].
        wanted: int64 [B].
        queries: int64 [b], places in `wanted`.

    Returns:
        queries: int64 [m], those that have.
        places: int64 [m], in `ascending`.
    """
    places = find(ascending, wanted[queries])
    has = places >= 0
    return queries[has], places[has]


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
