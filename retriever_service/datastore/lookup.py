"""Everything that a batch of queries finds in one segment, compiled: one call, whatever is asked for.

Takes arrays only; what they mean is said in `segment`, `layout` and `coded_lists`.
"""

from __future__ import annotations

import numpy as np

from dresd.compiled import njit
from dresd.finding import find
from retriever_service.datastore.choosing import choose
from retriever_service.datastore.matching import longest_matches
from retriever_service.datastore.scanning import nearest


@njit
def look_up(
    tokens, list_offsets, centroid_offsets, centroids, content, rows, code_size, codec, low, step, centers,
    suffix_order, left_contexts_stored, first_id, keys, next_tokens, left_contexts, neighbors, sparse_neighbors, nprobe,
):  # fmt: skip
    """The nearest keys, and the longest matches of the left context, within each query's next token.

    Args:
        tokens: int64 [T], the segment's, ascending.
        list_offsets, centroid_offsets, centroids: of its `TokenLists`; float16 seen as uint16.
        content, rows, code_size, codec, low, step, centers: of its `CodedLists`.
        suffix_order, left_contexts_stored: of it.
        first_id: the id of its first row.
        keys: float32 [B, dims].
        next_tokens: int64 [B].
        left_contexts: int32 [B, w].
        neighbors: k, of the nearest.
        sparse_neighbors: m, of the longest matches.
        nprobe: lists searched within the token's, 0 for all.

    Returns:
        similarities: float32 [B, k], falling, -inf where there is none.
        ids: int64 [B, k], -1 where there is none.
        lengths: int64 [B, m], falling, 0 where there is none.
        matched: int64 [B, m], ids, -1 where there is none.

    Raises:
        IndexError: the suffix order is corrupt.
    """
    batch = len(keys)
    similarities = np.full((batch, neighbors), -np.inf, np.float32)
    ids = np.full((batch, neighbors), -1, np.int64)
    lengths = np.zeros((batch, sparse_neighbors), np.int64)
    matched = np.full((batch, sparse_neighbors), -1, np.int64)
    places = find(tokens, next_tokens)
    for query in range(batch):
        place = places[query]
        if place < 0:
            continue
        if neighbors > 0:
            lists = choose(
                list_offsets, centroid_offsets, centroids, keys[query : query + 1], places[query : query + 1], nprobe
            )[0]
            count = nearest(
                content, rows, code_size, codec, low, step, centers, keys[query], lists, similarities[query], ids[query]
            )
            ids[query, :count] += first_id
        if sparse_neighbors > 0:
            begin, end = rows[list_offsets[place]], rows[list_offsets[place + 1]]
            found = longest_matches(
                suffix_order, left_contexts_stored, begin, end, left_contexts[query], lengths[query], matched[query]
            )
            matched[query, :found] += first_id
    return similarities, ids, lengths, matched
