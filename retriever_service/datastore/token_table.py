"""Likely next tokens after a token, and after a pair of tokens, from the target model's own probabilities.

The idea of Token Recycling (arXiv 2408.08696), precomputed: while a corpus is embedded, the model's best next tokens
at every position are averaged by the position's last token and last two tokens. It must not know any model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dresd.draft_tree import PAD
from retriever_service.datastore.errors import DatastoreError
from retriever_service.datastore.files import REBUILD_HINT, load_tensors, save_tensors

WIDTH = 8
"""Next tokens kept after each token or pair."""

_ONE = 1 << 32
# Probabilities are summed as integers (units of 2^-32): sums do not depend on the order of adding.
_ROWS_BEFORE_REDUCING = 1 << 21

_UNIGRAM_ARRAYS = ("unigram_tokens", "unigram_next_tokens", "unigram_probabilities")
_PAIR_ARRAYS = ("pair_tokens", "pair_next_tokens", "pair_probabilities")


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

    @classmethod
    def empty(cls) -> TokenTable:
        """A table that knows nothing."""
        return TokenTableBuilder().build()

    def lookup(
        self, previous: NDArray[np.int64], current: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """What follows each pair, or its last token where the pair is unknown.

        Args:
            previous: int64 [n], `PAD` for a token at the start.
            current: int64 [n].

        Returns:
            next_tokens: int32 [n, WIDTH], `PAD` where nothing is known.
            probabilities: float32 [n, WIDTH].
        """
        next_tokens = np.full((len(current), WIDTH), PAD, np.int32)
        probabilities = np.zeros((len(current), WIDTH), np.float32)
        pairs = _pair_keys(self.pair_tokens[:, 0], self.pair_tokens[:, 1])
        for known, wanted, tokens, masses in (
            (self.unigram_tokens, current, self.unigram_next_tokens, self.unigram_probabilities),
            (pairs, _pair_keys(previous, current), self.pair_next_tokens, self.pair_probabilities),
        ):
            if len(known) == 0:
                continue
            rows = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
            hit = known[rows] == wanted
            next_tokens[hit] = tokens[rows[hit]]
            probabilities[hit] = masses[rows[hit]]
        return next_tokens, probabilities

    def save(self, path: Path) -> None:
        """Writes the table as safetensors; raises OSError."""
        save_tensors(path, {name: getattr(self, name) for name in (*_UNIGRAM_ARRAYS, *_PAIR_ARRAYS)})

    @classmethod
    def load(cls, path: Path) -> TokenTable:
        """Reads a table; raises DatastoreError naming the file if it is not one."""
        arrays = load_tensors(path, (*_UNIGRAM_ARRAYS, *_PAIR_ARRAYS))
        u, p = len(arrays["unigram_tokens"]), len(arrays["pair_tokens"])
        shapes = ((u,), (u, WIDTH), (u, WIDTH), (p, 2), (p, WIDTH), (p, WIDTH))
        dtypes = (np.int32, np.int32, np.float16) * 2
        for name, shape, dtype in zip((*_UNIGRAM_ARRAYS, *_PAIR_ARRAYS), shapes, dtypes, strict=True):
            if arrays[name].shape != shape or arrays[name].dtype != dtype:
                raise DatastoreError(f"{path} does not hold a token table: {name} is malformed.", REBUILD_HINT)
        return cls(**arrays)


class TokenTableBuilder:
    """Collects the model's best next tokens position by position; the order of adding and merging does not matter."""

    def __init__(self) -> None:
        self._unigrams = _Sums()
        self._pairs = _Sums()

    def add(
        self,
        previous: NDArray[np.int64],
        current: NDArray[np.int64],
        next_tokens: NDArray[np.int64],
        probabilities: NDArray[np.float32],
    ) -> None:
        """Adds n positions.

        Args:
            previous: int64 [n], the token before each position's, `PAD` at the start of a text (no pair then).
            current: int64 [n], each position's token.
            next_tokens: int64 [n, w], the model's best next tokens there, `PAD` for none.
            probabilities: float32 [n, w], theirs.

        Raises:
            ValueError: for shapes that differ, or probabilities outside 0..1.
        """
        if next_tokens.shape != probabilities.shape or next_tokens.shape[:1] != current.shape:
            raise ValueError("next_tokens and probabilities must both be [n, w] for n positions")
        if previous.shape != current.shape:
            raise ValueError("previous and current must both be [n]")
        if not ((probabilities >= 0) & (probabilities <= 1 + 1e-3)).all():
            raise ValueError("probabilities must lie in 0..1")
        paired = previous != PAD
        amounts = np.round(probabilities.astype(np.float64) * _ONE).astype(np.int64)
        self._unigrams.add(current.astype(np.int64), next_tokens, amounts)
        self._pairs.add(_pair_keys(previous, current)[paired], next_tokens[paired], amounts[paired])

    def merge(self, other: TokenTableBuilder) -> None:
        """Adds everything that another builder collected."""
        self._unigrams.merge(other._unigrams)
        self._pairs.merge(other._pairs)

    def build(self, *, min_pair_count: int = 2, max_pairs: int = 200_000) -> TokenTable:
        """Averages what was collected.

        Args:
            min_pair_count: a pair seen less often is left out.
            max_pairs: of the others, the most frequent are kept.
        """
        tokens, unigram_next, unigram_probabilities = self._unigrams.best(1, None)
        pairs, pair_next, pair_probabilities = self._pairs.best(min_pair_count, max_pairs)
        return TokenTable(
            tokens.astype(np.int32),
            unigram_next,
            unigram_probabilities,
            np.stack([pairs >> 32, pairs & 0xFFFFFFFF], axis=1).astype(np.int32),
            pair_next,
            pair_probabilities,
        )


