"""What the target itself said in this sequence: its likeliest next tokens, by the two tokens before.

The idea of Token Recycling (arXiv 2408.08696): logits that verification computed anyway are kept for the next time
the same tokens come by. Knows one sequence's logits, nothing else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoder_client.drafting.drafter import LikelyTokens


class FreshTable:
    """The latest likely tokens of each token pair seen."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._tokens = np.zeros((0, 0), np.int64)
        self._probabilities = np.zeros((0, 0))

    def add(self, likely: LikelyTokens) -> None:
        """Remembers; later ones replace earlier ones of the same pair."""
        width = likely.next_tokens.shape[1]
        if self._tokens.shape[1] != width or len(self._rows) + len(likely.contexts) > len(self._tokens):
            room = 2 * (len(self._rows) + len(likely.contexts)) + 64
            tokens, probabilities = np.zeros((room, width), np.int64), np.zeros((room, width))
            if self._rows:
                tokens[: len(self._tokens)] = self._tokens
                probabilities[: len(self._tokens)] = self._probabilities
            self._tokens, self._probabilities = tokens, probabilities
        pairs = _pairs(likely.contexts[:, 0], likely.contexts[:, 1])
        rows = [self._rows.setdefault(pair, len(self._rows)) for pair in pairs.tolist()]
        self._tokens[rows] = likely.next_tokens
        self._probabilities[rows] = likely.probabilities

    def lookup(
        self, previous: NDArray[np.int64], current: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
        """What followed each pair.

        Args:
            previous: int64 [n], -1 for none.
            current: int64 [n].

        Returns:
            next_tokens: int64 [n, k], -1 where nothing is known.
            probabilities: float64 [n, k].
            is_known: bool [n].
        """
        rows = np.array([self._rows.get(pair, -1) for pair in _pairs(previous, current).tolist()], np.int64)
        known = rows >= 0
        if not known.any():
            return np.zeros((len(rows), 0), np.int64), np.zeros((len(rows), 0)), known
        tokens = np.where(known[:, None], self._tokens[rows], -1)
        return tokens, self._probabilities[rows], known

    def probability(self, previous: int, current: int, token: int) -> float | None:
        """Of one token after a pair; None if the pair was not seen."""
        row = self._rows.get((previous << 32) | current)
        return None if row is None else float(self._probabilities[row][self._tokens[row] == token].sum())


def _pairs(previous: NDArray[np.int64], current: NDArray[np.int64]) -> NDArray[np.int64]:
    return (previous << 32) | current
