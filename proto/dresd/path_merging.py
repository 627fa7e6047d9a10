"""The one algorithm that makes draft trees of weighted paths, compiled.

This module knows arrays only: no messages, no models, no indexes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dresd.compiled import njit, warm
from dresd.draft_tree import PAD, DraftTree
from dresd.tree_paths import tree_paths


def merge_paths(
    queries: NDArray[np.int64],
    paths: NDArray[np.int32],
    weights: NDArray[np.float64],
    *,
    num_queries: int,
    max_nodes: int,
) -> list[DraftTree]:
    """Merges the paths of every query into one draft tree a query, all queries at once.

    Args:
        queries: int64 [p], the query each path belongs to, in 0..num_queries-1.
        paths: int32 [p, depth], token ids >= 0, `PAD` from each path's end on.
        weights: float64 [p, sources], non-negative.
        num_queries: how many trees to return.
        max_nodes: nodes kept in each tree: those of the greatest total mass, so every kept node's parent is kept.

    Returns:
        One tree a query, nodes in order of falling total mass, then of depth (a parent before its children), then of
        the tokens on the way to them. A query without paths gets an empty tree.
    """
    ends, tokens, parents, masses = merge(queries, paths, weights, num_queries, max_nodes)
    trees, begin = [], 0
    for end in ends.tolist():
        trees.append(DraftTree(tokens[begin:end], parents[begin:end], masses[begin:end]))
        begin = end
    return trees


def merge_trees(trees: Sequence[DraftTree], max_nodes: int) -> DraftTree:
    """The tree of all paths of several trees: equal nodes are one, whose masses are the sum of theirs.

    Args:
        trees: at least one, all of as many sources.
        max_nodes: nodes kept, as in `merge_paths`. A node that one of the trees had lost to pruning lacks that mass.
    """
    parts = [tree_paths(tree.tokens, tree.parents, tree.masses) for tree in trees]
    depth = max(paths.shape[1] for paths, _ in parts)
    paths = np.full((sum(len(paths) for paths, _ in parts), depth), PAD, np.int32)
    row = 0
    for part, _ in parts:
        paths[row : row + len(part), : part.shape[1]] = part
        row += len(part)
    weights = np.concatenate([weights for _, weights in parts])
    return merge_paths(np.zeros(len(paths), np.int64), paths, weights, num_queries=1, max_nodes=max_nodes)[0]


@cache
def compile_merging() -> None:
    """Compiles what `merge_trees` calls, or loads it from the cache on disk, so that no answer waits for it."""
    warm(lambda: merge_trees([DraftTree.empty(2), DraftTree.empty(2)], 1))


@njit
def merge(queries, paths, weights, num_queries, max_nodes):
    """`merge_paths` for compiled code.

    Returns:
        ends: int64 [num_queries], where the nodes of each query's tree end.
        tokens: int32 [n].
        parents: int32 [n], places within the tree.
        masses: float64 [n, sources].
    """
    starts = np.zeros(num_queries + 1, np.int64)
    for path in range(len(queries)):
        starts[queries[path] + 1] += 1
    starts = np.cumsum(starts)
    order = np.empty(len(queries), np.int64)
    filled = starts[:-1].copy()
    for path in range(len(queries)):
        order[filled[queries[path]]] = path
        filled[queries[path]] += 1

    room = num_queries * max(min(max_nodes, (np.diff(starts).max() if num_queries else 0) * paths.shape[1]), 0)
    tokens = np.empty(room, np.int32)
    parents = np.empty(room, np.int32)
    masses = np.empty((room, weights.shape[1]))
    ends = np.empty(num_queries, np.int64)
    count = 0
    for query in range(num_queries):
        mine = order[starts[query] : starts[query + 1]]
        _sort(mine, paths)
        count += _grow(mine, paths, weights, max_nodes, tokens[count:], parents[count:], masses[count:])
        ends[query] = count
    return ends, tokens[:count].copy(), parents[:count].copy(), masses[:count].copy()


@njit
def _sort(order, paths):
    """Orders some paths by their tokens, in place; equal ones stay as they are (a merge sort)."""
    count = len(order)
    spare = np.empty(count, np.int64)
    width = 1
    while width < count:
        for begin in range(0, count, 2 * width):
            middle, end = min(begin + width, count), min(begin + 2 * width, count)
            left, right = begin, middle
            for place in range(begin, end):
                if right >= end or (left < middle and not _is_before(paths[order[right]], paths[order[left]])):
                    spare[place] = order[left]
                    left += 1
                else:
                    spare[place] = order[right]
                    right += 1
        order[:] = spare
        width *= 2


@njit
def _is_before(path, other):
    for depth in range(len(path)):
        if path[depth] != other[depth]:
            return path[depth] < other[depth]
    return False


@njit
def _grow(order, paths, weights, max_nodes, tokens, parents, masses):
    """Writes the nodes of one tree, the heaviest first; returns how many.

    A node is a range of the sorted paths that agree up to its depth. No node is heavier than its parent, so the next
    heaviest is always a child of one already taken.
    """
    depths, sources = paths.shape[1], weights.shape[1]
    # (-mass, depth, first path, path behind the last, parent); the first three tell all nodes apart.
    waiting = [(0.0, 0, 0, len(order), -1)]
    count = -1  # the root is no node
    while len(waiting) > 0 and count < max_nodes:
        _, depth, begin, end, parent = heapq.heappop(waiting)
        if depth > 0:
            tokens[count] = paths[order[begin], depth - 1]
            parents[count] = parent
            for source in range(sources):
                mass = 0.0
                for place in range(begin, end):
                    mass += weights[order[place], source]
                masses[count, source] = mass
        node = count
        count += 1
        if depth == depths:
            continue
        at = begin
        while at < end:
            token = paths[order[at], depth]
            first, total = at, 0.0
            while at < end and paths[order[at], depth] == token:
                at += 1
            if token < 0:
                continue
            for source in range(sources):
                mass = 0.0
                for place in range(first, at):
                    mass += weights[order[place], source]
                total += mass
            heapq.heappush(waiting, (-total, depth + 1, first, at, node))
    return max(count, 0)
