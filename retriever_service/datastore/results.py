"""What an open datastore answers, as arrays. It must not know how any of it is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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


class DraftBatch(NamedTuple):
    """The drafts of B queries. The two sources are dense neighbours (column 0) and sparse ones (column 1).

    Attributes:
        ends: int64 [B], where the nodes of each query's tree end; they begin where those of the one before end.
        tokens: int32 [n], of all trees.
        parents: int32 [n], places within the tree, `ROOT` for depth 1.
        masses: float64 [n, 2], of both sources; an entry found both ways adds to both.
        total_masses: float64 [B, 2], of all neighbours, those pruned or without a continuation too.
        best_similarities: float32 [B], 0 without dense neighbours.
        longest_matches: int64 [B], matching tokens of left context, 0 without sparse neighbours.
        neighbor_counts: int64 [B, 2].
        partitions_asked: partitions that the queries concern.
        partitions_answered: those of them that are served here.
        search_us: time of the dense and the sparse search together.
        merge_us: time of gathering the continuations and merging them.
    """

    ends: NDArray[np.int64]
    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    masses: NDArray[np.float64]
    total_masses: NDArray[np.float64]
    best_similarities: NDArray[np.float32]
    longest_matches: NDArray[np.int64]
    neighbor_counts: NDArray[np.int64]
    partitions_asked: int
    partitions_answered: int
    search_us: int
    merge_us: int

    @property
    def trees(self) -> list[DraftTree]:
        """One a query."""
        ends = self.ends.tolist()
        parts = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
        return [DraftTree(self.tokens[part], self.parents[part], self.masses[part]) for part in parts]
