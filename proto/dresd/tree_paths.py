"""A draft tree taken apart into weighted paths, compiled. Takes arrays only."""

from __future__ import annotations

import numpy as np

from dresd.compiled import njit


@njit
def tree_paths(tokens, parents, masses):
    """The weighted paths that `merge_paths` would merge into a tree again.

    Args:
        tokens: int32 [n].
        parents: int32 [n], -1 for depth 1.
        masses: float64 [n, sources].

    Returns:
        paths: int32 [m, depth], -1 from the end on.
        weights: float64 [m, sources].
    """
    count, sources = masses.shape
    rest = masses.copy()
    depths = np.ones(count, np.int64)
    is_end = np.ones(count, np.bool_)
    for node in range(count):
        parent = parents[node]
        if parent >= 0:
            depths[node] = depths[parent] + 1
            is_end[parent] = False
            for source in range(sources):
                rest[parent, source] -= masses[node, source]
    for node in range(count):
        for source in range(sources):
            rest[node, source] = max(rest[node, source], 0.0)
            is_end[node] |= rest[node, source] > 0.0
    ends = np.flatnonzero(is_end)
    paths = np.full((len(ends), depths.max() if count else 0), -1, np.int32)
    weights = np.empty((len(ends), sources))
    for path in range(len(ends)):
        node = ends[path]
        weights[path] = rest[node]
        while node >= 0:
            paths[path, depths[node] - 1] = tokens[node]
            node = parents[node]
    return paths, weights
