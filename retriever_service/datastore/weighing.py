"""The neighbours of a batch as weighted paths' heads, compiled. Takes arrays only; the formulas are `store`'s."""

from __future__ import annotations

import math

import numpy as np

from dresd.compiled import njit


@njit
def weigh(near_ids, similarities, temperature, matched_ids, lengths, left_context_length, match_temperature):
    """Every neighbour found, with what it adds to each node of its continuation.

    Args:
        near_ids: int64 [B, k], dense neighbours, -1 for none.
        similarities: float32 [B, k].
        temperature: of the similarities.
        matched_ids: int64 [B, m], sparse neighbours, -1 for none.
        lengths: int64 [B, m], tokens of left context that match.
        left_context_length: tokens stored as such.
        match_temperature: of the lengths.

    Returns:
        queries: int64 [p], ascending.
        ids: int64 [p].
        weights: float64 [p, 2], dense and sparse, one of them 0.
        totals: float64 [B, 2], of the weights.
        bests: float32 [B], the greatest similarity, 0 without any.
        longest: int64 [B], the longest match, 0 without any.
        counts: int64 [B, 2].
    """
    batch = len(near_ids)
    room = near_ids.size + matched_ids.size
    queries, ids, weights = np.empty(room, np.int64), np.empty(room, np.int64), np.zeros((room, 2))
    totals, counts = np.zeros((batch, 2)), np.zeros((batch, 2), np.int64)
    bests, longest = np.zeros(batch, np.float32), np.zeros(batch, np.int64)
    found = 0
    for query in range(batch):
        for place in range(near_ids.shape[1]):
            if near_ids[query, place] < 0:
                continue
            similarity = similarities[query, place]
            if counts[query, 0] == 0 or similarity > bests[query]:
                bests[query] = similarity
            # A key decoded from its code may be slightly longer than 1; no neighbour counts more than an equal key.
            weight = math.exp((min(np.float64(similarity), 1.0) - 1.0) / temperature)
            queries[found], ids[found], weights[found, 0] = query, near_ids[query, place], weight
            totals[query, 0] += weight
            counts[query, 0] += 1
            found += 1
        for place in range(matched_ids.shape[1]):
            if matched_ids[query, place] < 0:
                continue
            longest[query] = max(longest[query], lengths[query, place])
            weight = math.exp((lengths[query, place] - left_context_length) / match_temperature)
            queries[found], ids[found], weights[found, 1] = query, matched_ids[query, place], weight
            totals[query, 1] += weight
            counts[query, 1] += 1
            found += 1
    return queries[:found].copy(), ids[:found].copy(), weights[:found].copy(), totals, bests, longest, counts


@njit
def keep_best(scores, ids, found_scores, found_ids):
    """Merges further neighbours into the best so far, in place. Both fall; of equals those so far come first.

    Args:
        scores: [B, k], any beyond the last neighbour.
        ids: int64 [B, k], -1 behind the last neighbour.
        found_scores: [B, k].
        found_ids: int64 [B, k], -1 behind the last.
    """
    width = ids.shape[1]
    best_scores, best_ids = np.empty(width, scores.dtype), np.empty(width, np.int64)
    for query in range(len(ids)):
        old, new, count = 0, 0, 0
        while count < width:
            has_old = ids[query, old] >= 0
            has_new = found_ids[query, new] >= 0
            if has_old and not (has_new and found_scores[query, new] > scores[query, old]):
                best_scores[count], best_ids[count] = scores[query, old], ids[query, old]
                old += 1
            elif has_new:
                best_scores[count], best_ids[count] = found_scores[query, new], found_ids[query, new]
                new += 1
            else:
                break
            count += 1
        scores[query, :count] = best_scores[:count]
        ids[query, :count] = best_ids[:count]
