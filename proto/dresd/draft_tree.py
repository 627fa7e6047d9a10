"""The draft tree as arrays; `path_merging` builds it.

A draft is a set of weighted paths (token sequences that may follow the token just chosen). Merged by common
prefix they form a tree whose nodes carry *masses*: a node's mass is the sum of the weights of the paths through
it, one mass per source (dense neighbours, sparse neighbours, local context, ...). Masses are additive, so trees
merge by adding: of several partitions on a server, of several sources in a decoder.

This module knows arrays only: no messages, no models, no indexes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PAD = -1
"""Fills a path beyond its end."""

ROOT = -1
"""The parent of a node of depth 1."""


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A tree of n draft tokens under the token just chosen.

    Attributes:
        tokens: int32 [n], token ids.
        parents: int32 [n], index of each node's parent, `ROOT` for depth 1; always less than the node's own index.
        masses: float64 [n, sources], never greater than the parent's.
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    masses: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def empty(cls, sources: int = 1) -> DraftTree:
        """The draft of no tokens."""
        none = np.zeros(0, np.int32)
        return cls(none, none, np.zeros((0, sources), np.float64))

    def depths(self) -> NDArray[np.int32]:
        """int32 [n]: 1 for children of the root."""
        depths = np.ones(len(self), np.int32)
        for node, parent in enumerate(self.parents.tolist()):
            if parent != ROOT:
                depths[node] = depths[parent] + 1
        return depths

    def ancestor_mask(self) -> NDArray[np.bool_]:
        """bool [n, n]: row i marks the nodes on the path from the root to node i, itself included."""
        mask = np.eye(len(self), dtype=np.bool_)
        for node, parent in enumerate(self.parents.tolist()):
            if parent != ROOT:
                mask[node] |= mask[parent]
        return mask
