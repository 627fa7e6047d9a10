"""What the target itself said in this sequence: its likeliest next tokens, by the two tokens before.

The idea of Token Recycling (arXiv 2408.08696): logits that verification computed anyway are kept for the next time
the same tokens come by. Knows one sequence's logits, nothing else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoder_client.drafting.drafter import LikelyTokens
from decoder_client.drafting.kernel import EMPTY, pair_place

FreshArrays = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]
"""A hash table: pairs [c], c a power of two, `EMPTY` where free; next tokens and probabilities [c, k] beside them."""

_FIRST_ROOM = 256


class FreshTable:
    """The latest likely tokens of each token pair seen."""

    def __init__(self) -> None:
        self._used = 0
        self.arrays: FreshArrays = _room(_FIRST_ROOM, 0)

    def add(self, likely: LikelyTokens) -> None:
        """Remembers; later ones replace earlier ones of the same pair."""
        width = likely.next_tokens.shape[1]
        if width != self.arrays[1].shape[1]:
            self._used = 0
            self.arrays = _room(_FIRST_ROOM, width)
        pairs = (likely.contexts[:, 0] << 32) | likely.contexts[:, 1]
        if 2 * (self._used + len(pairs)) > len(self.arrays[0]):
            self._enlarge(len(pairs))
        self._put(pairs, likely.next_tokens, likely.probabilities)

    def _put(
        self, pairs: NDArray[np.int64], next_tokens: NDArray[np.int64], probabilities: NDArray[np.float32]
    ) -> None:
        keys, tokens, shares = self.arrays
        for row, pair in enumerate(pairs.tolist()):
            at = pair_place(keys, pair)
            self._used += keys[at] == EMPTY
            keys[at] = pair
            tokens[at] = next_tokens[row]
            shares[at] = probabilities[row]

    def _enlarge(self, more: int) -> None:
        keys, tokens, shares = self.arrays
        used = keys != EMPTY
        room = len(keys)
        while room < 4 * (self._used + more):
            room *= 2
        self._used = 0
        self.arrays = _room(room, tokens.shape[1])
        self._put(keys[used], tokens[used], shares[used])


def _room(room: int, width: int) -> FreshArrays:
    return np.full(room, EMPTY, np.int64), np.zeros((room, width), np.int64), np.zeros((room, width), np.float32)
