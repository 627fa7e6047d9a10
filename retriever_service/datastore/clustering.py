"""Where the entries of a segment go: rows grouped by next token, and those of frequent tokens by similarity.

It knows keys, next tokens and left contexts; not codecs, files or what else an entry holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from retriever_service.datastore.layout import TokenLists

MIN_ENTRIES_TO_CLUSTER = 1_000
"""A token with fewer entries has one list."""
MIN_DATASTORE_TO_CLUSTER = 100_000
"""In a datastore with fewer entries every token has one list: its search is exact."""

_KEYS_PER_LIST = 128
"""K-means is trained on so many of a token's keys for each of its lists, at most; twice as many take twice the time,
and a search that reads as many entries finds the same share of neighbours to three digits."""
_KEYS_AT_ONCE = 1 << 14
_SUFFIX_ROWS_AT_ONCE = 1 << 18
_MIN_KEYS_FOR_GPU = 1 << 14


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Where the tokens, lists and rows of a segment lie.

    Attributes:
        tokens: int64 [T], ascending.
        token_lists: theirs.
        entry_offsets: int64 [T + 1], the rows of each token.
        order: int64 [n], the entry that becomes each row.
        lists: int64 [n], the list of each row.
    """

    tokens: NDArray[np.int64]
    token_lists: TokenLists
    entry_offsets: NDArray[np.int64]
    order: NDArray[np.int64]
    lists: NDArray[np.int64]


def arrange(
    next_tokens: NDArray[np.int64],
    keys: NDArray[np.float32],
    held_out: NDArray[np.int64],
    *,
    cluster: bool,
    seed: int,
) -> Arrangement:
    """Orders entries by next token and, where `cluster` is set and a token has many, by k-means within it.

    A token of n entries gets about √n lists: a search reads centroids and entries, and that is where both are few.

    Args:
        next_tokens: int64 [n], n at least 1.
        keys: float32 [n, dims]; read token by token, so a memory map will do.
        held_out: int64 [m], entries that the clustering does not see; they are assigned like all others.
        cluster: whether tokens are split at all.
        seed: of k-means.
    """
    order = np.argsort(next_tokens, kind="stable")
    tokens, starts, counts = np.unique(next_tokens[order], return_index=True, return_counts=True)
    num_lists = np.ones(len(tokens), np.int64)
    if cluster:
        heavy = counts >= MIN_ENTRIES_TO_CLUSTER
        num_lists[heavy] = np.round(np.sqrt(counts[heavy])).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(num_lists)]).astype(np.int64)
    lists = np.repeat(offsets[:-1], counts)
    unseen = np.zeros(len(next_tokens), np.bool_)
    unseen[held_out] = True
    centroids = [np.zeros((0, keys.shape[1]), np.float16)]
    for place in np.flatnonzero(num_lists > 1).tolist():
        rows = slice(int(starts[place]), int(starts[place] + counts[place]))
        entries = order[rows]
        found = _cluster(keys, entries[~unseen[entries]], int(num_lists[place]), seed + int(tokens[place]))
        lists[rows] += _assign(keys, entries, found)
        centroids.append(found)
    by_list = np.argsort(lists, kind="stable")
    entry_offsets = np.concatenate([starts, [len(order)]]).astype(np.int64)
    token_lists = TokenLists(offsets, TokenLists.place_centroids(offsets), np.concatenate(centroids))
    return Arrangement(tokens, token_lists, entry_offsets, order[by_list], lists[by_list])


def suffix_order_of(left_contexts: NDArray[Any], arrangement: Arrangement) -> Iterator[NDArray[np.uint32]]:
    """Whole tokens at a time: the rows of each, by left context (stored, [n, C]). See `layout`."""
    offsets = arrangement.entry_offsets
    first = 0
    while first < len(arrangement.tokens):
        begin = int(offsets[first])
        # As many tokens as fit, and one at least.
        last = max(int(np.searchsorted(offsets, begin + _SUFFIX_ROWS_AT_ONCE, side="right")) - 1, first + 1)
        end = int(offsets[last])
        tokens = np.repeat(arrangement.tokens[first:last], np.diff(offsets[first : last + 1]))
        # Stored tokens are unsigned and padding the greatest: a shorter context sorts after a longer one.
        contexts = left_contexts[arrangement.order[begin:end]]
        yield (np.lexsort((*contexts.T[::-1], tokens)) + begin).astype(np.uint32)
        first = last


def gpu_count() -> int:
    """GPUs that FAISS may use: none with faiss-cpu, nor in a task of Ray that did not ask for one."""
    return int(faiss.get_num_gpus())


def kmeans(keys: NDArray[np.float32], number: int, *, seed: int, gpus: int) -> NDArray[np.float16]:
    """float16 [number, dims]: centres by spherical k-means.

    Only training goes to a GPU, where nearly all of the time is. Keys are assigned on the CPU afterwards, to the
    centres as they are stored, by the same code in both cases; so a GPU may move centres by what its order of adding
    does to a sum, but never an entry to a list whose centre is not its nearest. Equal input gives equal bytes on the
    CPU only; `scripts/gpu_check.py` compares the two.

    Args:
        keys: float32 [n, dims], C-contiguous, n at least `number`.
        number: of centres.
        seed: of the first ones.
        gpus: that share the work, 0 for the CPU.
    """
    # On GPUs FAISS searches with full float32 products here: Kmeans clones a flat index, without float16 storage.
    clustering = faiss.Kmeans(
        keys.shape[1],
        number,
        niter=10,
        seed=seed % 2**31,
        spherical=True,
        min_points_per_centroid=1,
        max_points_per_centroid=_KEYS_PER_LIST,
        verbose=False,
        gpu=gpus or False,
    )
    clustering.train(keys)
    return np.asarray(clustering.centroids, np.float16)


def _cluster(keys: NDArray[np.float32], entries: NDArray[np.int64], number: int, seed: int) -> NDArray[np.float16]:
    """float16 [number, dims]: centres of the keys of some entries, of a sample of them where there are many."""
    if len(entries) > number * _KEYS_PER_LIST:
        chosen = np.random.default_rng(seed).choice(len(entries), number * _KEYS_PER_LIST, replace=False)
        entries = entries[np.sort(chosen)]
    # Copying keys to a GPU and starting its kernels takes longer than so little work does here.
    gpus = gpu_count() if len(entries) >= _MIN_KEYS_FOR_GPU else 0
    return kmeans(np.ascontiguousarray(keys[entries]), number, seed=seed, gpus=gpus)


def _assign(keys: NDArray[np.float32], entries: NDArray[np.int64], centroids: NDArray[np.float16]) -> NDArray[np.int64]:
    """int64 [m]: the nearest centroid of each entry, by its stored (rounded) value, as a search ranks them."""
    to_centroids = centroids.astype(np.float32).T
    parts = [
        np.argmax(keys[entries[begin : begin + _KEYS_AT_ONCE]] @ to_centroids, axis=1)
        for begin in range(0, len(entries), _KEYS_AT_ONCE)
    ]
    return np.concatenate(parts)
