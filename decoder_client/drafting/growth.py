"""Grows the draft tree of the likeliest tokens out of everything the sources hold, level by level.

Works on arrays of paths; a level's nodes, masses and probabilities come from a handful of array operations, whatever
the number of paths. Knows no model, no service and no budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from decoder_client.drafting.weights import SOURCES, SourceWeights
from dresd.draft_tree import ROOT

ORIGINS = (*SOURCES, "table")
"""Where a node's probability comes from, by column of `Growth.origins`: the sources, and what the target said of the
token pair elsewhere."""

_TOKENS = np.int64(1) << 32


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the sources hold of one sequence's next tokens.

    Attributes:
        paths: int32 [m, depth], continuations, `PAD` from the end on.
        masses: float64 [m, 3], by source.
        previous: the token before the newest one, -1 for none.
        newest: the token just chosen.
    """

    paths: NDArray[np.int32]
    masses: NDArray[np.float64]
    previous: int
    newest: int


class NextTokens(Protocol):
    """Knows likely next tokens of token pairs."""

    def lookup(
        self, previous: NDArray[np.int64], current: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
        """int64 [n, k] next tokens (-1 for none), float64 [n, k] probabilities, bool [n] whether anything is known."""


@dataclass(frozen=True, slots=True)
class Growth:
    """n nodes, parents before children.

    Attributes:
        tokens: int64 [n].
        parents: int64 [n], `ROOT` for depth 1.
        probabilities: float64 [n], that the target's tokens pass through the node; never above the parent's.
        origins: float64 [n, 4], the same shared out by `ORIGINS`.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    origins: NDArray[np.float64]


def grow(
    evidence: Evidence,
    weights: SourceWeights,
    table: NextTokens,
    fresh: NextTokens,
    *,
    max_depth: int,
    beam: int,
    floor: float,
    vocab_size: int,
) -> Growth:
    """The tree of all nodes that are likely enough.

    Args:
        evidence: of one sequence.
        weights: of the sources.
        table: likely next tokens in general.
        fresh: those that the target gave in this sequence.
        max_depth: of the tree.
        beam: nodes kept at each depth, the likeliest.
        floor: the least probability of a node.
        vocab_size: of the target; no node has a token beyond it.
    """
    paths = evidence.paths[:, :max_depth]
    masses = evidence.masses * weights.sources
    group = np.zeros(len(paths), np.int64)
    node_ids = np.array([ROOT])
    previous, current = np.array([evidence.previous]), np.array([evidence.newest])
    reach = np.ones(1)
    levels: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]] = []
    count = 0
    for depth in range(max_depth):
        if depth < paths.shape[1]:
            tokens = paths[:, depth].astype(np.int64)
            goes_on = tokens >= 0
            if not goes_on.all():
                paths, masses, group, tokens = paths[goes_on], masses[goes_on], group[goes_on], tokens[goes_on]
        else:
            tokens = np.zeros(0, np.int64)
            paths, masses, group = paths[:0], masses[:0], group[:0]
        width = len(reach)
        escape = weights.escape(depth)
        totals = np.bincount(group, masses.sum(axis=1), width) + escape
        table_tokens, table_shares, _ = table.lookup(previous, current)
        fresh_tokens, fresh_shares, is_fresh = fresh.lookup(previous, current)
        if is_fresh.any():
            totals += weights.fresh * is_fresh
        at = np.arange(width)[:, None] * _TOKENS
        keys = np.concatenate(
            [group * _TOKENS + tokens, (at + table_tokens)[table_tokens >= 0], (at + fresh_tokens)[fresh_tokens >= 0]]
        )
        if len(keys) == 0:
            break
        children, members = np.unique(keys, return_inverse=True)
        mine, theirs = members[: len(tokens)], members[len(tokens) :]
        shares = np.empty((len(children), len(ORIGINS)))
        for source in range(len(SOURCES)):
            shares[:, source] = np.bincount(mine, masses[:, source], len(children))
        from_tables = np.concatenate(
            [escape * table_shares[table_tokens >= 0], weights.fresh * fresh_shares[fresh_tokens >= 0]]
        )
        shares[:, -1] = np.bincount(theirs, from_tables, len(children))
        parents = children // _TOKENS
        shares *= (reach / totals)[parents][:, None]
        probabilities = shares.sum(axis=1)
        kept = np.flatnonzero((probabilities >= floor) & (children % _TOKENS < vocab_size))
        if len(kept) > beam:
            kept = np.sort(kept[np.argpartition(-probabilities[kept], beam)[:beam]])
        if len(kept) == 0:
            break
        parents = parents[kept]
        child_tokens = children[kept] % _TOKENS
        levels.append((child_tokens, node_ids[parents], probabilities[kept], shares[kept]))
        place = np.full(len(children), -1)
        place[kept] = np.arange(len(kept))
        group = place[mine]
        stays = group >= 0
        paths, masses, group = paths[stays], masses[stays], group[stays]
        previous, current, reach = current[parents], child_tokens, probabilities[kept]
        node_ids = np.arange(count, count + len(kept))
        count += len(kept)
    if not levels:
        return Growth(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros((0, len(ORIGINS))))
    return Growth(*(np.concatenate(parts) for parts in zip(*levels, strict=True)))
