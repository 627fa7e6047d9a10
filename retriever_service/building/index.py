"""From embedded blocks to what a datastore holds: the reducer, the keys, the partitions and the token table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decoder_client.reducer import KeyReducer, ReducerError, ReducerFit
from dresd.routing import RoutingTable
from retriever_service.building.embedded import EmbeddedBlock, block_path
from retriever_service.building.entries import EntryTokens, entry_tokens
from retriever_service.building.errors import BuildError
from retriever_service.building.plan import Block
from retriever_service.building.spool import DocumentSpool
from retriever_service.datastore import (
    EntryBatch,
    SegmentRecord,
    TokenTableBuilder,
    save_token_table,
    segment_directory,
    split_entries,
    write_partition,
)


def fit_reducer(directory: Path, sample: Sequence[Block], *, hidden_size: int, dims: int) -> KeyReducer:
    """Fits the reducer on the states of the sample's blocks, then reduces those states to keys in place.

    Raises:
        BuildError: the states do not make a reducer.
    """
    fit = ReducerFit(hidden_size)
    for block in sample:
        fit.update(EmbeddedBlock.load(block_path(directory, block)).vectors)
    try:
        reducer = fit.finish(dims)
    except ReducerError as error:
        raise BuildError(f"Keys cannot be fitted: {error}. Give more and other text, or smaller --dims.") from error
    for block in sample:
        embedded = EmbeddedBlock.load(block_path(directory, block))
        keys = reducer.reduce(embedded.vectors).astype(np.float16)
        EmbeddedBlock(keys, embedded.top_tokens, embedded.top_probabilities).save(block_path(directory, block))
    return reducer


@dataclass(frozen=True, slots=True)
class Indexer:
    """Writes parts of a datastore from embedded blocks; a picklable value, for processes that share the disk.

    Attributes:
        spool: the documents.
        embedded: folder of the blocks.
        blocks: all of them.
        num_entries: of all blocks.
        continuation_length: tokens kept after an entry's next token.
    """

    spool: Path
    embedded: Path
    blocks: tuple[Block, ...]
    num_entries: int
    continuation_length: int

    def write_partition(
        self,
        datastore: Path,
        routing: RoutingTable,
        partition: int,
        *,
        codec: str,
        vocab_size: int,
        seed: int,
    ) -> SegmentRecord:
        """Writes one partition's entries; reads every block once and holds the entries of one."""
        return write_partition(
            datastore / segment_directory(partition),
            self._entries_of(routing, partition),
            codec=codec,
            vocab_size=vocab_size,
            num_entries_total=self.num_entries,
            seed=seed,
        )

    def _entries_of(self, routing: RoutingTable, partition: int) -> Iterator[EntryBatch]:
        for block, tokens in self._entries():
            ordinals = block.first_entry + np.arange(len(tokens.next_tokens))
            rows = np.flatnonzero(split_entries(routing, tokens.next_tokens, ordinals) == partition)
            keys = EmbeddedBlock.load(block_path(self.embedded, block)).vectors[rows].astype(np.float32)
            yield EntryBatch(keys, tokens.next_tokens[rows], tokens.continuations[rows], tokens.left_contexts[rows])

    def write_token_table(self, path: Path) -> None:
        """Writes what the model held likely after each token, and each pair of tokens."""
        builder = TokenTableBuilder()
        for block, tokens in self._entries():
            embedded = EmbeddedBlock.load(block_path(self.embedded, block))
            builder.add(
                tokens.left_contexts[:, 1].astype(np.int64),
                tokens.left_contexts[:, 0].astype(np.int64),
                embedded.top_tokens.astype(np.int64),
                embedded.top_probabilities,
            )
        save_token_table(path, builder.build())

    def _entries(self) -> Iterator[tuple[Block, EntryTokens]]:
        spool = DocumentSpool(self.spool)
        for block in self.blocks:
            parts = [entry_tokens(spool[number], self.continuation_length) for number in block.documents]
            yield block, EntryTokens.concatenate(parts)
