"""The search of `sparse`, compiled. Takes arrays only; what they mean is said there."""

from __future__ import annotations

import numpy as np

from dresd.compiled import njit


@njit
def find_matches(suffix_order, stored, begins, ends, left_contexts, neighbors):
    """See `sparse.longest_matches`."""
    queries, width = left_contexts.shape
    # Stored padding is the greatest value: as the first of a query it places it behind all rows that match up to it.
    padding = np.iinfo(stored.dtype).max
    most = 0
    for query in range(queries):
        most = max(most, min(neighbors, ends[query] - begins[query]))
    lengths = np.zeros((queries, most), np.int64)
    rows = np.full((queries, most), -1, np.int64)
    wanted = np.empty(width, np.int64)
    for query in range(queries):
        known = 0
        while known < width and 0 <= left_contexts[query, known] < padding:
            wanted[known] = left_contexts[query, known]
            known += 1
        wanted[known:] = padding
        begin, end = begins[query], ends[query]
        place = _place(suffix_order, stored, begin, end, wanted)
        # The further away from there, the shorter the match.
        before, behind = place - 1, place
        before_length = _match(suffix_order, stored, before, begin, end, wanted, known)
        behind_length = _match(suffix_order, stored, behind, begin, end, wanted, known)
        for found in range(min(neighbors, end - begin)):
            is_nearer = place - 1 - before <= behind - place
            if before_length > behind_length or (before_length == behind_length and is_nearer):
                at, length = before, before_length
                before -= 1
                before_length = _match(suffix_order, stored, before, begin, end, wanted, known)
            else:
                at, length = behind, behind_length
                behind += 1
                behind_length = _match(suffix_order, stored, behind, begin, end, wanted, known)
            if length == 0:
                break
            lengths[query, found] = length
            rows[query, found] = suffix_order[at]
    return lengths, rows


@njit
def _place(suffix_order, stored, low, high, wanted):
    """How far the rows of a range of the order reach whose contexts are less than `wanted`."""
    while low < high:
        middle = (low + high) >> 1
        row = _row(suffix_order, stored, middle)
        is_less = False
        for depth in range(len(wanted)):
            token = np.int64(stored[row, depth])
            if token != wanted[depth]:
                is_less = token < wanted[depth]
                break
        if is_less:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def _match(suffix_order, stored, at, begin, end, wanted, known):
    """Tokens that agree with the `known` first of `wanted`; 0 outside the range."""
    if at < begin or at >= end:
        return 0
    row = _row(suffix_order, stored, at)
    length = 0
    while length < known and np.int64(stored[row, length]) == wanted[length]:
        length += 1
    return length


@njit
def _row(suffix_order, stored, at):
    row = np.int64(suffix_order[at])
    if row >= len(stored):
        raise IndexError("the suffix order names a row beyond the end")
    return row
