"""Which documents are embedded, in which order and in which blocks. Knows their sizes and identities only.

Equal documents are embedded once. The first blocks are a sample of documents drawn uniformly, for the reducer. The
rest follows the corpus, but within a window of it documents are ordered by length, so that a batch of neighbours needs
hardly any padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Small blocks share the work evenly and lose little when a worker dies; large ones keep files few.
_BLOCKS_WANTED = 128
_MIN_BLOCK_TOKENS = 2048
_MAX_BLOCK_TOKENS = 131_072
_MAX_SAMPLE_BLOCK_TOKENS = 8192
"""Less: their hidden states are kept."""
_WINDOW_TOKENS = 1 << 21
_GROUP_ENTRIES = 1 << 18
_HASHES_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True)
class Plan:
    """All blocks of n documents.

    Attributes:
        order: int64 [n], numbers of documents in the order of work.
        offsets: int64 [blocks + 1], where each block begins in that order.
        first_entries: int64 [blocks + 1], entries before each block.
        tokens: int64 [blocks], of each block.
        groups: int64 [groups + 1], the first block of each group of about as many entries as one task shuffles.
        sample_blocks: the first so many are the sample.
    """

    order: NDArray[np.int64]
    offsets: NDArray[np.int64]
    first_entries: NDArray[np.int64]
    tokens: NDArray[np.int64]
    groups: NDArray[np.int64]
    sample_blocks: int

    @property
    def num_blocks(self) -> int:
        """Of the sample, and of the rest."""
        return len(self.tokens)

    def documents(self, block: int) -> NDArray[np.int64]:
        """int64 [m]: the documents of a block."""
        return self.order[self.offsets[block] : self.offsets[block + 1]]

    def blocks_of(self, group: int) -> range:
        """The blocks of a group."""
        return range(int(self.groups[group]), int(self.groups[group + 1]))


def make_plan(
    lengths: NDArray[np.int64],
    entries: NDArray[np.int64],
    kept: NDArray[np.bool_],
    *,
    sample_entries: int,
    seed: int,
    block_documents: int | None = None,
) -> Plan:
    """Orders documents and cuts them into blocks.

    Args:
        lengths: int64 [documents], tokens.
        entries: int64 [documents].
        kept: bool [documents], those that are wanted.
        sample_entries: wanted in the sample; fewer if the corpus has fewer.
        seed: of the sample.
        block_documents: documents of a block; None for blocks by tokens.
    """
    wanted = np.flatnonzero(kept)
    drawn = np.random.default_rng(seed).permutation(wanted)
    enough = int(np.searchsorted(np.cumsum(entries[drawn]), sample_entries)) + 1 if sample_entries else 0
    in_sample = np.zeros(len(lengths), np.bool_)
    in_sample[drawn[:enough]] = True
    size = int(np.clip(lengths[wanted].sum() // _BLOCKS_WANTED, _MIN_BLOCK_TOKENS, _MAX_BLOCK_TOKENS))
    parts = [
        (wanted[in_sample[wanted]], min(size, _MAX_SAMPLE_BLOCK_TOKENS)),
        (wanted[~in_sample[wanted]], size),
    ]
    order = [_by_length(numbers, lengths) for numbers, _ in parts]
    sizes = [_blocks(lengths[numbers], most, block_documents) for numbers, (_, most) in zip(order, parts, strict=True)]
    whole = np.concatenate(order)
    offsets = np.cumsum(np.concatenate([[0], *sizes])).astype(np.int64)
    first_entries = np.concatenate([[0], np.cumsum(entries[whole])])[offsets]
    tokens = np.diff(np.concatenate([[0], np.cumsum(lengths[whole])])[offsets])
    groups = _starts(np.diff(first_entries), _GROUP_ENTRIES)
    return Plan(whole, offsets, first_entries, tokens, groups, len(sizes[0]))


def first_of_equals(hashes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """bool [n]: whether no document before has the same identity.

    Args:
        hashes: uint8 [n, 16], looked at in parts, so that sorting takes little memory.
    """
    first = np.zeros(len(hashes), np.bool_)
    pairs = np.ascontiguousarray(hashes).view(np.dtype([("high", ">u8"), ("low", ">u8")]))[:, 0]
    parts = -(-len(hashes) // _HASHES_AT_ONCE)
    for part in range(parts):
        mine = np.flatnonzero(pairs["low"] % np.uint64(parts) == part) if parts > 1 else np.arange(len(hashes))
        first[mine[np.unique(pairs[mine], return_index=True)[1]]] = True
    return first


def _by_length(numbers: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Windows in order, the longest documents of each first."""
    windows = np.cumsum(lengths[numbers]) // _WINDOW_TOKENS
    return numbers[np.lexsort((numbers, -lengths[numbers], windows))]


def _blocks(lengths: NDArray[np.int64], most_tokens: int, documents: int | None) -> NDArray[np.int64]:
    """int64 [blocks]: how many consecutive documents each holds."""
    if documents is None:
        return np.diff(_starts(lengths, most_tokens))
    return np.diff(np.append(np.arange(0, len(lengths), documents), len(lengths)))


def _starts(sizes: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """int64 [parts + 1]: where parts of consecutive items begin whose sum is at most `most`, or that are one item."""
    ends = np.cumsum(sizes)
    starts = [0]
    while starts[-1] < len(sizes):
        before = int(ends[starts[-1] - 1]) if starts[-1] else 0
        starts.append(max(int(np.searchsorted(ends, before + most, side="right")), starts[-1] + 1))
    return np.array(starts, np.int64)
