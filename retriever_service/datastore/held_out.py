"""Held-out keys of one segment, with what an exact search finds for them: what recall is measured on.

They are entries like all others, but neither the codec nor the clustering was fitted to them, and a query's own entry
does not count as a neighbour. Keys are float16, as they come over the wire; the truth is that of the keys before the
codec. In a datastore whose tokens are split into lists they are stored, so that the number of lists to search can be
chosen again later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retriever_service.datastore.clustering import Arrangement
from retriever_service.datastore.errors import DatastoreError
from retriever_service.datastore.files import REBUILD_HINT, load_tensors, save_tensors
from retriever_service.datastore.layout import MAX_RECALL_NEIGHBORS

_ENTRIES_A_KEY = 500
"""One key in so many is held out: less than a byte an entry where they are stored."""
_MOST_KEYS = 1000
_FEW_KEYS = 256
"""Held out of segments where nothing is stored."""
_MOST_TIED = 4 * MAX_RECALL_NEIGHBORS
"""A key with more neighbours than this (tied with the last one wanted) tells nothing, and is left out."""
_TIE = 1e-6
_QUERIES_AT_ONCE = 16

Search = Callable[[NDArray[np.float32], NDArray[np.int64], int], NDArray[np.int64]]
"""Keys float32 [q, dims], their rows int64 [q] and neighbours wanted, to rows int64 [q, wanted], -1 for none."""


@dataclass(frozen=True, slots=True)
class Hits:
    """Of each held-out key's `wanted` true neighbours, `found` were found: int64 [q] both."""

    found: NDArray[np.int64]
    wanted: NDArray[np.int64]

    @staticmethod
    def together(parts: Sequence[Hits]) -> Hits:
        """Those of several segments, one at least."""
        return Hits(np.concatenate([part.found for part in parts]), np.concatenate([part.wanted for part in parts]))

    @property
    def recall(self) -> float:
        """The share found, over all keys; 1 where none was wanted."""
        return int(self.found.sum()) / int(self.wanted.sum()) if self.wanted.any() else 1.0

    @property
    def standard_error(self) -> float:
        """Of the recall, as other keys would give it."""
        residuals = self.found - self.recall * self.wanted
        return float(np.sqrt((residuals**2).sum()) / max(int(self.wanted.sum()), 1))


