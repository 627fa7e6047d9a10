"""Grows the draft tree of the likeliest tokens out of everything the sources hold, level by level.

Knows no model, no service and no budget.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decoder_client.drafting.acceptance import COLUMNS, MIXTURE, AcceptanceModel, features, origins
from decoder_client.drafting.candidates import Knowledge, Level, candidates
from decoder_client.drafting.evidence import Evidence
from decoder_client.drafting.weights import SOURCES
from dresd.draft_tree import PAD, ROOT, DraftTree

ORIGINS = (*SOURCES, "table")
"""Where a node comes from, by column of a draft tree's masses: the sources, and what the target said of the same tokens
elsewhere, in the datastore's corpus or in this sequence."""


@dataclass(frozen=True, slots=True)
class Growth:
    """n nodes, parents before children.

    Attributes:
        tokens: int64 [n].
        parents: int64 [n], `ROOT` for depth 1.
        probabilities: float64 [n], that the target's tokens pass through the node; never above the parent's.
        known: float32 [n, COLUMNS], what is known of each; see `acceptance`.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    known: NDArray[np.float32]

    def tree(self, nodes: NDArray[np.int64]) -> DraftTree:
        """Some nodes, parents before children; their masses are their probabilities, shared out by `ORIGINS`."""
        place = np.full(len(self.tokens) + 1, ROOT, np.int32)  # the last element stays ROOT: it answers for parent -1
        place[nodes] = np.arange(len(nodes), dtype=np.int32)
        masses = origins(self.known[nodes]) * self.probabilities[nodes, None]
        return DraftTree(self.tokens[nodes].astype(np.int32), place[self.parents[nodes]], masses)


@dataclass(frozen=True, slots=True)
class GrowthLimits:
    """What is grown.

    Attributes:
        max_depth: of the tree.
        beam: nodes kept at each depth, the likeliest.
        floor: the least probability of a node.
        vocab_size: of the target; no node has a token beyond it.
    """

    max_depth: int
    beam: int
    floor: float
    vocab_size: int


def grow(evidence: Evidence, known: Knowledge, model: AcceptanceModel, limits: GrowthLimits) -> Growth:
    """The tree of all nodes that are likely enough."""
    paths, masses = evidence.paths, evidence.masses * known.weights.sources
    group = np.zeros(len(paths), np.int64)
    previous, current = np.array([evidence.previous]), np.array([evidence.newest])
    reach, node_ids = np.ones(1), np.array([ROOT])
    levels: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float32]]] = []
    count = 0
    escape = float(np.exp(known.weights.escape_score + model.escape[0]))
    for depth in range(limits.max_depth):
        tokens = paths[:, depth].astype(np.int64) if depth < paths.shape[1] else np.full(len(paths), PAD)
        goes_on = (group >= 0) & (tokens >= 0)
        if not goes_on.all():
            paths, masses, group, tokens = paths[goes_on], masses[goes_on], group[goes_on], tokens[goes_on]
        found = candidates(Level(depth, previous, current, group, tokens, masses), known)
        # The network looks at what the mixture finds possible at all.
        possible = found.known[:, MIXTURE] * reach[found.parents] >= limits.floor
        possible &= found.tokens < limits.vocab_size
        kept = possible.nonzero()[0]
        if len(kept) == 0:
            break
        parents, children = found.parents[kept], found.known[kept]
        scores = np.exp(model.scores(features(children, depth)), dtype=np.float64)
        totals = np.bincount(parents, scores, len(current)) + escape
        probabilities = reach[parents] * scores / totals[parents]
        best = (probabilities >= limits.floor).nonzero()[0]
        if len(best) > limits.beam:
            best = np.sort(best[np.argpartition(-probabilities[best], limits.beam)[: limits.beam]])
        if len(best) == 0:
            break
        parents, kept, probabilities = parents[best], kept[best], probabilities[best]
        tokens = found.tokens[kept]
        levels.append((tokens, node_ids[parents], probabilities, children[best]))
        place = np.full(len(found.tokens), -1)
        place[kept] = np.arange(len(kept))
        group = place[found.members]
        previous, current, reach = current[parents], tokens, probabilities
        node_ids = np.arange(count, count + len(kept))
        count += len(kept)
    if not levels:
        return Growth(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros((0, COLUMNS), np.float32))
    return Growth(*(np.concatenate(parts) for parts in zip(*levels, strict=True)))
