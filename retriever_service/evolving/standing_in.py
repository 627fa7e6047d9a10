"""The best stand-ins of entries that lie in order of their continuations, compiled. Takes arrays only.

What the numbers mean is said in `redundancy`.
"""

from __future__ import annotations

import numpy as np

from dresd.compiled import njit


@njit
def best_two(keys, shared, lengths, kept, asked, depth, kept_of, temperature, similarity, most):
    """The two best stand-ins of entries within a stretch of a `ContinuationOrder`.

    Candidates are looked at from an entry outwards, those that share more tokens first. So the search ends when what is
    shared is worth less than the second best has; nothing is lost by that.

    Args:
        keys: float32 [w, dims].
        shared: int16 [w], tokens shared with the one before, below 0 where next tokens differ and for the first.
        lengths: int16 [w], tokens of each continuation.
        kept: bool [w], may stand in.
        asked: int64 [a], places of the entries whose stand-ins are wanted.
        depth: tokens that a continuation has at most.
        kept_of: float64 [depth + 1, depth + 1], by an entry's length and tokens shared: what is kept of its draft.
        temperature: of similarities.
        similarity: of near-duplicates.
        most: candidates of an entry.

    Returns:
        places: int64 [a, 2], the best and the second best; -1 for none.
        worths: float32 [a, 2], 0 for none.
        near_duplicates: bool [a], whether the best is one.
    """
    places = np.full((len(asked), 2), -1, np.int64)
    worths = np.zeros((len(asked), 2), np.float32)
    near_duplicates = np.zeros(len(asked), np.bool_)
    for nth in range(len(asked)):
        me = asked[nth]
        length = lengths[me]
        before, after = me - 1, me + 1
        shared_before = shared[me]
        shared_after = shared[after] if after < len(keys) else -1
        # A near-duplicate comes before every other stand-in, whatever that one's worth: it scores one more.
        best, second = 0.0, 0.0
        left = most
        while left > 0:
            both = max(shared_before, shared_after)
            if both < 0:
                break
            reach = kept_of[length, both]
            if reach + (both == depth) <= second:
                break
            if shared_before == both:
                there = before
                shared_before = min(both, shared[before])
                before -= 1
            else:
                there = after
                after += 1
                shared_after = min(both, shared[after]) if after < len(keys) else -1
            if not kept[there]:
                continue
            left -= 1
            cosine = min(_product(keys[me], keys[there]), 1.0)
            worth = reach * np.exp((cosine - 1.0) / temperature)
            duplicate = both == depth and cosine >= similarity
            score = worth + duplicate
            if score > best:
                best, second = score, best
                places[nth, 1], worths[nth, 1] = places[nth, 0], worths[nth, 0]
                places[nth, 0], worths[nth, 0] = there, worth
                near_duplicates[nth] = duplicate
            elif score > second:
                second = score
                places[nth, 1], worths[nth, 1] = there, worth
    return places, worths, near_duplicates


@njit
def independent(order, stand_ins, wanted):
    """At most `wanted` of the entries in an order, none of which is a stand-in of one that was taken before.

    Args:
        order: int64 [m], entries.
        stand_ins: int64 [n], by entry, -1 for none.
        wanted: of them.
    """
    gone, stays = np.zeros(len(stand_ins), np.bool_), np.zeros(len(stand_ins), np.bool_)
    taken = np.empty(wanted, np.int64)
    count = 0
    for entry in order:
        by = stand_ins[entry]
        if count == wanted or stays[entry] or (by >= 0 and gone[by]):
            continue
        gone[entry] = True
        if by >= 0:
            stays[by] = True
        taken[count] = entry
        count += 1
    return taken[:count]


@njit(fastmath={"reassoc", "contract"})
def _product(one, other):
    total = np.float32(0.0)
    for dim in range(len(one)):
        total += one[dim] * other[dim]
    return total
