"""Likely next tokens after a token, and after a pair of tokens, by the target model's own probabilities.

The idea of Token Recycling (arXiv 2408.08696), precomputed while a datastore is built; a decoder gets the table at its
handshake. This module reads a table and looks tokens up in it; it must not know files, messages or how one is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from dresd.draft_tree import PAD

WIDTH = 8
"""Next tokens kept after each token or pair."""

UNIGRAM_ARRAYS = ("unigram_tokens", "unigram_next_tokens", "unigram_probabilities")
PAIR_ARRAYS = ("pair_tokens", "pair_next_tokens", "pair_probabilities")
_DTYPES = (np.int32, np.int32, np.float16) * 2


class TokenTableError(Exception):
    """Bytes that are no token table; the message goes on after "it": "holds the arrays ..."."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Next tokens by decreasing probability, `PAD` and 0 where fewer than `WIDTH` are known.

    Attributes:
        unigram_tokens: int32 [u], ascending.
        unigram_next_tokens: int32 [u, WIDTH].
        unigram_probabilities: float16 [u, WIDTH].
        pair_tokens: int32 [p, 2], (previous, current), in ascending order.
        pair_next_tokens: int32 [p, WIDTH].
        pair_probabilities: float16 [p, WIDTH].
    """

    unigram_tokens: NDArray[np.int32]
    unigram_next_tokens: NDArray[np.int32]
    unigram_probabilities: NDArray[np.float16]
    pair_tokens: NDArray[np.int32]
    pair_next_tokens: NDArray[np.int32]
    pair_probabilities: NDArray[np.float16]
    _pairs: NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pairs", pair_numbers(self.pair_tokens[:, 0], self.pair_tokens[:, 1]))

    @classmethod
    def empty(cls) -> TokenTable:
        """A table that knows nothing."""
        nothing = np.zeros((0, WIDTH))
        tokens, probabilities = nothing.astype(np.int32), nothing.astype(np.float16)
        return cls(tokens[:, 0], tokens, probabilities, tokens[:, :2], tokens, probabilities)

    @classmethod
    def from_bytes(cls, content: bytes, vocab_size: int) -> TokenTable:
        """Reads a safetensors file's content.

        Args:
            content: the whole file.
            vocab_size: of the model that the table is of.

        Raises:
            TokenTableError: it is not a table, or has tokens outside the vocabulary or numbers that are no
                probabilities.
        """
        try:
            arrays = load(content)
        except (SafetensorError, ValueError, KeyError, MemoryError) as error:
            raise TokenTableError(f"is no readable safetensors file: {error}") from error
        if set(arrays) != {*UNIGRAM_ARRAYS, *PAIR_ARRAYS}:
            raise TokenTableError("holds other arrays than a token table")
        _check(arrays, vocab_size)
        return cls(**arrays)

    @property
    def pairs(self) -> NDArray[np.int64]:
        """int64 [p]: `pair_numbers` of its pairs, ascending."""
        return self._pairs

    def lookup(
        self, previous: NDArray[np.int64], current: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.bool_]]:
        """What follows each pair, or its last token where the pair is unknown.

        Args:
            previous: int64 [n], `PAD` for a token at the start.
            current: int64 [n].

        Returns:
            next_tokens: int32 [n, WIDTH], `PAD` where nothing is known.
            probabilities: float32 [n, WIDTH].
            is_pair: bool [n], whether the pair is known.
        """
        pairs, is_pair = _find(self._pairs, pair_numbers(previous, current))
        singles, is_single = _find(self.unigram_tokens, current)
        next_tokens = np.full((len(current), WIDTH), PAD, np.int32)
        probabilities = np.zeros((len(current), WIDTH), np.float32)
        if is_single.any():
            next_tokens[is_single] = self.unigram_next_tokens[singles[is_single]]
            probabilities[is_single] = self.unigram_probabilities[singles[is_single]]
        if is_pair.any():
            next_tokens[is_pair] = self.pair_next_tokens[pairs[is_pair]]
            probabilities[is_pair] = self.pair_probabilities[pairs[is_pair]]
        return next_tokens, probabilities, is_pair


def pair_numbers(previous: NDArray[np.integer[Any]], current: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """int64 [n]: one number a pair, in the order of pairs."""
    return (previous.astype(np.int64) << 32) | (current.astype(np.int64) & 0xFFFFFFFF)


def _check(arrays: Mapping[str, NDArray[Any]], vocab_size: int) -> None:
    u, p = (len(np.atleast_1d(arrays[names[0]])) for names in (UNIGRAM_ARRAYS, PAIR_ARRAYS))
    shapes = ((u,), (u, WIDTH), (u, WIDTH), (p, 2), (p, WIDTH), (p, WIDTH))
    for name, shape, dtype in zip((*UNIGRAM_ARRAYS, *PAIR_ARRAYS), shapes, _DTYPES, strict=True):
        array = arrays[name]
        if array.shape != shape or array.dtype != dtype:
            raise TokenTableError(f"does not hold a token table: {name} is malformed")
        least, most = (0, 1) if dtype is np.float16 else (PAD, vocab_size - 1)
        if not ((array >= least) & (array <= most)).all():
            raise TokenTableError(f"does not hold a token table: {name} has values outside {least}..{most}")


def _find(known: NDArray[Any], wanted: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where each wanted number would stand in `known`, and whether it stands there."""
    if len(known) == 0:
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    rows = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return rows, known[rows] == wanted
