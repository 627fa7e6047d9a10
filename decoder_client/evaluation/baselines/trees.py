"""Draft trees of the simple kinds that published drafters make. Knows arrays only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dresd.draft_tree import PAD, ROOT, DraftTree
from dresd.path_merging import merge_paths


def path_tree(tokens: Sequence[int]) -> DraftTree:
    """One path, of mass 1 throughout."""
    length = len(tokens)
    return DraftTree(np.array(tokens, np.int32), np.arange(length, dtype=np.int32) - 1, np.ones((length, 1)))


def frequent_prefixes(paths: NDArray[np.int32], max_nodes: int) -> DraftTree:
    """The prefixes that most of the paths share; ties go to the shorter one, then to the lower token.

    Args:
        paths: int32 [p, depth], `PAD` from each path's end on.
        max_nodes: prefixes kept.

    Returns:
        A node's mass is its prefix's share of the paths.
    """
    weights = np.full((len(paths), 1), 1.0 / max(len(paths), 1))
    return merge_paths(np.zeros(len(paths), np.int64), paths, weights, num_queries=1, max_nodes=max_nodes)[0]


def arranged(tokens: Sequence[int], parents: Sequence[int], masses: Sequence[float], max_depth: int) -> DraftTree:
    """A tree given node by node, parents (`ROOT` for none) before children, without the nodes below `max_depth`."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    kept = [node for node, depth in enumerate(depths) if depth <= max_depth]
    place = {node: number for number, node in enumerate(kept)}
    return DraftTree(
        np.array([tokens[node] for node in kept], np.int32),
        np.array([place.get(parents[node], ROOT) for node in kept], np.int32),
        np.array([masses[node] for node in kept], np.float64)[:, None],
    )


def cut_after(paths: NDArray[np.int32], end: int) -> None:
    """Turns each path into `PAD` from its first `end` on, in place."""
    paths[np.logical_or.accumulate(paths == end, axis=1)] = PAD
