"""The segments that searches of an open datastore look into, and which of them an id belongs to.

A whole that is replaced and never changed, so a search that has begun ends with what it began with. It must not know
how segments are searched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dresd.draft_tree import PAD
from retriever_service.datastore.segment import Segment


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """A segment and the id of its first entry."""

    first_id: int
    segment: Segment


class Searched(NamedTuple):
    """All of them, those in memory too.

    Attributes:
        by_partition: those of each served partition.
        flat: the same, by first id.
        first_ids: int64, theirs.
    """

    by_partition: Mapping[int, tuple[OpenSegment, ...]]
    flat: list[OpenSegment]
    first_ids: NDArray[np.int64]

    @classmethod
    def of(cls, by_partition: Mapping[int, tuple[OpenSegment, ...]]) -> Searched:
        """Those of each partition."""
        flat = sorted((one for segments in by_partition.values() for one in segments), key=lambda one: one.first_id)
        return cls(by_partition, flat, np.array([one.first_id for one in flat], np.int64))

    def of_ids(self, ids: NDArray[np.int64]) -> list[tuple[OpenSegment, NDArray[np.int64]]]:
        """Each segment concerned, with the places of its ids; -1 is nobody's."""
        numbers = np.where(ids >= 0, np.searchsorted(self.first_ids, ids, side="right") - 1, -1)
        concerned = [number for number in np.unique(numbers).tolist() if number >= 0]
        return [(self.flat[number], np.flatnonzero(numbers == number)) for number in concerned]

    def continuations(self, ids: NDArray[np.int64], depth: int) -> NDArray[np.int32]:
        """int32 [m, depth]: the first tokens of continuations, `PAD` beyond their end."""
        if len(self.flat) == 1:
            return self.flat[0].segment.continuations_of(ids - self.flat[0].first_id, depth)
        paths = np.full((len(ids), depth), PAD, np.int32)
        for opened, at in self.of_ids(ids):
            paths[at] = opened.segment.continuations_of(ids[at] - opened.first_id, depth)
        return paths
