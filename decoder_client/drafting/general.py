"""The datastore's token table as a source of likely next tokens, for what a pair of tokens is worth.

Knows the table's arrays only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dresd.token_table import TokenTable

# Share of the evidence against what the sources have seen that the table hands out again, fitted as `weights`.
_PAIR_SHARE = 0.76
_SINGLE_SHARE = 0.5


class GeneralTable:
    """Next tokens after a pair of tokens, else after its last token."""

    def __init__(self, table: TokenTable | None) -> None:
        """Looks up in `table`; None for a table that knows nothing."""
        self._table = table

    def lookup(
        self, previous: NDArray[np.int64], current: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
        """See `NextTokens`; probabilities are what the table is worth, a share of its own."""
        if self._table is None:
            none = np.zeros(len(current), np.bool_)
            return np.zeros((len(current), 0), np.int64), np.zeros((len(current), 0)), none
        next_tokens, probabilities, is_pair = self._table.lookup(previous, current)
        shares = np.where(is_pair, _PAIR_SHARE, _SINGLE_SHARE)
        return next_tokens.astype(np.int64), probabilities.astype(np.float64) * shares[:, None], next_tokens[:, 0] >= 0
