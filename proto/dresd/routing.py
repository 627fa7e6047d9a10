"""Which partitions hold the entries of a next token: what a datastore stores, a service states and a client follows.

Arrays only. It must not know what an entry is, nor where a partition is served.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dresd.finding import find_ranges


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """A token's partitions are `partitions[offsets[i]:offsets[i + 1]]` where `tokens[i]` is the token.

    Attributes:
        num_partitions: P.
        tokens: int64 [T], ascending; a token that is absent has no entries.
        offsets: int64 [T + 1].
        partitions: int64 [offsets[T]], in 0..P-1, ascending within a token.
    """

    num_partitions: int
    tokens: NDArray[np.int64]
    offsets: NDArray[np.int64]
    partitions: NDArray[np.int64]

    def partitions_of(self, token: int) -> NDArray[np.int64]:
        """int64 [m]: the partitions of one token, none for a token without entries."""
        return self.lookup(np.array([token], np.int64))[1]

    def lookup(self, next_tokens: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The partitions that each query concerns, as pairs.

        Returns:
            queries: int64 [m], rows of `next_tokens`, ascending; a token of several partitions appears several times.
            partitions: int64 [m].
        """
        pairs: tuple[NDArray[np.int64], NDArray[np.int64]] = find_ranges(
            self.tokens, self.offsets, self.partitions, next_tokens
        )
        return pairs

    def is_consistent(self) -> bool:
        """Whether the arrays agree with each other: for a table that came from elsewhere."""
        return (
            self.num_partitions >= 1
            and len(self.offsets) == len(self.tokens) + 1
            and self.offsets[0] == 0
            and self.offsets[-1] == len(self.partitions)
            and bool((np.diff(self.offsets) > 0).all())
            and bool((np.diff(self.tokens) > 0).all())
            and bool((self.partitions < self.num_partitions).all())
        )
