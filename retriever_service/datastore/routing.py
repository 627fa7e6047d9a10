"""Which partitions hold the entries of a next token, and how they are spread at build time.

It must not know what an entry is, nor where a partition is served.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retriever_service.datastore.errors import DatastoreError
from retriever_service.datastore.files import REBUILD_HINT, load_tensors, save_tensors


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

    @classmethod
    def assign(cls, token_counts: NDArray[np.int64], num_partitions: int) -> RoutingTable:
        """Spreads the tokens over partitions of about equal entry counts.

        Largest tokens first, each to the emptiest partition; a token heavier than a fair share (all entries divided
        by the partitions) goes to as many partitions as it fills fair shares.

        Args:
            token_counts: int64 [vocab], entries of each next token.
            num_partitions: P, at least 1.
        """
        if num_partitions < 1:
            raise ValueError("num_partitions must be at least 1")
        counts = np.asarray(token_counts, np.int64)
        tokens = np.flatnonzero(counts).astype(np.int64)
        pieces = np.minimum(-(-counts[tokens] * num_partitions // max(int(counts.sum()), 1)), num_partitions)
        offsets = np.concatenate([[0], np.cumsum(pieces)]).astype(np.int64)
        partitions = np.zeros(int(offsets[-1]), np.int64)
        loads = [(0.0, partition) for partition in range(num_partitions)]
        for row in np.lexsort((tokens, -counts[tokens])).tolist():
            number = int(pieces[row])
            emptiest = [heapq.heappop(loads) for _ in range(number)]
            share = float(counts[tokens[row]]) / number
            for load, partition in emptiest:
                heapq.heappush(loads, (load + share, partition))
            partitions[offsets[row] : offsets[row + 1]] = sorted(partition for _, partition in emptiest)
        return cls(num_partitions, tokens, offsets, partitions)

    def partitions_of(self, token: int) -> NDArray[np.int64]:
        """int64 [m]: the partitions of one token, none for a token without entries."""
        return self.lookup(np.array([token], np.int64))[1]

    def lookup(self, next_tokens: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The partitions that each query concerns, as pairs.

        Returns:
            queries: int64 [m], rows of `next_tokens`, ascending; a token of several partitions appears several times.
            partitions: int64 [m].
        """
        if len(self.tokens) == 0:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        rows = np.minimum(np.searchsorted(self.tokens, next_tokens), len(self.tokens) - 1)
        known = self.tokens[rows] == next_tokens
        numbers = np.where(known, self.offsets[rows + 1] - self.offsets[rows], 0)
        queries = np.repeat(np.arange(len(next_tokens)), numbers)
        nth = np.arange(len(queries)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
        return queries, self.partitions[self.offsets[rows[queries]] + nth]

    def split(self, next_tokens: NDArray[np.int64], ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        """The partition of each entry.

        Args:
            next_tokens: int64 [n].
            ordinals: int64 [n], each entry's number in the corpus: spreads the entries of a split token evenly, and
                the same way every time.

        Returns:
            int64 [n].

        Raises:
            ValueError: for a token the table does not hold.
        """
        if len(next_tokens) == 0:
            return np.zeros(0, np.int64)
        rows: NDArray[np.int64] = np.minimum(np.searchsorted(self.tokens, next_tokens), max(len(self.tokens) - 1, 0))
        if len(self.tokens) == 0 or (self.tokens[rows] != next_tokens).any():
            raise ValueError("next_tokens holds a token that the routing table was not made for")
        numbers = (self.offsets[rows + 1] - self.offsets[rows]).astype(np.uint64)
        nth: NDArray[np.int64] = (_scramble(ordinals) % numbers).astype(np.int64)
        at: NDArray[np.int64] = self.offsets[rows] + nth
        return self.partitions[at]

    def save(self, path: Path) -> None:
        """Writes the table as safetensors, uint32 as on the wire."""
        tensors = {name: getattr(self, name).astype(np.uint32) for name in ("tokens", "offsets", "partitions")}
        save_tensors(path, {**tensors, "num_partitions": np.array([self.num_partitions], np.uint32)})

    @classmethod
    def load(cls, path: Path) -> RoutingTable:
        """Reads a table; raises DatastoreError naming the file if it is not one."""
        tensors = load_tensors(path, ("num_partitions", "offsets", "partitions", "tokens"))
        if any(tensor.dtype != np.uint32 or tensor.ndim != 1 for tensor in tensors.values()):
            raise DatastoreError(f"{path} does not hold a routing table.", REBUILD_HINT)
        number = tensors["num_partitions"].tolist()
        table = cls(
            number[0] if len(number) == 1 else 0,
            tensors["tokens"].astype(np.int64),
            tensors["offsets"].astype(np.int64),
            tensors["partitions"].astype(np.int64),
        )
        if not table._is_consistent():
            raise DatastoreError(f"{path} does not hold a consistent routing table.", REBUILD_HINT)
        return table

    def _is_consistent(self) -> bool:
        return (
            self.num_partitions >= 1
            and len(self.offsets) == len(self.tokens) + 1
            and self.offsets[0] == 0
            and self.offsets[-1] == len(self.partitions)
            and bool((np.diff(self.offsets) > 0).all())
            and bool((np.diff(self.tokens) > 0).all())
            and bool((self.partitions < self.num_partitions).all())
        )


def _scramble(ordinals: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The splitmix64 finaliser: neighbouring ordinals become unrelated numbers."""
    mixed: NDArray[np.uint64] = ordinals.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
