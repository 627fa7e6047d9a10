"""Draft trees as the bytes of their wire messages, compiled: all at once, where a message library takes every number.

Takes arrays only. It must follow `DraftTree` and `RetrieveResponse.trees` in retriever.proto.
"""

from __future__ import annotations

import numpy as np

from dresd.compiled import njit

_TREE_BYTES, _NODE_BYTES = 80, 18
"""More than a tree without nodes and one more node can take."""

_VARINT, _BYTES, _FLOAT = 0, 2, 5
"""Wire types."""
_TREES = 2
_TOKENS, _PARENTS, _MASSES, _TOTALS, _BEST, _NEIGHBORS, _LONGEST, _SPARSE_NEIGHBORS = 1, 2, 3, 5, 7, 8, 9, 10


@njit
def encode_trees(ends, tokens, parents, masses, totals, bests, longest, counts):
    """uint8 [n]: the field `trees` of a response; arguments are the arrays of a `DraftBatch`."""
    encoded = np.empty(len(ends) * _TREE_BYTES + len(tokens) * _NODE_BYTES, np.uint8)
    number = np.empty(1, np.float32)
    at, begin = 0, 0
    for query in range(len(ends)):
        mine = slice(begin, ends[query])
        begin = ends[query]
        # Its length goes before it: it is written a little further on, and then moved up to its length.
        start = at + 6
        end = _put_tree(
            encoded, start, number, tokens[mine], parents[mine], masses[mine], totals[query], bests[query],
            longest[query], counts[query],
        )  # fmt: skip
        at = _put_varint(encoded, at, _TREES << 3 | _BYTES)
        at = _put_varint(encoded, at, end - start)
        for place in range(end - start):
            encoded[at + place] = encoded[start + place]
        at += end - start
    return encoded[:at]


@njit
def _put_tree(encoded, at, number, tokens, parents, masses, totals, best, longest, counts):
    """Writes one message; returns where it ends."""
    nodes = len(tokens)
    for field in range(_TOKENS, _PARENTS + 1):
        size = 0
        for node in range(nodes):
            size += _varint_size(tokens[node] if field == _TOKENS else parents[node] + 1)  # 0 on the wire is the root
        at = _put_varint(encoded, at, field << 3 | _BYTES)
        at = _put_varint(encoded, at, size)
        for node in range(nodes):
            at = _put_varint(encoded, at, tokens[node] if field == _TOKENS else parents[node] + 1)
    for source in range(2):
        if source == 0 or counts[source] > 0:
            at = _put_varint(encoded, at, (_MASSES + source) << 3 | _BYTES)
            at = _put_varint(encoded, at, 4 * nodes)
            for node in range(nodes):
                at = _put_float(encoded, at, number, masses[node, source])
        at = _put_varint(encoded, at, (_TOTALS + source) << 3 | _FLOAT)
        at = _put_float(encoded, at, number, totals[source])
    at = _put_varint(encoded, at, _BEST << 3 | _FLOAT)
    at = _put_float(encoded, at, number, best)
    at = _put_varint(encoded, at, _NEIGHBORS << 3 | _VARINT)
    at = _put_varint(encoded, at, counts[0])
    at = _put_varint(encoded, at, _LONGEST << 3 | _VARINT)
    at = _put_varint(encoded, at, longest)
    at = _put_varint(encoded, at, _SPARSE_NEIGHBORS << 3 | _VARINT)
    return _put_varint(encoded, at, counts[1])


@njit
def _varint_size(value):
    size = 1
    while value >= 128:
        value >>= 7
        size += 1
    return size


@njit
def _put_varint(encoded, at, value):
    """Of a number that is not negative."""
    while value >= 128:
        encoded[at] = (value & 127) | 128
        value >>= 7
        at += 1
    encoded[at] = value
    return at + 1


@njit
def _put_float(encoded, at, number, value):
    number[0] = value
    bits = number.view(np.uint8)  # little-endian, as all machines that this runs on
    for place in range(4):
        encoded[at + place] = bits[place]
    return at + 4
