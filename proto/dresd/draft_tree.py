"""The draft tree as arrays, and the one algorithm that builds it.

A draft is a set of weighted paths (token sequences that may follow the token just chosen). Merged by common
prefix they form a tree whose nodes carry *masses*: a node's mass is the sum of the weights of the paths through
it, one mass per source (dense neighbours, sparse neighbours, local context, ...). Masses are additive, so trees
merge by adding: of several partitions on a server, of several sources in a decoder.

This module knows arrays only: no messages, no models, no indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PAD = -1
"""Fills a path beyond its end."""

ROOT = -1
"""The parent of a node of depth 1."""


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A tree of n draft tokens under the token just chosen.

    Attributes:
        tokens: int32 [n], token ids.
        parents: int32 [n], index of each node's parent, `ROOT` for depth 1; always less than the node's own index.
        masses: float64 [n, sources], never greater than the parent's.
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    masses: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def empty(cls, sources: int = 1) -> DraftTree:
        """The draft of no tokens."""
        none = np.zeros(0, np.int32)
        return cls(none, none, np.zeros((0, sources), np.float64))

    def depths(self) -> NDArray[np.int32]:
        """int32 [n]: 1 for children of the root."""
        depths = np.ones(len(self), np.int32)
        for node, parent in enumerate(self.parents.tolist()):
            if parent != ROOT:
                depths[node] = depths[parent] + 1
        return depths

    def ancestor_mask(self) -> NDArray[np.bool_]:
        """bool [n, n]: row i marks the nodes on the path from the root to node i, itself included."""
        mask = np.eye(len(self), dtype=np.bool_)
        for node, parent in enumerate(self.parents.tolist()):
            if parent != ROOT:
                mask[node] |= mask[parent]
        return mask


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
        One tree a query, nodes in order of falling total mass, then of depth (a parent before its children).
        A query without paths gets an empty tree.
    """
    sources = weights.shape[1]
    empty = DraftTree.empty(sources)
    if max_nodes <= 0 or paths.size == 0:
        return [empty] * num_queries
    order = np.lexsort((*paths.T[::-1], queries))
    queries, paths, weights = queries[order], paths[order], weights[order]
    num_paths, depth = paths.shape

    # A path opens a new node at a depth where it is the first of its query with this prefix.
    differs = np.ones((num_paths, depth), np.bool_)
    np.not_equal(paths[1:], paths[:-1], out=differs[1:])
    differs[1:, 0] |= queries[1:] != queries[:-1]
    np.logical_or.accumulate(differs, axis=1, out=differs)
    alive = paths != PAD
    opens = differs & alive

    # Nodes are numbered path by path, so a parent (opened by the same or an earlier path) has the lower number.
    numbers = np.cumsum(opens.ravel()).reshape(opens.shape) - 1
    node_of = np.maximum.accumulate(np.where(opens, numbers, -1), axis=0)
    rows, columns = np.nonzero(opens)
    num_nodes = len(rows)
    node_tokens = paths[rows, columns]
    node_parents = np.where(columns > 0, node_of[rows, np.maximum(columns - 1, 0)], ROOT)
    node_queries = queries[rows]
    members, member_paths = node_of[alive], np.broadcast_to(np.arange(num_paths)[:, None], alive.shape)[alive]
    masses: NDArray[np.float64] = np.stack(
        [np.bincount(members, weights[member_paths, source], num_nodes) for source in range(sources)],
        axis=1,
        dtype=np.float64,
    )

    ranked = np.lexsort((columns, -masses.sum(axis=1), node_queries))
    starts = np.searchsorted(node_queries[ranked], np.arange(num_queries + 1))
    trees = []
    place = np.full(num_nodes + 1, ROOT, np.int32)  # the last element stays ROOT: it answers for parent -1
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        kept = ranked[begin : min(end, begin + max_nodes)]
        if len(kept) == 0:
            trees.append(empty)
            continue
        place[kept] = np.arange(len(kept), dtype=np.int32)
        trees.append(DraftTree(node_tokens[kept], place[node_parents[kept]], masses[kept]))
    return trees


def merge_trees(trees: Sequence[DraftTree], max_nodes: int) -> DraftTree:
    """The tree of all paths of several trees: equal nodes are one, whose masses are the sum of theirs.

    Args:
        trees: at least one, all of as many sources.
        max_nodes: nodes kept, as in `merge_paths`. A node that one of the trees had lost to pruning lacks that mass.
    """
    parts = [_paths_of(tree) for tree in trees]
    depth = max(paths.shape[1] for paths, _ in parts)
    paths = np.full((sum(len(paths) for paths, _ in parts), depth), PAD, np.int32)
    row = 0
    for part, _ in parts:
        paths[row : row + len(part), : part.shape[1]] = part
        row += len(part)
    weights = np.concatenate([weights for _, weights in parts])
    return merge_paths(np.zeros(len(paths), np.int64), paths, weights, num_queries=1, max_nodes=max_nodes)[0]


def _paths_of(tree: DraftTree) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """A path to every node (int32 [n, depth]), weighted with what ends there (float64 [n, sources])."""
    depths = tree.depths()
    paths = np.full((len(tree), int(depths.max(initial=0))), PAD, np.int32)
    ends = tree.masses.copy()
    for node, parent in enumerate(tree.parents.tolist()):
        if parent != ROOT:
            paths[node] = paths[parent]
            ends[parent] -= tree.masses[node]
        paths[node, depths[node] - 1] = tree.tokens[node]
    return paths, np.maximum(ends, 0.0)  # a parent's mass may be less than its children's by rounding
