"""How next tokens and their entries are spread over partitions at build time, and the table's file.

It must not know what an entry is, nor where a partition is served.
"""

from __future__ import annotations

import heapq
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dresd.routing import RoutingTable
from retriever_service.datastore.errors import DatastoreError
from retriever_service.datastore.files import REBUILD_HINT, load_tensors, save_tensors


def assign_tokens(token_counts: NDArray[np.int64], num_partitions: int) -> RoutingTable:
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
    return RoutingTable(num_partitions, tokens, offsets, partitions)


def split_entries(
    table: RoutingTable, next_tokens: NDArray[np.int64], ordinals: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The partition of each entry.

    Args:
        table: made by `assign_tokens`.
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
    rows: NDArray[np.int64] = np.minimum(np.searchsorted(table.tokens, next_tokens), max(len(table.tokens) - 1, 0))
    if len(table.tokens) == 0 or (table.tokens[rows] != next_tokens).any():
        raise ValueError("next_tokens holds a token that the routing table was not made for")
    numbers = (table.offsets[rows + 1] - table.offsets[rows]).astype(np.uint64)
    nth: NDArray[np.int64] = (_scramble(ordinals) % numbers).astype(np.int64)
    at: NDArray[np.int64] = table.offsets[rows] + nth
    return table.partitions[at]


def routing_of_all(table: RoutingTable, vocab_size: int) -> RoutingTable:
    """The table with a partition for every token below `vocab_size`: of those it lacks, the token modulo P."""
    missing = np.setdiff1d(np.arange(vocab_size), table.tokens)
    numbers = np.ones(vocab_size, np.int64)
    numbers[table.tokens] = np.diff(table.offsets)
    partitions = np.empty(int(numbers.sum()), np.int64)
    offsets = np.concatenate([[0], np.cumsum(numbers)]).astype(np.int64)
    is_new = np.zeros(vocab_size, np.bool_)
    is_new[missing] = True
    of_new = np.repeat(is_new, numbers)
    partitions[of_new] = missing % table.num_partitions
    partitions[~of_new] = table.partitions
    return RoutingTable(table.num_partitions, np.arange(vocab_size, dtype=np.int64), offsets, partitions)


def save_routing(table: RoutingTable, path: Path) -> None:
    """Writes the table as safetensors, uint32 as on the wire."""
    tensors = {name: getattr(table, name).astype(np.uint32) for name in ("tokens", "offsets", "partitions")}
    save_tensors(path, {**tensors, "num_partitions": np.array([table.num_partitions], np.uint32)})


def load_routing(path: Path) -> RoutingTable:
    """Reads a table; raises DatastoreError naming the file if it is not one."""
    tensors = load_tensors(path, ("num_partitions", "offsets", "partitions", "tokens"))
    if any(tensor.dtype != np.uint32 or tensor.ndim != 1 for tensor in tensors.values()):
        raise DatastoreError(f"{path} does not hold a routing table.", REBUILD_HINT)
    number = tensors["num_partitions"].tolist()
    table = RoutingTable(
        number[0] if len(number) == 1 else 0,
        tensors["tokens"].astype(np.int64),
        tensors["offsets"].astype(np.int64),
        tensors["partitions"].astype(np.int64),
    )
    if not table.is_consistent():
        raise DatastoreError(f"{path} does not hold a consistent routing table.", REBUILD_HINT)
    return table


def _scramble(ordinals: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The splitmix64 finaliser: neighbouring ordinals become unrelated numbers."""
    mixed: NDArray[np.uint64] = ordinals.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
