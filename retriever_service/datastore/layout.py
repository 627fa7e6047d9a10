"""How a segment is laid out: its files, and which inverted lists belong to a token.

A segment's rows are ordered by (next token, list, order given), so a token's lists and its entries are contiguous
ranges, and an entry's id is its row. Its files:

- `index.faiss`: the keys, coded, in inverted lists of (next token, sub-cluster).
- `directory.safetensors`: the tokens with their ranges of lists and entries.
- `centroids.npy`: float16 [m, dims], the centres of the lists of those tokens that have more than one.
- `continuations.npy`, `left_contexts.npy`: stored tokens, a row each entry.
- `suffix_order.npy`: uint32 [n], within a token's range its rows ordered by left context, most recent token first.
- `held_out.safetensors`: keys with their true neighbours, where tokens may have several lists (see `held_out`).

Both the writer and the reader follow this module; it reads and writes nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from retriever_service.datastore.choosing import choose

INDEX_FILE = "index.faiss"
DIRECTORY_FILE = "directory.safetensors"
CENTROIDS_FILE = "centroids.npy"
CONTINUATIONS_FILE = "continuations.npy"
LEFT_CONTEXTS_FILE = "left_contexts.npy"
SUFFIX_ORDER_FILE = "suffix_order.npy"
HELD_OUT_FILE = "held_out.safetensors"
SEGMENT_FILES = (
    CENTROIDS_FILE, CONTINUATIONS_FILE, DIRECTORY_FILE, INDEX_FILE, LEFT_CONTEXTS_FILE, SUFFIX_ORDER_FILE,
)  # fmt: skip
MAPPED_FILES = (CENTROIDS_FILE, CONTINUATIONS_FILE, INDEX_FILE, LEFT_CONTEXTS_FILE, SUFFIX_ORDER_FILE)
DIRECTORY_ARRAYS = ("entry_offsets", "list_offsets", "tokens")

RECALL_NEIGHBORS = 50
"""Recall is that of so many neighbours, if nobody asks for others."""
MAX_RECALL_NEIGHBORS = 64
"""The true neighbours of a held-out key are stored up to so many."""


def segment_directory(partition: int, segment: int = 0) -> str:
    """The name of a segment's folder within the datastore's."""
    return f"partition-{partition:05d}-segment-{segment:03d}"


@dataclass(frozen=True, slots=True)
class TokenLists:
    """The inverted lists of T tokens.

    Attributes:
        offsets: int64 [T + 1], the lists of each token.
        centroid_offsets: int64 [T + 1], the centroids of each token's lists: none for a token with one list.
        centroids: float16 [m, dims].
        centroid_bits: the same as compiled code takes them, which has no type for float16.
    """

    offsets: NDArray[np.int64]
    centroid_offsets: NDArray[np.int64]
    centroids: NDArray[np.float16]
    centroid_bits: NDArray[np.uint16] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "centroid_bits", self.centroids.view(np.uint16))

    @staticmethod
    def place_centroids(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [T + 1]: `centroid_offsets` as they follow from `offsets`."""
        numbers = np.diff(offsets)
        return np.concatenate([[0], np.cumsum(np.where(numbers > 1, numbers, 0))]).astype(np.int64)

    def choose(self, keys: NDArray[np.float32], places: NDArray[np.int64], nprobe: int) -> NDArray[np.int64]:
        """The lists to scan for each query: all of its token's, or the `nprobe` with the nearest centroids.

        Args:
            keys: float32 [b, dims].
            places: int64 [b], each query's token as its place among the T.
            nprobe: lists wanted, 0 for all.

        Returns:
            int64 [b, w], -1 for none.
        """
        lists: NDArray[np.int64] = choose(self.offsets, self.centroid_offsets, self.centroid_bits, keys, places, nprobe)
        return lists
