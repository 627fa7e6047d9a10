"""Synthetic entries, as many as wanted, in blocks: what a datastore of a model's answers looks like, without a model.

Calibrated on the keys of a real datastore (90,928 entries of SmolLM2-135M): next tokens follow Zipf's law; keys are
nested clusters, so that the nearest other key within a next token has cosine 0.9 or more and one of the same token at
random 0.3; variance falls with the dimension as after a PCA; and of the 50 nearest keys of all next tokens fewer than
half share the query's. Continuations and left contexts of a cluster agree for a while and then part.

A block depends on the seed and its number only: memory is that of one block, and queries are blocks nobody stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dresd.draft_tree import PAD
from retriever_service.datastore import EntryBatch

BLOCK = 1 << 16
"""Entries in a block."""
DIMS = 64
WIDTH = 16
"""Tokens of a continuation, and of a left context."""
_FLATTER, _STEEPNESS = 3.5, 1.25
"""Of next tokens: the law of Zipf and Mandelbrot."""
_TABLE = 1 << 16
_SAME_TOKEN = 0.75
"""A state leads to its usual next token so often; else to any other."""
_LEVELS = ((0.33, 1), (0.27, 8), (0.20, 8), (0.11, 8), (0.06, 64))
"""Nested clusters: their share of a key's variance, and how many there are within the level above."""
_NOISE = 0.03
_SPECTRUM = 0.3
_AGREEING = 0.75
"""A token of a path is that of its cluster so often, as long as all before it were."""
_FIRST_QUERY_BLOCK = 1 << 40

_Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Generator:
    """An endless stream of entries.

    Attributes:
        seed: of everything.
        vocab_size: next tokens are 0..vocab_size-1, the most frequent first.
    """

    seed: int = 0
    vocab_size: int = 49_152
    _directions: NDArray[np.float32] = field(init=False, repr=False)
    _tokens: NDArray[np.int32] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng((self.seed, 1))
        spectrum = (1.0 + np.arange(DIMS)) ** -_SPECTRUM
        directions = (random.normal(size=(_TABLE, DIMS)) * spectrum).astype(np.float32)
        # What the shares above are shares of: vectors of about length one.
        directions /= np.sqrt((spectrum**2).sum())
        chances = (_FLATTER + np.arange(self.vocab_size)) ** -_STEEPNESS
        chances /= chances.sum()
        tokens = random.choice(self.vocab_size, size=1 << 20, p=chances).astype(np.int32)
        object.__setattr__(self, "_directions", directions)
        object.__setattr__(self, "_tokens", tokens)

    def entries(self, number: int) -> Iterator[EntryBatch]:
        """The first `number` entries, in blocks."""
        for block in range(-(-number // BLOCK)):
            batch = self._block(block)
            left = number - block * BLOCK
            yield batch if left >= BLOCK else batch.select(np.arange(left))

    def queries(self, number: int) -> EntryBatch:
        """Entries that no datastore holds, at most a block: their keys, next tokens and left contexts are queries."""
        return self._block(_FIRST_QUERY_BLOCK).select(np.arange(number))

    def _block(self, number: int) -> EntryBatch:
        random = np.random.default_rng((self.seed, 2, number))
        usual = self._tokens[random.integers(len(self._tokens), size=BLOCK)]
        key = np.zeros((BLOCK, DIMS), np.float32)
        cluster = usual.astype(np.uint64)
        for level, (share, size) in enumerate(_LEVELS):
            # Log-uniform: of the clusters within one, the first is the most frequent, by Zipf's law.
            nth = np.floor(size ** random.random(BLOCK)).astype(np.uint64)
            cluster = _hash(cluster * np.uint64(1 << 20) + nth * np.uint64(len(_LEVELS)) + np.uint64(level))
            key += np.sqrt(share / 2) * self._directions[cluster % np.uint64(_TABLE)]
            key += np.sqrt(share / 2) * self._directions[(cluster >> np.uint64(16)) % np.uint64(_TABLE)]
        key += np.sqrt(_NOISE) * self._directions[random.integers(_TABLE, size=BLOCK)]
        key /= np.linalg.norm(key, axis=1, keepdims=True)
        other = self._tokens[random.integers(len(self._tokens), size=BLOCK)]
        next_tokens = np.where(random.random(BLOCK) < _SAME_TOKEN, usual, other)
        of_token = _hash(cluster ^ next_tokens.astype(np.uint64))
        return EntryBatch(
            key, next_tokens.astype(np.int64), self._paths(of_token, random), self._paths(_hash(cluster), random)
        )

    def _paths(self, cluster: _Hashes, random: np.random.Generator) -> NDArray[np.int32]:
        """int32 [n, WIDTH]: the cluster's own path up to a random depth, anything beyond; one in 32 ends early."""
        depths = np.arange(WIDTH, dtype=np.uint64)
        usual = self._tokens[_hash(cluster[:, None] + depths) % np.uint64(len(self._tokens))]
        other = self._tokens[random.integers(len(self._tokens), size=usual.shape)]
        agreeing = np.logical_and.accumulate(random.random(usual.shape) < _AGREEING, axis=1)
        paths = np.where(agreeing, usual, other)
        ends = np.where(random.random(len(paths)) < 1 / 32, random.integers(1, WIDTH, size=len(paths)), WIDTH)
        return np.where(np.arange(WIDTH) < ends[:, None], paths, PAD).astype(np.int32)


def _hash(values: _Hashes) -> _Hashes:
    """The splitmix64 finaliser."""
    mixed: _Hashes = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
