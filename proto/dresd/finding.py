"""Places of tokens in ascending arrays of them, compiled. Takes arrays only."""

from __future__ import annotations

import numpy as np

from dresd.compiled import njit


@njit
def find(ascending, wanted):
    """int64 [b]: where each of `wanted` stands in an ascending int64 array, -1 for one that does not."""
    places = np.empty(len(wanted), np.int64)
    for query in range(len(wanted)):
        low, high = 0, len(ascending)
        while low < high:
            middle = (low + high) >> 1
            if ascending[middle] < wanted[query]:
                low = middle + 1
            else:
                high = middle
        places[query] = low if low < len(ascending) and ascending[low] == wanted[query] else -1
    return places


@njit
def find_ranges(ascending, offsets, values, wanted):
    """What belongs to each of `wanted`, as pairs: `values[offsets[i] : offsets[i + 1]]` where `ascending[i]` is it.

    Returns:
        queries: int64 [m], places in `wanted`, ascending.
        found: int64 [m].
    """
    places = find(ascending, wanted)
    count = 0
    for place in places:
        if place >= 0:
            count += offsets[place + 1] - offsets[place]
    queries, found = np.empty(count, np.int64), np.empty(count, np.int64)
    count = 0
    for query in range(len(places)):
        if places[query] >= 0:
            for at in range(offsets[places[query]], offsets[places[query] + 1]):
                queries[count], found[count] = query, values[at]
                count += 1
    return queries, found
