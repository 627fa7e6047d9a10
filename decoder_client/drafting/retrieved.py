"""What the retriever gave for a sequence, as weighted paths that can be followed further without asking again.

Knows drafts as arrays, not how they came here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dresd.draft_tree import DraftTree
from dresd.tree_paths import tree_paths


@dataclass(frozen=True, slots=True)
class RetrievedPaths:
    """Continuations after the newest token.

    Attributes:
        paths: int32 [m, depth], `PAD` from the end on.
        masses: float64 [m, 2], dense and sparse.
    """

    paths: NDArray[np.int32]
    masses: NDArray[np.float64]

    @classmethod
    def of(cls, tree: DraftTree) -> RetrievedPaths:
        """Those of a tree of two sources."""
        return cls(*tree_paths(tree.tokens, tree.parents, tree.masses))

    def after(self, tokens: Sequence[int]) -> RetrievedPaths | None:
        """What is left once `tokens` have followed: the paths that foretold them, without them; None if none did."""
        count = len(tokens)
        if count >= self.paths.shape[1]:
            return None
        followed = (self.paths[:, :count] == np.asarray(tokens, np.int32)).all(axis=1) & (self.paths[:, count] >= 0)
        if not followed.any():
            return None
        return RetrievedPaths(self.paths[followed, count:], self.masses[followed])
