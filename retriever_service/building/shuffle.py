"""Shuffle: entries from the order of the corpus to partitions, as tasks that each read a few blocks.

A task writes one file with a section for each partition; the index of a partition reads its section of every file. No
process holds more entries than one task's. Knows documents, embedded blocks and the routing table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder_client.reducer import KeyReducer
from dresd.routing import RoutingTable
from retriever_service.building import blocks
from retriever_service.building.embedded import load_vectors
from retriever_service.building.entries import entry_tokens
from retriever_service.building.planning import Planned
from retriever_service.datastore import EntryBatch, split_entries, token_dtype
from retriever_service.datastore.tokens import pack, unpack


def group_path(directory: Path, group: int) -> Path:
    """Where the entries of a group lie."""
    return directory / f"group-{group:06d}.block"


def entries_of(directory: Path, groups: int, partition: int) -> Iterator[EntryBatch]:
    """The entries of a partition, in order of the corpus."""
    for group in range(groups):
        arrays = blocks.unpack(blocks.load(group_path(directory, group), partition))
        yield EntryBatch(
            arrays["keys"].astype(np.float32),
            arrays["next_tokens"].astype(np.int64),
            unpack(arrays["continuations"]),
            unpack(arrays["left_contexts"]),
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
        """Commits the entries of a group, in order of the corpus within each partition; returns their number."""
        plan, documents = self.planned.load()
        some = plan.blocks_of(group)
        keys = np.concatenate([self._keys(block) for block in some])
        numbers = [number for block in some for number in plan.documents(block).tolist()]
        tokens = entry_tokens([documents[number] for number in numbers], self.continuation_length)
        # Counted in the corpus, so that the entries of a split token are spread the same way whatever the groups.
        ordinals = int(plan.first_entries[plan.groups[group]]) + np.arange(len(keys))
        partitions = split_entries(self.routing, tokens.next_tokens.astype(np.int64), ordinals)
        order = np.argsort(partitions, kind="stable")
        bounds = np.searchsorted(partitions[order], np.arange(self.routing.num_partitions + 1))
        arrays = {
            "keys": keys,
            "next_tokens": tokens.next_tokens,
            "continuations": _packed(tokens.continuations),
            "left_contexts": _packed(tokens.left_contexts),
        }
        sections = (
            blocks.pack({name: array[order[begin:end]] for name, array in arrays.items()})
            for begin, end in pairwise(bounds.tolist())
        )
        blocks.commit(group_path(self.out, group), *sections)
        return len(keys)

    def _keys(self, block: int) -> NDArray[np.float16]:
        vectors = load_vectors(self.embedded, block)
        keys = vectors if vectors.dtype == np.float16 else self._reducer.reduce(vectors)
        return keys.astype(np.float16, copy=False)

    @cached_property
    def _reducer(self) -> KeyReducer:
        return KeyReducer.from_bytes(blocks.load(self.reducer))


def _packed(tokens: NDArray[np.int32]) -> NDArray[Any]:
    return pack(tokens, token_dtype(int(tokens.max(initial=0)) + 1))
