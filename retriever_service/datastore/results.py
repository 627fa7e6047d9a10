"""What an open datastore answers, as arrays. It must not know how any of it is found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dresd.draft_tree import DraftTree


@dataclass(frozen=True, slots=True)
class Neighbors:
    """The nearest entries of each of B queries, nearest first.

    Attributes:
        ids: int64 [B, k], entries of the whole datastore (the same whatever partitions are served), -1 for none.
        similarities: float32 [B, k], -inf for none.
        counts: int64 [B].
        partitions_asked: partitions that the queries concern.
        partitions_answered: those of them that are served here.
    """

    ids: NDArray[np.int64]
    similarities: NDArray[np.float32]
    counts: NDArray[np.int64]
    partitions_asked: int
    partitions_answered: int


@dataclass(frozen=True, slots=True)
class StoredEntries:
    """What is stored beside the keys of m entries: int64 [m], int32 [m, N] and int32 [m, C], `PAD` for none."""

    next_tokens: NDArray[np.int64]
    continuations: NDArray[np.int32]
    left_contexts: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """The drafts of B queries. The two sources are dense neighbours (column 0) and sparse ones (column 1).

    Attributes:
        trees: one a query, masses of both sources; an entry found both ways adds to both.
        total_masses: float64 [B, 2], of all neighbours, those pruned or without a continuation too.
        best_similarities: float32 [B], 0 without dense neighbours.
        longest_matches: int64 [B], matching tokens of left context, 0 without sparse neighbours.
        neighbor_counts: int64 [B, 2].
        partitions_asked: partitions that the queries concern.
        partitions_answered: those of them that are served here.
        search_us: time of the dense and the sparse search together.
        merge_us: time of gathering the continuations and merging them.
    """

    trees: list[DraftTree]
    total_masses: NDArray[np.float64]
    best_similarities: NDArray[np.float32]
    longest_matches: NDArray[np.int64]
    neighbor_counts: NDArray[np.int64]
    partitions_asked: int
    partitions_answered: int
    search_us: int
    merge_us: int
