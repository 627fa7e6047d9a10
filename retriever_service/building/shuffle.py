"""Shuffle: entries from the order of the corpus to partitions, as tasks that each read a few blocks.

A task writes one file with a section for each partition; the index of a partition reads its section of every file. No
process holds more entries than one task's. Knows documents, embedded blocks and the routing table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decoder_client.reducer import KeyReducer
from dresd.routing import RoutingTable
from retriever_service.building import blocks
from retriever_service.building.embedded import load_vectors
from retriever_service.building.entries import EntryTokens, entry_tokens
from retriever_service.building.planning import Planned
from retriever_service.datastore import EntryBatch, split_entries


def group_path(directory: Path, group: int) -> Path:
    """Where the entries of a group lie."""
    return directory / f"group-{group:06d}.block"


def commit_entries(path: Path, entries: EntryBatch, ordinals: NDArray[np.int64], routing: RoutingTable) -> None:
    """Writes entries with a section for each partition; within one they keep their order.

    Args:
        path: of the block.
        entries: n of them.
        ordinals: int64 [n], their numbers in the corpus, which spread the entries of a split token.
        routing: which partitions a token's entries belong to.
    """
    partitions = split_entries(routing, entries.next_tokens, ordinals)
    order = np.argsort(partitions, kind="stable")
    bounds = np.searchsorted(partitions[order], np.arange(routing.num_partitions + 1))
    sections = (entries.select(order[bounds[at] : bounds[at + 1]]) for at in range(routing.num_partitions))
    blocks.commit(path, *(_packed(section) for section in sections))


def entries_of(directory: Path, groups: int, partition: int) -> Iterator[EntryBatch]:
    """The entries of a partition, in order of the corpus."""
    for group in range(groups):
        arrays = blocks.unpack(blocks.load(group_path(directory, group), partition))
        yield EntryBatch(
            arrays["keys"].astype(np.float32),
            arrays["next_tokens"].astype(np.int64),
            arrays["continuations"],
            arrays["left_contexts"],
        )


def _packed(entries: EntryBatch) -> bytes:
    return blocks.pack(
        {
            "keys": entries.keys.astype(np.float16),
            "next_tokens": entries.next_tokens.astype(np.int32),
            "continuations": entries.continuations,
            "left_contexts": entries.left_contexts,
        }
    )


@dataclass(frozen=True)
class Shuffler:
    """Shuffles the groups of a plan; a picklable value for processes that share the disk.

    Attributes:
        planned: the blocks, and their documents.
        embedded: folder of the embedded blocks.
        reducer: block of the reducer, for those that were embedded before it was fitted.
        out: folder of the groups.
        routing: to partitions.
        continuation_length: tokens kept after an entry's next token.
    """

    planned: Planned
    embedded: Path
    reducer: Path
    out: Path
    routing: RoutingTable
    continuation_length: int

    def shuffle(self, group: int) -> int:
        """Commits the entries of a group; returns their number."""
        plan, documents = self.planned.load()
        tokens, keys = [], []
        for block in plan.blocks_of(group):
            tokens += [entry_tokens(documents[number], self.continuation_length) for number in plan.documents(block)]
            keys.append(self._keys(block))
        whole = EntryTokens.concatenate(tokens)
        first = int(plan.first_entries[plan.groups[group]])
        entries = EntryBatch(np.concatenate(keys), whole.next_tokens, whole.continuations, whole.left_contexts)
        commit_entries(group_path(self.out, group), entries, first + np.arange(len(entries)), self.routing)
        return len(entries)

    def _keys(self, block: int) -> NDArray[np.float32]:
        vectors = load_vectors(self.embedded, block)
        keys = vectors if vectors.dtype == np.float16 else self._reducer.reduce(vectors).astype(np.float16)
        return keys.astype(np.float32)

    @cached_property
    def _reducer(self) -> KeyReducer:
        return KeyReducer.from_bytes(blocks.load(self.reducer))