@dataclass(frozen=True, slots=True)
class HeldOut:
    """q keys with their true neighbours of the same next token.

    Attributes:
        keys: float16 [q, dims].
        rows: int64 [q], each key's own row.
        offsets: int64 [q + 1], each key's neighbours among those below.
        neighbors: int64 [m], rows, nearest first, those tied with the last one included.
        ranks: int64 [m], how many rows are nearer: a row is one of the k nearest where this is less than k.
    """

    keys: NDArray[np.float16]
    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]
    neighbors: NDArray[np.int64]
    ranks: NDArray[np.int64]

    @staticmethod
    def choose(num_entries: int, *, stored: bool, seed: int) -> NDArray[np.int64]:
        """int64 [q], ascending: the entries to hold out of a segment."""
        number = min(max(num_entries // _ENTRIES_A_KEY, 1), _MOST_KEYS) if stored else min(num_entries, _FEW_KEYS)
        return np.sort(np.random.default_rng(seed).choice(num_entries, number, replace=False))

    @classmethod
    def measure(cls, keys: NDArray[np.float32], held_out: NDArray[np.int64], arrangement: Arrangement) -> HeldOut:
        """Finds the true neighbours by exact search.

        Args:
            keys: float32 [n, dims], in the order the entries came; read token by token.
            held_out: int64 [q], entries as from `choose`.
            arrangement: of the same entries.
        """
        rows = np.flatnonzero(np.isin(arrangement.order, held_out))
        places = np.searchsorted(arrangement.entry_offsets, rows, side="right") - 1
        queries, own, found, ranks = [], [], [], []
        for place in np.unique(places).tolist():
            begin, end = arrangement.entry_offsets[place : place + 2].tolist()
            stored = keys[arrangement.order[begin:end]]
            mine = rows[places == place]
            for at in range(0, len(mine), _QUERIES_AT_ONCE):
                some = mine[at : at + _QUERIES_AT_ONCE]
                asked = stored[some - begin].astype(np.float16)
                similarities = asked.astype(np.float32) @ stored.T
                similarities[np.arange(len(some)), some - begin] = -np.inf
                for key, row, similarity in zip(asked, some.tolist(), similarities, strict=True):
                    near, rank = _nearest(similarity)
                    if 0 < len(near) <= _MOST_TIED:
                        queries.append(key)
                        own.append(row)
                        found.append(near + begin)
                        ranks.append(rank)
        none = np.zeros(0, np.int64)
        return cls(
            np.array(queries, np.float16).reshape(-1, keys.shape[1]),
            np.array(own, np.int64),
            np.cumsum([0, *map(len, found)], dtype=np.int64),
            np.concatenate([none, *found]),
            np.concatenate([none, *ranks]),
        )

    def __len__(self) -> int:
        return len(self.rows)

    def hits(self, search: Search, neighbors: int) -> Hits:
        """How many of the `neighbors` (at most `MAX_RECALL_NEIGHBORS`) nearest a search finds."""
        found = np.zeros(len(self), np.int64)
        wanted = np.minimum(np.diff(self.offsets), neighbors)
        if len(self) == 0:
            return Hits(found, wanted)
        # The query's own entry is among those found, nearly always.
        returned = search(self.keys.astype(np.float32), self.rows, neighbors + 1)
        for query, (row, answer) in enumerate(zip(self.rows.tolist(), returned, strict=True)):
            mine = slice(int(self.offsets[query]), int(self.offsets[query + 1]))
            right = self.neighbors[mine][self.ranks[mine] < neighbors]
            found[query] = int(np.isin(answer[answer != row][:neighbors], right).sum())
        return Hits(found, wanted)

    def thinned(self, number: int) -> HeldOut:
        """At most so many of the keys, from all over."""
        chosen = np.arange(0, len(self), max(-(-len(self) // number), 1))
        counts = np.diff(self.offsets)
        wanted = np.repeat(np.isin(np.arange(len(self)), chosen), counts)
        return HeldOut(
            self.keys[chosen],
            self.rows[chosen],
            np.concatenate([[0], np.cumsum(counts[chosen])]).astype(np.int64),
            self.neighbors[wanted],
            self.ranks[wanted],
        )

    def save(self, path: Path) -> None:
        """Writes the file."""
        save_tensors(
            path,
            {
                "keys": self.keys,
                "rows": self.rows.astype(np.uint32),
                "offsets": self.offsets.astype(np.uint32),
                "neighbors": self.neighbors.astype(np.uint32),
                "ranks": self.ranks.astype(np.uint8),
            },
        )

    @classmethod
    def load(cls, path: Path, *, dims: int, num_entries: int) -> HeldOut:
        """Reads the file of a segment; raises DatastoreError naming it if it is not one."""
        tensors = load_tensors(path, ("keys", "neighbors", "offsets", "ranks", "rows"))
        types = {"keys": np.float16, "rows": np.uint32, "offsets": np.uint32, "neighbors": np.uint32, "ranks": np.uint8}
        if any(
            tensors[name].dtype != kind or tensors[name].ndim != 1 + (name == "keys") for name, kind in types.items()
        ):
            raise DatastoreError(f"{path} does not hold held-out keys.", REBUILD_HINT)
        whole = {name: tensors[name].astype(np.int64) for name in types if name != "keys"}
        held_out = cls(tensors["keys"], **whole)
        if not held_out._is_consistent(dims, num_entries):
            raise DatastoreError(f"{path} does not hold consistent held-out keys.", REBUILD_HINT)
        return held_out

    def _is_consistent(self, dims: int, num_entries: int) -> bool:
        return (
            self.keys.shape == (len(self.rows), dims)
            and bool(np.isfinite(self.keys).all())
            and len(self.offsets) == len(self.rows) + 1
            and self.offsets[0] == 0
            and bool((np.diff(self.offsets) > 0).all())
            and self.offsets[-1] == len(self.neighbors) == len(self.ranks)
            and int(self.rows.max(initial=0)) < num_entries
            and int(self.neighbors.max(initial=0)) < num_entries
            and int(self.ranks.max(initial=0)) < MAX_RECALL_NEIGHBORS
        )


def _nearest(similarities: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of the nearest, ties with the last included, and how many are nearer; -inf is no neighbour."""
    number = min(MAX_RECALL_NEIGHBORS, len(similarities) - 1)
    if number < 1:
        none = np.zeros(0, np.int64)
        return none, none
    last = np.partition(similarities, len(similarities) - number)[len(similarities) - number]
    near = np.flatnonzero(similarities >= last - _TIE)
    near = near[np.argsort(-similarities[near], kind="stable")]
    falling = similarities[near]
    return near, np.searchsorted(-falling, -(falling + np.float32(_TIE)), side="left").astype(np.int64)
