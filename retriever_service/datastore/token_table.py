"""The token table of a datastore: collected while a corpus is embedded, written to its file and read from it.

The model's best next tokens at every position are averaged by the position's last token and last two tokens. What a
table is, and looking tokens up in it, is `dresd.token_table`'s. It must not know any model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dresd.draft_tree import PAD
from dresd.token_table import PAIR_ARRAYS, UNIGRAM_ARRAYS, WIDTH, TokenTable, TokenTableError, pair_numbers
from retriever_service.datastore.errors import DatastoreError
from retriever_service.datastore.files import REBUILD_HINT, save_tensors
from retriever_service.echo import echoed

_ONE = 1 << 32
# Probabilities are summed as integers (units of 2^-32): sums do not depend on the order of adding.
_ROWS_BEFORE_REDUCING = 1 << 21


def save_token_table(path: Path, table: TokenTable) -> None:
    """Writes a table as safetensors; raises OSError."""
    save_tensors(path, {name: getattr(table, name) for name in (*UNIGRAM_ARRAYS, *PAIR_ARRAYS)})


def parse_token_table(path: Path, content: bytes, vocab_size: int) -> TokenTable:
    """A table whose file's content was read; raises DatastoreError naming the file if it is not one."""
    try:
        return TokenTable.from_bytes(content, vocab_size)
    except TokenTableError as error:
        raise DatastoreError(f"{path} {echoed(error)}.", REBUILD_HINT) from error


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
        amounts = _amounts(probabilities)
        once = np.ones(len(current), np.int64)
        self._unigrams.add(current.astype(np.int64), next_tokens, amounts, once)
        self._pairs.add(pair_numbers(previous, current)[paired], next_tokens[paired], amounts[paired], once[paired])

    def add_table(self, table: TokenTable, counts: NDArray[np.int64], pair_counts: NDArray[np.int64]) -> None:
        """Adds what another table was averaged from, as far as it tells: of a token outside its best, nothing.

        Args:
            table: built from other positions.
            counts: int64 [u], how many positions each of its tokens was averaged over, at least 1.
            pair_counts: int64 [p], likewise for its pairs.
        """
        for sums, keys, next_tokens, probabilities, number in (
            (self._unigrams, table.unigram_tokens, table.unigram_next_tokens, table.unigram_probabilities, counts),
            (self._pairs, table.pairs, table.pair_next_tokens, table.pair_probabilities, pair_counts),
        ):
            sums.add(keys.astype(np.int64), next_tokens, _amounts(probabilities) * number[:, None], number)

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

    def add(
        self,
        keys: NDArray[np.int64],
        next_tokens: NDArray[np.integer[Any]],
        amounts: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> None:
        known = next_tokens != PAD
        repeated = np.broadcast_to(keys[:, None], next_tokens.shape)[known]
        self._amounts.append((repeated, next_tokens[known].astype(np.int64), amounts[known]))
        self._counts.append((keys, counts))
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
        # What was added may have been a rounding error above 1.
        probabilities[rows[top], ranks[top]] = np.minimum(amounts[top] / _ONE / counts[rows[top]], 1.0)
        return keys, best_tokens, probabilities


def _amounts(probabilities: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    return np.round(probabilities.astype(np.float64) * _ONE).astype(np.int64)


def _changes(values: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [n]: where a sorted array's value differs from the one before, the first included."""
    changes = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=changes[1:])
    return changes


def _sums_from(values: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64: the sum of each run that begins at `starts`."""
    return np.add.reduceat(values, starts) if len(starts) > 0 else values[:0]
