"""Whether the numbers of a message form a draft tree, compiled. Takes arrays only."""

from __future__ import annotations

import numpy as np

from dresd.compiled import njit

BAD_TOKEN, BAD_PARENT, BAD_MASS, TOO_DEEP = range(1, 5)
"""What may be wrong; 0 is nothing."""


@njit
def check_tree(tokens, parents, masses, totals, vocab_size, max_depth):
    """The tree of a message that holds as many tokens as parents and masses.

    Args:
        tokens: int64 [n].
        parents: int64 [n], 0 is the root and i + 1 node i.
        masses: float64 [sources, n].
        totals: float64 [sources].
        vocab_size: every token is less.
        max_depth: of the tree.

    Returns:
        fault: what is wrong, or 0.
        detail: the greatest token or depth where it is too great.
        tokens, parents, masses: of a `DraftTree`; of no use with a fault.
    """
    sources, nodes = masses.shape
    tree_tokens, tree_parents = np.empty(nodes, np.int32), np.empty(nodes, np.int32)
    tree_masses, depths = np.empty((nodes, sources)), np.empty(nodes, np.int64)
    fault = 0
    greatest = deepest = np.int64(0)
    for node in range(nodes):
        greatest = max(greatest, tokens[node])
    if greatest >= vocab_size:
        return BAD_TOKEN, greatest, tree_tokens, tree_parents, tree_masses
    for node in range(nodes):
        parent = parents[node] - 1
        if parent >= node:
            return BAD_PARENT, np.int64(0), tree_tokens, tree_parents, tree_masses
        depths[node] = 1 if parent < 0 else depths[parent] + 1
        deepest = max(deepest, depths[node])
        tree_tokens[node], tree_parents[node] = tokens[node], parent
        for source in range(sources):
            if not 0.0 <= masses[source, node] < np.inf:
                fault = BAD_MASS
            tree_masses[node, source] = masses[source, node]
    for total in totals:
        if not 0.0 <= total < np.inf:
            fault = BAD_MASS
    if fault == 0 and deepest > max_depth:
        fault = TOO_DEEP
    return fault, deepest, tree_tokens, tree_parents, tree_masses
