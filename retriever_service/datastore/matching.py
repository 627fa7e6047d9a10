"""Sparse lookups in one segment, compiled: the rows whose left context agrees longest with a query's.

Within a token's range `suffix_order` lists its rows by left context, most recent token first, as stored. So the rows
that share a query's last L tokens are neighbours in the order, beside the place where the query itself would stand:
that place is found by search over the memory-mapped arrays, and the longest matches lie around it. (The datastore of
REST, arXiv 2311.08252, is searched in this way.) It must not know segments, files or continuations.
"""

from __future__ import annotations

import numpy as np

from dresd.compiled import njit


@njit
def longest_matches(suffix_order, stored, begin, end, left_context, lengths, rows):
    """Writes the rows of a range that match a left context longest.

    Of matches equally long those nearest to the query's place in the order come first, before after behind.

    Args:
        suffix_order: uint32 [n], see `layout`.
        stored: uint16 or uint32 [n, C], left contexts as `tokens.pack` makes them.
        begin, end: of the range of the order.
        left_context: int32 [w] with 1 <= w <= C, most recent token first. A match ends before `PAD` and before any
            number that is no stored token.
        lengths: int64 [k], filled from the beginning on with how many tokens match, falling.
        rows: int64 [k], filled likewise.

    Returns:
        How many match at all, at most k.

    Raises:
        IndexError: `suffix_order` names rows beyond the end.
    """
    width = len(left_context)
    # Stored padding is the greatest value: as the first of a query it places it behind all rows that match up to it.
    padding = np.iinfo(stored.dtype).max
    wanted = np.empty(width, np.int64)
    known = 0
    while known < width and 0 <= left_context[known] < padding:
        wanted[known] = left_context[known]
        known += 1
    wanted[known:] = padding
    place = _place(suffix_order, stored, begin, end, wanted)
    # The further away from there, the shorter the match.
    before, behind = place - 1, place
    before_length = _match(suffix_order, stored, before, begin, end, wanted, known)
    behind_length = _match(suffix_order, stored, behind, begin, end, wanted, known)
    found = 0
    while found < min(len(rows), end - begin):
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
        lengths[found] = length
        rows[found] = suffix_order[at]
        found += 1
    return found


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
