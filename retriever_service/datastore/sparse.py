"""Sparse lookups in one segment: the rows whose left context agrees longest with a query's.

Within a token's range `suffix_order` lists its rows by left context, most recent token first, as stored. So the rows
that share a query's last L tokens are neighbours in the order, beside the place where the query itself would stand:
that place is found by search over the memory-mapped arrays, and the longest matches lie around it. (The datastore of
REST, arXiv 2311.08252, is searched in this way.) It must not know segments, files or continuations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_PIVOTS = 15
"""Rows compared with a query at once: numpy's calls cost more than comparing so few, so halving would be slower."""


def longest_matches(
    suffix_order: NDArray[np.uint32],
    stored_left_contexts: NDArray[Any],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    left_contexts: NDArray[np.int32],
    neighbors: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows of each query's range that match its left context longest, all queries at once.

    Of matches equally long those nearest to the query's place in the order come first, before after behind.

    Args:
        suffix_order: uint32 [n], see `layout`.
        stored_left_contexts: uint16 or uint32 [n, C], as `tokens.pack` makes them.
        begins: int64 [b], where each query's range of the order begins.
        ends: int64 [b], where it ends.
        left_contexts: int32 [b, w] with 1 <= w <= C, most recent token first. A match ends before `PAD` and before any
            number that is no stored token.
        neighbors: wanted, at least 1.

    Returns:
        lengths: int64 [b, k] with k <= neighbors, falling: matching tokens, 0 where no other row matches.
        rows: int64 [b, k], -1 where there is none.

    Raises:
        IndexError: `suffix_order` names rows beyond the end.
    """
    width = left_contexts.shape[1]
    # Stored padding is the greatest value: as the first of a query it places it behind all rows that match up to it.
    padding = np.iinfo(stored_left_contexts.dtype).max
    known = np.logical_and.accumulate((left_contexts >= 0) & (left_contexts < padding), axis=1)
    wanted = np.where(known, left_contexts, padding).astype(stored_left_contexts.dtype)[:, None, :]
    places = _places(suffix_order, stored_left_contexts, begins, ends, wanted)

    nearest = min(neighbors, int((ends - begins).max(initial=0)))
    steps = np.arange(nearest)
    around = np.stack([places[:, None] - 1 - steps, places[:, None] + steps], axis=2).reshape(len(places), 2 * nearest)
    within = (around >= begins[:, None]) & (around < ends[:, None])
    rows = suffix_order[np.where(within, around, 0)].astype(np.int64)
    agree = np.zeros((*rows.shape, width + 1), np.bool_)  # the last column ends a match of the whole width
    np.equal(stored_left_contexts[rows, :width], wanted, out=agree[:, :, :width])
    agree[:, :, :width] &= known[:, None, :]
    lengths = np.where(within, agree.argmin(axis=2), 0)
    best = np.argsort(-lengths, axis=1, kind="stable")[:, :nearest]
    lengths = np.take_along_axis(lengths, best, axis=1)
    return lengths, np.where(lengths > 0, np.take_along_axis(rows, best, axis=1), -1)


def _places(
    suffix_order: NDArray[np.uint32],
    stored: NDArray[Any],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    wanted: NDArray[Any],
) -> NDArray[np.int64]:
    """int64 [b]: how far the rows of each range reach whose contexts are less than the query's, wanted [b, 1, w]."""
    queries, nth = np.arange(len(begins))[:, None], np.arange(_PIVOTS)
    low, high = begins, ends
    while (sizes := high - low).max(initial=0) > 0:
        # Every step leaves less than a sixteenth of a range, and of an empty one nothing to compare.
        pivots = low[:, None] + sizes[:, None] * (nth + 1) // (_PIVOTS + 1)
        open_ranges = sizes[:, None] > 0
        contexts = stored[suffix_order[np.where(open_ranges, pivots, 0)], : wanted.shape[2]]
        differ = (contexts != wanted).argmax(axis=2)
        less = (contexts < wanted)[queries, nth, differ] & open_ranges
        bounds = np.concatenate([low[:, None] - 1, pivots, high[:, None]], axis=1)
        below = less.sum(axis=1)
        low, high = bounds[queries[:, 0], below] + 1, bounds[queries[:, 0], below + 1]
    return low