class _Sums:
    """Sums of probability by (key, next token) and counts by key; reduced whenever much has gathered."""

    def __init__(self) -> None:
        self._amounts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
        self._counts: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._gathered = 0

    def add(self, keys: NDArray[np.int64], next_tokens: NDArray[np.int64], amounts: NDArray[np.int64]) -> None:
        known = next_tokens != PAD
        repeated = np.broadcast_to(keys[:, None], next_tokens.shape)[known]
        self._amounts.append((repeated, next_tokens[known].astype(np.int64), amounts[known]))
        self._counts.append((keys, np.ones(len(keys), np.int64)))
        self._gathered += len(repeated)
        if self._gathered > _ROWS_BEFORE_REDUCING:
            self._reduce()
            self._gathered = 0

    def merge(self, other: _Sums) -> None:
        self._amounts += other._amounts
        self._counts += other._counts
        self._reduce()

    def _reduce(self) -> None:
        keys, next_tokens, amounts = (np.concatenate(part) for part in zip(*self._amounts, strict=True))
        order = np.lexsort((next_tokens, keys))
        keys, next_tokens, amounts = keys[order], next_tokens[order], amounts[order]
        starts = np.flatnonzero(_changes(keys) | _changes(next_tokens))
        self._amounts = [(keys[starts], next_tokens[starts], _sums_from(amounts, starts))]
        keys, counts = (np.concatenate(part) for part in zip(*self._counts, strict=True))
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(_changes(keys[order]))
        self._counts = [(keys[order][starts], _sums_from(counts[order], starts))]

    def best(
        self, min_count: int, max_keys: int | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float16]]:
        """Keys ascending, their WIDTH best next tokens, and those tokens' mean probabilities."""
        if not self._counts:
            none = np.zeros((0, WIDTH))
            return np.zeros(0, np.int64), none.astype(np.int32), none.astype(np.float16)
        self._reduce()
        keys, counts = self._counts[0]
        kept = np.flatnonzero(counts >= min_count)
        kept = np.sort(kept[np.lexsort((kept, -counts[kept]))][:max_keys])
        keys, counts = keys[kept], counts[kept]
        owners, next_tokens, amounts = self._amounts[0]
        rows = np.searchsorted(keys, owners)
        wanted = np.flatnonzero((rows < len(keys)) & (np.append(keys, -1)[rows] == owners))
        rows, next_tokens, amounts = rows[wanted], next_tokens[wanted], amounts[wanted]
        order = np.lexsort((next_tokens, -amounts, rows))
        rows, next_tokens, amounts = rows[order], next_tokens[order], amounts[order]
        ranks = np.arange(len(rows)) - np.searchsorted(rows, rows)
        top = ranks < WIDTH
        best_tokens = np.full((len(keys), WIDTH), PAD, np.int32)
        probabilities = np.zeros((len(keys), WIDTH), np.float16)
        best_tokens[rows[top], ranks[top]] = next_tokens[top]
        probabilities[rows[top], ranks[top]] = amounts[top] / _ONE / counts[rows[top]]
        return keys, best_tokens, probabilities


def _pair_keys(previous: NDArray[np.integer], current: NDArray[np.integer]) -> NDArray[np.int64]:
    return (previous.astype(np.int64) << 32) | (current.astype(np.int64) & 0xFFFFFFFF)


def _changes(values: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [n]: where a sorted array's value differs from the one before, the first included."""
    changes = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=changes[1:])
    return changes


def _sums_from(values: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64: the sum of each run that begins at `starts`."""
    return np.add.reduceat(values, starts) if len(starts) > 0 else values[:0]
