"""Which entries of a datastore are needed least: what a datastore loses with each, and an order of leaving them out.

A query near an entry is near that entry's neighbours, too. If one of them has the same next token and begins its
continuation alike, it drafts nearly what the entry would. The *worth* of such a stand-in is what it keeps of the
entry's draft: the share of tokens that agree (deeper ones count less, as fewer are reached), times the weight that a
neighbour of its similarity has in a draft.

The texts to come are like the texts that are stored, so every entry, kept or not, counts as a query. An entry is needed
for queries like itself, as far as its stand-in would serve them less; and for those whose best stand-in it is, as far
as their second best would. On held-out answers that keeps more than leaving out what has the best stand-in, and both
more than leaving out at random.

Stand-ins have the next token and the first token of a continuation in common, so they are looked for in the order of
continuations, some entries at a time and on all cores; what is found depends on neither. Memory is some 70 bytes an
entry. It knows open datastores; it writes nothing.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dresd.compiled import warm
from retriever_service.datastore import Datastore, keys_by_id
from retriever_service.evolving.continuation_order import OTHER_TOKEN, ContinuationOrder
from retriever_service.evolving.standing_in import best_two, independent

_REACHED = 0.6
"""Of the draft tokens that are reached, so many are accepted, about; then the next is reached."""
_TEMPERATURE = 0.1
"""Of similarities, as in drafts."""
_MOST_AT_ONCE = 0.25
"""Of what is kept, left out before stand-ins are looked for anew."""
_MOST_CANDIDATES = 2048
"""Looked at for an entry, those first that share most tokens with it."""
_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class StandIns:
    """The two best stand-ins of each of n entries, kept or not, among those that are kept.

    Attributes:
        entries: int64 [n, 2], -1 for none.
        worths: float32 [n, 2], 0 to 1.
        near_duplicates: bool [n], the best has an equal continuation and a similarity of the threshold or more; such a
            one comes before all others, whatever their worth.
    """

    entries: NDArray[np.int64]
    worths: NDArray[np.float32]
    near_duplicates: NDArray[np.bool_]

    @classmethod
    def none(cls, number: int) -> StandIns:
        """Of so many entries, before any is looked for."""
        return cls(np.full((number, 2), -1, np.int64), np.zeros((number, 2), np.float32), np.zeros(number, np.bool_))


def choose(
    store: Datastore, max_entries: int, *, similarity: float, unseen: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], int]:
    """Chooses at most `max_entries` entries: near-duplicates go first, then those that are needed least.

    What stands in for an entry left out stays until stand-ins are looked for anew, among what is left.

    Args:
        store: all partitions of it.
        max_entries: at least 0.
        similarity: cosine from which keys with equal next token and continuation are near-duplicates.
        unseen: ids that are neither kept nor left out: as if the datastore had them not.

    Returns:
        kept: bool [n].
        near_duplicates: how many were left out as such.
    """
    kept = np.ones(store.num_entries, np.bool_)
    kept[unseen] = False
    if int(kept.sum()) <= max_entries:
        return kept, 0
    search = StandInSearch(store, similarity=similarity)
    found = StandIns.none(store.num_entries)
    asked: NDArray[np.bool_] = kept.copy()
    near_duplicates = 0
    while (surplus := int(kept.sum()) - max_entries) > 0:
        search.update(found, kept, asked)
        dropped = _needed_least(found, kept, min(surplus, max(int(_MOST_AT_ONCE * kept.sum()), 1)))
        kept[dropped] = False
        near_duplicates += int(found.near_duplicates[dropped].sum())
        # The others' best are still the best.
        asked = np.any((found.entries >= 0) & ~kept[found.entries], axis=1)
    return kept, near_duplicates


class StandInSearch:
    """Looks for stand-ins in a datastore."""

    def __init__(self, store: Datastore, *, similarity: float) -> None:
        """Args:
        store: all partitions of it.
        similarity: of near-duplicates.
        """
        self._store = store
        self._order = ContinuationOrder.of(store)
        self._similarity = similarity
        self._depth = store.manifest.continuation_length
        self._kept_of = _kept_of(self._depth)
        warm(partial(self._best_two, *_nothing(store.manifest.key_recipe.dims)))

    def update(self, found: StandIns, kept: NDArray[np.bool_], asked: NDArray[np.bool_]) -> None:
        """Looks anew for the stand-ins of those asked for, among those kept: bool [n] both, by id."""
        kept_there, asked_there = kept[self._order.ids], asked[self._order.ids]
        kept_places = np.flatnonzero(kept_there)
        stretches = range(0, len(kept), _AT_ONCE)

        def look(begin: int) -> None:
            self._look(found, kept_there, asked_there, kept_places, begin)

        with ThreadPoolExecutor(max_workers=os.cpu_count()) as threads:
            for _ in threads.map(look, stretches):
                pass

    def _look(
        self,
        found: StandIns,
        kept: NDArray[np.bool_],
        asked: NDArray[np.bool_],
        kept_places: NDArray[np.int64],
        begin: int,
    ) -> None:
        """For those asked for from a place in the order on; the masks are by place."""
        end = min(begin + _AT_ONCE, len(kept))
        wanted = np.flatnonzero(asked[begin:end]) + begin
        if len(wanted) == 0:
            return
        first, last = np.searchsorted(kept_places, [begin, end]).tolist()
        around = kept_places[max(first - _MOST_CANDIDATES, 0) : last + _MOST_CANDIDATES]
        places = np.union1d(around, wanted)
        shared = np.full(len(places), OTHER_TOKEN, np.int16)
        if len(places) > 1:
            # Between two of them, the least that any two neighbours share.
            shared[1:] = np.minimum.reduceat(self._order.shared[: places[-1] + 1], places[:-1] + 1)
        ids = self._order.ids[places]
        near, worths, near_duplicates = self._best_two(
            keys_by_id(self._store, ids),
            shared,
            self._order.lengths[places],
            kept[places],
            np.searchsorted(places, wanted),
        )
        mine = self._order.ids[wanted]
        found.entries[mine] = np.where(near >= 0, ids[near], -1)
        found.worths[mine] = worths
        found.near_duplicates[mine] = near_duplicates

    def _best_two(
        self,
        keys: NDArray[np.float32],
        shared: NDArray[np.int16],
        lengths: NDArray[np.int16],
        kept: NDArray[np.bool_],
        asked: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.bool_]]:
        """See `standing_in.best_two`."""
        found: tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.bool_]] = best_two(
            keys, shared, lengths, kept, asked, self._depth, self._kept_of, _TEMPERATURE, self._similarity,
            _MOST_CANDIDATES,
        )  # fmt: skip
        return found


def _kept_of(depth: int) -> NDArray[np.float64]:
    """float64 [depth + 1, depth + 1]: what is kept of a draft of l tokens by one that begins with s of them; [l, s]."""
    reached = np.cumsum([0.0, *(_REACHED ** np.arange(depth))])
    lengths = np.arange(depth + 1)[:, None]
    kept: NDArray[np.float64] = reached[np.minimum(lengths, lengths.T)] / np.maximum(reached[lengths], 1.0)
    kept[0] = 1.0  # nothing to keep
    return kept


def _nothing(
    dims: int,
) -> tuple[NDArray[np.float32], NDArray[np.int16], NDArray[np.int16], NDArray[np.bool_], NDArray[np.int64]]:
    """A search among no entries."""
    none = np.zeros(0, np.int16)
    return np.zeros((0, dims), np.float32), none, none, np.zeros(0, np.bool_), np.zeros(0, np.int64)


def _needed_least(found: StandIns, kept: NDArray[np.bool_], wanted: int) -> NDArray[np.int64]:
    """At most `wanted` entries to leave out, those needed least first, none of which is another's stand-in."""
    best, served = found.entries[:, 0], found.entries[:, 0] >= 0
    gain = np.maximum(found.worths[:, 0] - found.worths[:, 1], 0.0)[served]
    needed = 1.0 - found.worths[:, 0] + np.bincount(best[served], gain, minlength=len(kept))
    able = np.flatnonzero(kept)
    order = able[np.lexsort((able, needed[able], ~found.near_duplicates[able]))]
    dropped: NDArray[np.int64] = independent(order, np.ascontiguousarray(best), wanted)
    return dropped
