"""The token table of joined datastores: their tables averaged, each by the positions it was averaged over.

A table does not say how many those were; the datastore's entries do, since every stored position gave both an entry and
its part of the table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dresd.draft_tree import PAD
from dresd.token_table import TokenTable, pair_numbers
from retriever_service.datastore import Datastore, TokenTableBuilder

_ROWS_AT_ONCE = 1 << 18
_LEAST_PAIR_COUNT = 2
"""A pair in a table was seen so often at least, whatever entries were dropped since."""


def joined_tables(sources: Sequence[Datastore]) -> TokenTable:
    """The table of all sources together; of one source, its own."""
    if len(sources) == 1:
        return sources[0].token_table
    builder = TokenTableBuilder()
    for source in sources:
        builder.add_table(source.token_table, *table_counts(source))
    return builder.build()


def table_counts(store: Datastore) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many positions each token and each pair of a datastore's table was averaged over: int64 [u] and [p]."""
    table = store.token_table
    tokens = np.zeros(store.manifest.model.vocab_size, np.int64)
    pairs = np.zeros(len(table.pairs), np.int64)
    for segments in store.segments.values():
        for opened in segments:
            for begin in range(0, len(opened.segment), _ROWS_AT_ONCE):
                rows = np.arange(begin, min(begin + _ROWS_AT_ONCE, len(opened.segment)))
                recent = opened.segment.left_contexts_of(rows, 2).astype(np.int64)
                current, previous = recent[:, 0], recent[:, 1]
                tokens += np.bincount(current[current != PAD], minlength=len(tokens))
                numbers = pair_numbers(previous, current)[(current != PAD) & (previous != PAD)]
                if len(pairs) > 0:
                    places = np.minimum(np.searchsorted(table.pairs, numbers), len(pairs) - 1)
                    pairs += np.bincount(places[table.pairs[places] == numbers], minlength=len(pairs))
    return np.maximum(tokens[table.unigram_tokens], 1), np.maximum(pairs, _LEAST_PAIR_COUNT)
