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

from retriever_service.datastore.matching import find_matches


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
    matches: tuple[NDArray[np.int64], NDArray[np.int64]] = find_matches(
        suffix_order, stored_left_contexts, begins, ends, left_contexts, neighbors
    )
    return matches
