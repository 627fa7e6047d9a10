"""The datastore's token table as the arrays that compiled code reads.

Knows arrays only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dresd.token_table import TokenTable, pair_numbers

TableArrays = tuple[
    NDArray[np.int64],
    NDArray[np.int32],
    NDArray[np.float32],
    NDArray[np.int64],
    NDArray[np.int32],
    NDArray[np.float32],
]
"""Pairs ascending [p], their next tokens and probabilities [p, k]; the same of single tokens [u]."""


def table_arrays(table: TokenTable) -> TableArrays:
    """Those of `table`."""
    return (
        pair_numbers(table.pair_tokens[:, 0], table.pair_tokens[:, 1]),
        np.ascontiguousarray(table.pair_next_tokens),
        table.pair_probabilities.astype(np.float32),
        table.unigram_tokens.astype(np.int64),
        np.ascontiguousarray(table.unigram_next_tokens),
        table.unigram_probabilities.astype(np.float32),
    )
