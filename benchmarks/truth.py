"""Exact search over the generator's entries, and which of a datastore's answers are right.

Entries are told apart by what is stored beside their keys: continuation and left context hold random tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retriever_service.datastore import Datastore, EntryBatch

_TIE = 1e-6


@dataclass(frozen=True, slots=True)
class Truth:
    """The nearest entries with the same next token, for each of q queries.

    Attributes:
        least: float32 [q], the similarity of the last of them.
        wanted: int64 [q], how many there are: `neighbors`, or all entries of the token.
        rows: the numbers of the entries at least as near, for each query.
    """

    least: NDArray[np.float32]
    wanted: NDArray[np.int64]
    rows: list[NDArray[np.int64]]

    @classmethod
    def of(cls, batches: Iterable[EntryBatch], queries: EntryBatch, neighbors: int) -> Truth:
        """One pass over all entries."""
        best = np.full((len(queries), neighbors), -np.inf, np.float32)
        rows = np.full((len(queries), neighbors), -1, np.int64)
        first = 0
        for batch in batches:
            similarities = queries.keys @ batch.keys.T
            similarities[queries.next_tokens[:, None] != batch.next_tokens] = -np.inf
            number = min(neighbors, len(batch))
            near = np.argpartition(-similarities, number - 1, axis=1)[:, :number]
            both = np.concatenate([best, np.take_along_axis(similarities, near, axis=1)], axis=1)
            numbers = np.concatenate([rows, near + first], axis=1)
            order = np.argsort(-both, axis=1, kind="stable")[:, :neighbors]
            best, rows = np.take_along_axis(both, order, axis=1), np.take_along_axis(numbers, order, axis=1)
            first += len(batch)
        wanted = np.isfinite(best).sum(axis=1)
        least = np.where(wanted > 0, best[np.arange(len(best)), np.maximum(wanted, 1) - 1], np.inf)
        return cls(least, wanted, [row[np.isfinite(score)] for row, score in zip(rows, best, strict=True)])

    def found(self, answers: Iterable[NDArray[np.int64]]) -> int:
        """How many of the nearest are among the answers: numbers of entries, for each query."""
        return sum(int(np.isin(right, answer).sum()) for right, answer in zip(self.rows, answers, strict=True))

    @property
    def total(self) -> int:
        """Nearest entries of all queries."""
        return int(self.wanted.sum())


class Identifier:
    """Leads from a datastore's ids to the numbers of the entries that it was made from."""

    def __init__(self, batches: Iterable[EntryBatch]) -> None:
        marks = np.concatenate([_marks(batch.continuations, batch.left_contexts) for batch in batches])
        self._order = np.argsort(marks, kind="stable")
        self._marks = marks[self._order]

    def numbers(self, store: Datastore, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [m]: the entry's number for each id."""
        stored = store.entries(ids)
        places = np.searchsorted(self._marks, _marks(stored.continuations, stored.left_contexts))
        return self._order[np.minimum(places, len(self._order) - 1)]


def _marks(continuations: NDArray[np.int32], left_contexts: NDArray[np.int32]) -> NDArray[np.uint64]:
    """uint64 [n]: a number for each entry, another for nearly every other."""
    tokens = np.concatenate([continuations, left_contexts], axis=1).astype(np.uint64)
    powers = np.cumprod(np.full(tokens.shape[1], 0x5851F42D4C957F2D, np.uint64))
    marks: NDArray[np.uint64] = (tokens * powers).sum(axis=1)
    return marks
