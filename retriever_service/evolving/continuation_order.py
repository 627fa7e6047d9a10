"""A datastore's entries by next token and continuation: those that draft alike lie beside each other.

Entries that share the first l tokens of their continuations are one stretch of that order; so how many tokens two
entries share is the least that any two neighbours between them share. Knows open datastores, not why it is wanted.
Memory is 12 bytes an entry, and some 200 for those of one next token while they are sorted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retriever_service.datastore import Datastore

OTHER_TOKEN = -1
"""Shared by entries whose next tokens differ."""
_SORTED_AT_ONCE = 1 << 19


@dataclass(frozen=True, slots=True)
class ContinuationOrder:
    """The n entries of a datastore in order of next token, continuation as stored (its end last), and id.

    Attributes:
        ids: int64 [n].
        shared: int16 [n], tokens (or ends) that each one's continuation shares with that of the one before, from the
            first on; `OTHER_TOKEN` where their next tokens differ, and for the first.
        lengths: int16 [n], tokens of each one's continuation.
    """

    ids: NDArray[np.int64]
    shared: NDArray[np.int16]
    lengths: NDArray[np.int16]

    @classmethod
    def of(cls, store: Datastore) -> ContinuationOrder:
        """That of all served partitions."""
        number = store.num_entries
        order = cls(np.empty(number, np.int64), np.empty(number, np.int16), np.empty(number, np.int16))
        begin = 0
        for first, last in _token_ranges(store.entries_by_token()):
            some = _sorted(store, first, last)
            end = begin + len(some.ids)
            order.ids[begin:end], order.shared[begin:end], order.lengths[begin:end] = (
                some.ids,
                some.shared,
                some.lengths,
            )
            begin = end
        return order


def _token_ranges(counts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of next tokens with so many entries together, or of one."""
    ends = np.cumsum(counts)
    first = 0
    while first < len(counts):
        before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, before + _SORTED_AT_ONCE, side="right")), first + 1)
        yield first, last
        first = last


def _sorted(store: Datastore, first: int, last: int) -> ContinuationOrder:
    """The entries with next tokens from `first` to before `last`."""
    found_ids, found_tokens, found_paths = [], [], []
    for opened in (opened for partition in store.served_partitions for opened in store.segments[partition]):
        segment = opened.segment
        begin, end = np.searchsorted(segment.tokens, [first, last]).tolist()
        rows = slice(int(segment.entry_offsets[begin]), int(segment.entry_offsets[end]))
        found_ids.append(np.arange(rows.start, rows.stop) + opened.first_id)
        found_tokens.append(np.repeat(segment.tokens[begin:end], np.diff(segment.entry_offsets[begin : end + 1])))
        found_paths.append(segment.stored_continuations[rows])
    ids, tokens, paths = (np.concatenate(found) for found in (found_ids, found_tokens, found_paths))
    order = np.lexsort((ids, *paths.T[::-1], tokens))
    ids, tokens, paths = ids[order], tokens[order], paths[order]
    shared = np.full(len(ids), OTHER_TOKEN, np.int16)
    shared[1:] = np.logical_and.accumulate(paths[1:] == paths[:-1], axis=1).sum(axis=1)
    shared[1:][tokens[1:] != tokens[:-1]] = OTHER_TOKEN
    lengths = (paths != np.iinfo(paths.dtype).max).sum(axis=1).astype(np.int16)
    return ContinuationOrder(ids, shared, lengths)
