"""The nearest rows of some inverted lists, compiled. Takes arrays only; what they mean is said in `coded_lists`."""

from __future__ import annotations

import numpy as np

from dresd.compiled import njit

FLAT, SQ8, SQ4, PQ = range(4)
"""float32; a byte a dimension; half a byte, the earlier dimension in the lower half; a byte for a piece of the key."""

_CENTERS = 256
_BEHIND = 8
"""Bytes an entry behind the codes of a list."""


@njit
def nearest(content, rows, code_size, codec, low, step, centers, key, lists, similarities, found):
    """Writes the nearest rows of some lists, nearest first; of equals the first rows.

    Args:
        content, rows, code_size, codec, low, step, centers: of a `CodedLists`.
        key: float32 [dims].
        lists: int64 [w], ascending, -1 for none.
        similarities: float32 [k], filled with inner products from the beginning on.
        found: int64 [k], filled with rows.

    Returns:
        How many there are, at most k.
    """
    weights, base = _weights(code_size, codec, low, step, centers, key)
    longest = 0
    for number in lists:
        if number >= 0:
            longest = max(longest, rows[number + 1] - rows[number])
    products = np.empty(longest, np.float32)
    count, most = 0, len(found)
    for number in lists:
        if number < 0:
            continue
        first, size = rows[number], rows[number + 1] - rows[number]
        begin = first * (code_size + _BEHIND)
        codes = content[begin : begin + size * code_size]
        if codec == SQ8:
            _score_bytes(codes, weights, products)
        elif codec == SQ4:
            _score_halves(codes, code_size, weights, products)
        elif codec == PQ:
            _score_pieces(codes, code_size, weights, products)
        else:
            _score_floats(codes, weights, products)
        for place in range(size):
            similarity = products[place] + base
            if count < most:
                # What is damaged may be no number, and then near nothing.
                if similarity > -np.inf:
                    _rise(similarities, found, count, similarity, first + place)
                    count += 1
            elif similarity > similarities[0]:
                _sink(similarities, found, count, similarity, first + place)
    # The furthest is on top of the heap: it goes behind the others, one after the other.
    for last in range(count - 1, 0, -1):
        similarity, row = similarities[last], found[last]
        similarities[last], found[last] = similarities[0], found[0]
        _sink(similarities, found, last, similarity, row)
    return count


@njit(fastmath={"reassoc", "contract"})
def _weights(code_size, codec, low, step, centers, key):
    """What the parts of a code are multiplied by, or of a product quantiser what they add; and what all codes add."""
    dims = len(key)
    base = np.float32(0.0)
    if codec == FLAT:
        return key, base
    if codec == PQ:
        pieces, _, width = centers.shape
        weights = np.empty(pieces * _CENTERS, np.float32)
        for piece in range(pieces):
            for center in range(_CENTERS):
                total = np.float32(0.0)
                for dim in range(width):
                    total += centers[piece, center, dim] * key[piece * width + dim]
                weights[piece * _CENTERS + center] = total
        return weights, base
    weights = np.zeros(code_size if codec == SQ8 else 2 * code_size, np.float32)
    for dim in range(dims):
        base += key[dim] * low[dim]
        # Of halves of bytes the lower ones come first, then the upper ones.
        weights[dim if codec == SQ8 else (dim >> 1) + (dim & 1) * code_size] = key[dim] * step[dim]
    return weights, base


@njit(fastmath={"reassoc", "contract"})
def _score_bytes(codes, weights, products):
    width = len(weights)
    for place in range(len(codes) // width):
        code = codes[place * width : (place + 1) * width]
        total = np.float32(0.0)
        for dim in range(width):
            total += weights[dim] * np.float32(code[dim])
        products[place] = total


@njit(fastmath={"reassoc", "contract"})
def _score_halves(codes, width, weights, products):
    lower, upper = weights[:width], weights[width:]
    for place in range(len(codes) // width):
        code = codes[place * width : (place + 1) * width]
        total = np.float32(0.0)
        for at in range(width):
            total += lower[at] * np.float32(code[at] & 15) + upper[at] * np.float32(code[at] >> 4)
        products[place] = total


@njit
def _score_pieces(codes, width, weights, products):
    for place in range(len(codes) // width):
        total = np.float32(0.0)
        for piece in range(width):
            total += weights[piece * _CENTERS + codes[place * width + piece]]
        products[place] = total


@njit(fastmath={"reassoc", "contract"})
def _score_floats(codes, weights, products):
    width = len(weights)
    # Codes may begin at any byte of the file, numbers of an array may not.
    copied = np.empty(4 * width, np.uint8)
    numbers = copied.view(np.float32)
    for place in range(len(codes) // (4 * width)):
        copied[:] = codes[4 * place * width : 4 * (place + 1) * width]
        total = np.float32(0.0)
        for dim in range(width):
            total += weights[dim] * numbers[dim]
        products[place] = total


@njit
def _is_nearer(similarity, row, other_similarity, other_row):
    return similarity > other_similarity or (similarity == other_similarity and row < other_row)


@njit
def _rise(similarities, found, at, similarity, row):
    """Puts a row at the end of a heap, whose top is the furthest, and lets it rise to its place."""
    while at > 0:
        above = (at - 1) >> 1
        if _is_nearer(similarity, row, similarities[above], found[above]):
            break
        similarities[at], found[at] = similarities[above], found[above]
        at = above
    similarities[at], found[at] = similarity, row


@njit
def _sink(similarities, found, count, similarity, row):
    """Puts a row in the place of the top of a heap of `count`, and lets it sink to its place."""
    at = 0
    while True:
        below = 2 * at + 1
        if below >= count:
            break
        if below + 1 < count and _is_nearer(
            similarities[below], found[below], similarities[below + 1], found[below + 1]
        ):
            below += 1
        if _is_nearer(similarities[below], found[below], similarity, row):
            break
        similarities[at], found[at] = similarities[below], found[below]
        at = below
    similarities[at], found[at] = similarity, row
