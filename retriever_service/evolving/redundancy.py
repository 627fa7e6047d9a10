"""Which entries of a datastore are needed least: what a datastore loses with each, and an order of leaving them out.

A query near an entry is near that entry's neighbours, too. If one of them has the same next token and begins its
continuation alike, it drafts nearly what the entry would. The *worth* of such a stand-in is what it keeps of the
entry's draft: the share of tokens that agree (deeper ones count less, as fewer are reached), times the weight that a
neighbour of its similarity has in a draft.

The texts to come are like the texts that are stored, so every entry, kept or not, counts as a query. An entry is needed
for queries like itself, as far as its stand-in would serve them less; and for those whose best stand-in it is, as far
as their second best would. On held-out answers that keeps more than leaving out what has the best stand-in, and both
more than leaving out at random.

It knows open datastores; it writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dresd.draft_tree import PAD
from retriever_service.datastore import Datastore, EntryBatch, stored_entries

_NEIGHBORS = 16
_MOST_NEIGHBORS = 128
_REACHED = 0.6
"""Of the draft tokens that are reached, so many are accepted, about; then the next is reached."""
_TEMPERATURE = 0.1
"""Of similarities, as in drafts."""
_MOST_AT_ONCE = 0.25
"""Of what is kept, left out before stand-ins are looked for anew."""
_QUERIES_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class StandIns:
    """The best stand-in of each of n entries, kept or not, among those that are kept.

    Attributes:
        entries: int64 [n], -1 for none.
        worth: float32 [n], 0 to 1.
        second: float32 [n], the worth of the second best.
        near_duplicates: bool [n], the stand-in has an equal continuation and a similarity of the threshold or more.
    """

    entries: NDArray[np.int64]
    worth: NDArray[np.float32]
    second: NDArray[np.float32]
    near_duplicates: NDArray[np.bool_]


def choose(
    store: Datastore, max_entries: int, *, similarity: float, unseen: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], int]:
    """Chooses at most `max_entries` entries: near-duplicates go first, then those that are needed least.

    What stands in for an entry left out stays until stand-ins are looked for anew, among what is left.

    Args:
        store: open with all its partitions.
        max_entries: at least 0.
        similarity: of near-duplicates' keys, at least.
        unseen: int64 [m], entries that have no part in it.

    Returns:
        kept: bool [n].
        near_duplicates: how many were left out as such.
    """
    kept = np.ones(store.num_entries, np.bool_)
    kept[unseen] = False
    queries = kept.copy()
    near_duplicates, neighbors = 0, _NEIGHBORS
    while (surplus := int(kept.sum()) - max_entries) > 0:
        found = stand_ins(store, kept, queries, neighbors=neighbors, similarity=similarity)
        dropped = _independent(found, kept, min(surplus, max(int(_MOST_AT_ONCE * kept.sum()), 1)))
        kept[dropped] = False
        near_duplicates += int(found.near_duplicates[dropped].sum())
        # Among the nearest, ever more are gone.
        neighbors = min(2 * neighbors, _MOST_NEIGHBORS)
    return kept, near_duplicates


def stand_ins(
    store: Datastore, kept: NDArray[np.bool_], queries: NDArray[np.bool_], *, neighbors: int, similarity: float
) -> StandIns:
    """Looks among the nearest `neighbors` of every one of `queries`, a mask of entries as `kept`."""
    entries = np.full(store.num_entries, -1, np.int64)
    worth, second = np.zeros(store.num_entries, np.float32), np.zeros(store.num_entries, np.float32)
    near_duplicates = np.zeros(store.num_entries, np.bool_)
    for ids, batch in _queries(store, queries):
        near = store.search(batch.keys, batch.next_tokens, neighbors=neighbors + 1)
        usable = (near.ids >= 0) & (near.ids != ids[:, None])
        usable[usable] &= kept[near.ids[usable]]
        mine = batch.continuations
        theirs = np.full((*near.ids.shape, mine.shape[1]), PAD, np.int32)
        theirs[usable] = store.entries(near.ids[usable]).continuations
        weights = np.exp((np.minimum(near.similarities, 1.0) - 1.0) / _TEMPERATURE)
        value = np.where(usable, _alike(mine, theirs) * weights, 0.0)
        duplicates = usable & (near.similarities >= similarity) & (theirs == mine[:, None]).all(axis=2)
        # A near-duplicate comes before every other stand-in, whatever that one's worth.
        order = np.argsort(-(value + duplicates), axis=1, kind="stable")[:, :2]
        rows = np.arange(len(ids))
        best, next_best = order[:, 0], order[:, -1]
        entries[ids] = np.where(usable[rows, best], near.ids[rows, best], -1)
        worth[ids] = value[rows, best]
        second[ids] = np.where(best == next_best, 0.0, value[rows, next_best])
        near_duplicates[ids] = duplicates[rows, best]
    return StandIns(entries, worth, second, near_duplicates)


def _queries(store: Datastore, wanted: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.int64], EntryBatch]]:
    """Entries some at a time, with their ids."""
    for segments in store.segments.values():
        for opened in segments:
            for begin in range(0, len(opened.segment), _QUERIES_AT_ONCE):
                rows = np.arange(begin, min(begin + _QUERIES_AT_ONCE, len(opened.segment)))
                rows = rows[wanted[rows + opened.first_id]]
                if len(rows) > 0:
                    yield rows + opened.first_id, stored_entries(opened.segment, rows)


def _alike(mine: NDArray[np.int32], theirs: NDArray[np.int32]) -> NDArray[np.float64]:
    """float64 [b, k]: what continuations [b, k, N] keep of others' [b, N]; of one without tokens all of it."""
    agrees = np.logical_and.accumulate((theirs == mine[:, None]) | (mine == PAD)[:, None], axis=2)
    weights = np.where(mine == PAD, 0.0, _REACHED ** np.arange(mine.shape[1]))
    whole = weights.sum(axis=1)
    kept = np.einsum("bkn,bn->bk", agrees, weights)
    return np.where(whole[:, None] > 0, kept / np.maximum(whole, 1e-9)[:, None], 1.0)


def _independent(found: StandIns, kept: NDArray[np.bool_], wanted: int) -> NDArray[np.int64]:
    """At most `wanted` entries to leave out, those needed least first, none of which is another's stand-in."""
    served = found.entries >= 0
    gain = np.maximum(found.worth - found.second, 0.0)[served]
    needed = 1.0 - found.worth + np.bincount(found.entries[served], gain, minlength=len(kept))
    able = np.flatnonzero(kept)
    order = able[np.lexsort((able, needed[able], ~found.near_duplicates[able]))]
    gone, stays = np.zeros(len(kept), np.bool_), np.zeros(len(kept), np.bool_)
    dropped = []
    for entry, by in zip(order.tolist(), found.entries[order].tolist(), strict=True):
        if stays[entry] or (by >= 0 and gone[by]):
            continue
        gone[entry] = True
        if by >= 0:
            stays[by] = True
        dropped.append(entry)
        if len(dropped) == wanted:
            break
    return np.array(dropped, np.int64)
