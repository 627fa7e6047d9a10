"""A draft tree's likeliest nodes out of everything the sources hold.

Knows no model, no service and no budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from decoder_client.drafting.acceptance import FoldedModel, fitted_model
from decoder_client.drafting.drafter import LikelyTokens
from decoder_client.drafting.evidence import SOURCES, Evidence
from decoder_client.drafting.fresh import FreshTable
from decoder_client.drafting.kernel import FROM_TABLES, likeliest_nodes
from decoder_client.drafting.likeliest import likeliest_tokens
from decoder_client.drafting.lookup import TableArrays, table_arrays
from decoder_client.drafting.retrieved import RetrievedPaths
from decoder_client.drafting.weights import SourceWeights
from decoder_client.key_kernel import few_keys
from dresd.compiled import warm
from dresd.draft_tree import ROOT, DraftTree
from dresd.token_table import TokenTable

ORIGINS = (*SOURCES, "table")
"""Where a node comes from, by column of a draft tree's masses: the sources, and what the target said of the same tokens
elsewhere, in the datastore's corpus or in this sequence."""


@dataclass(frozen=True, slots=True)
class Growth:
    """n nodes, the likeliest first, so parents before children.

    Attributes:
        tokens: int64 [n].
        parents: int64 [n], `ROOT` for depth 1.
        probabilities: float64 [n], that the target's tokens pass through the node; never above the parent's.
        known: float64 [n, COLUMNS], what is known of each; see `kernel`.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    known: NDArray[np.float64]

    def tree(self, nodes: NDArray[np.int64]) -> DraftTree:
        """Some nodes, parents before children; their masses are their probabilities, shared out by `ORIGINS`."""
        place = np.full(len(self.tokens) + 1, ROOT, np.int32)  # the last element stays ROOT: it answers for parent -1
        place[nodes] = np.arange(len(nodes), dtype=np.int32)
        parts = self.known[nodes][:, [0, 1, 2, FROM_TABLES]]
        parts *= (self.probabilities[nodes] / np.maximum(parts.sum(axis=1), 1e-30))[:, None]
        return DraftTree(self.tokens[nodes].astype(np.int32), place[self.parents[nodes]], parts)

    def likeliest_path(self) -> NDArray[np.int64]:
        """The nodes of the path of the greatest expected accepted length, root first."""
        gains = [0.0] * (len(self.tokens) + 1)
        best_child = [ROOT] * len(gains)
        parents, probabilities = self.parents.tolist(), self.probabilities.tolist()
        # Parents come before their children, so a node's own gain is complete when its turn comes.
        for node in range(len(parents) - 1, -1, -1):
            gain = probabilities[node] + gains[node + 1]
            parent = parents[node] + 1
            if gain > gains[parent]:
                gains[parent], best_child[parent] = gain, node
        path = []
        node = best_child[0]
        while node != ROOT:
            path.append(node)
            node = best_child[node + 1]
        return np.array(path, np.int64)


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is known beside a sequence's paths.

    Attributes:
        weights: of the sources.
        table: likely next tokens in general.
        fresh: those that the target gave in this sequence.
    """

    weights: SourceWeights
    table: TableArrays
    fresh: FreshTable


@dataclass(frozen=True, slots=True)
class GrowthLimits:
    """What is grown.

    Attributes:
        max_depth: of the tree.
        max_nodes: of the tree.
        floor: the least probability of a node.
        vocab_size: of the target; no node has a token beyond it.
    """

    max_depth: int
    max_nodes: int
    floor: float
    vocab_size: int


def grow(evidence: Evidence, known: Knowledge, model: FoldedModel, limits: GrowthLimits) -> Growth:
    """The likeliest nodes."""
    weights = known.weights
    return Growth(
        *likeliest_nodes(
            evidence.paths,
            evidence.masses * weights.values[:3],
            evidence.previous,
            evidence.newest,
            known.table,
            known.fresh.arrays,
            weights.values,
            model.arrays,
            math.exp(weights.escape_score + model.escape),
            limits.max_depth,
            limits.max_nodes,
            limits.floor,
            limits.vocab_size,
        )
    )


@cache
def compile_once() -> None:
    """Compiles what drafting calls, or loads it from the cache on disk, so that no answer waits for it."""
    warm(_call_everything)


def _call_everything() -> None:
    weights, fresh = SourceWeights(), FreshTable()
    fresh.add(LikelyTokens(np.zeros((1, 2), np.int64), np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32)))
    evidence = Evidence(np.zeros((1, 1), np.int32), np.ones((1, len(SOURCES))), 0, 0)
    table = table_arrays(TokenTable.empty())
    grow(evidence, Knowledge(weights, table, fresh), fitted_model(), GrowthLimits(1, 1, 0.5, 1))
    weights.learn(evidence, [0], table, fresh)
    RetrievedPaths.of(DraftTree.empty(2))
    few_keys(np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32), np.zeros(1, np.float32))
    likeliest_tokens(np.zeros((1, 1), np.float32), np.zeros(1, np.int64), 1)
