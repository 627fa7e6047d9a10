"""A segment in memory: the same arrays as those of a segment's files, made of entries at hand, keys as they are.

So whatever searches segments searches it too. It must not know where entries come from, nor when they are searched.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from retriever_service.datastore.clustering import arrange, suffix_order_of
from retriever_service.datastore.coded_lists import CodedLists
from retriever_service.datastore.entries import EntryBatch
from retriever_service.datastore.scanning import FLAT
from retriever_service.datastore.segment import Segment
from retriever_service.datastore.tokens import TokenDtype, pack

_BEHIND = 8
"""Bytes an entry that a list has behind its keys."""


def memory_segment(entries: EntryBatch, dtype: TokenDtype) -> Segment:
    """A segment whose tokens have one list each.

    Args:
        entries: at least one, checked.
        dtype: of stored tokens.
    """
    placed = arrange(entries.next_tokens, entries.keys, np.zeros(0, np.int64), cluster=False, seed=0)
    left_contexts = pack(entries.left_contexts, dtype)
    nothing = np.zeros(0, np.float32)
    lists = CodedLists(
        None,
        _content(np.ascontiguousarray(entries.keys[placed.order]), placed.entry_offsets),
        placed.entry_offsets,
        4 * entries.keys.shape[1],
        FLAT,
        nothing,
        nothing,
        np.zeros((0, 0, 0), np.float32),
    )
    return Segment(
        lists,
        placed.tokens,
        placed.token_lists,
        placed.entry_offsets,
        pack(entries.continuations[placed.order], dtype),
        left_contexts[placed.order],
        np.concatenate(list(suffix_order_of(left_contexts, placed))),
    )


def _content(keys: NDArray[np.float32], offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Each list's keys, and behind them the bytes where FAISS keeps ids."""
    width = 4 * keys.shape[1]
    sizes = np.diff(offsets)
    content = np.zeros(len(keys) * (width + _BEHIND), np.uint8)
    # Where a row's key begins: all keys before it, and what lies behind the lists before its own.
    begins = np.arange(len(keys)) * width + np.repeat(offsets[:-1], sizes) * _BEHIND
    content[begins[:, None] + np.arange(width)] = keys.view(np.uint8).reshape(len(keys), width)
    return content
