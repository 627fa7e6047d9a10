"""The tokens that may follow some nodes, with everything the sources hold of each of them.

Works on arrays: all nodes of one depth and all paths through them at once. Knows no model, no service and no budget.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decoder_client.drafting.acceptance import (
    COLUMNS,
    FRESH,
    FROM_TABLES,
    IS_FRESH,
    IS_KNOWN,
    MASSES,
    MIXTURE,
    TABLE,
    TOTALS,
)
from decoder_client.drafting.fresh import FreshTable
from decoder_client.drafting.weights import PAIR_SHARE, SINGLE_SHARE, SourceWeights
from dresd.token_table import TokenTable

_TOKEN_BITS = 32
_ONES = np.ones(3)


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is known beside a sequence's paths.

    Attributes:
        weights: of the sources.
        table: likely next tokens in general.
        fresh: those that the target gave in this sequence.
    """

    weights: SourceWeights
    table: TokenTable
    fresh: FreshTable


@dataclass(frozen=True, slots=True)
class Level:
    """F nodes of one depth, and the p paths that go on through them.

    Attributes:
        depth: 0 for the root.
        previous: int64 [F], the token before each node's, -1 for none.
        current: int64 [F], each node's token.
        group: int64 [p], the node that each path goes through.
        tokens: int64 [p], its token after the node.
        masses: float64 [p, 3], weighted.
    """

    depth: int
    previous: NDArray[np.int64]
    current: NDArray[np.int64]
    group: NDArray[np.int64]
    tokens: NDArray[np.int64]
    masses: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The n children of a level's nodes, by node and then by token.

    Attributes:
        parents: int64 [n], nodes of the level.
        tokens: int64 [n].
        known: float32 [n, COLUMNS], what is known of each; see `acceptance`.
        members: int64 [p], the child that each path goes through.
    """

    parents: NDArray[np.int64]
    tokens: NDArray[np.int64]
    known: NDArray[np.float32]
    members: NDArray[np.int64]


def candidates(level: Level, knowledge: Knowledge) -> Candidates:
    """Everything that any source proposes after a level's nodes."""
    weights = knowledge.weights
    table_tokens, table_shares, is_pair = knowledge.table.lookup(level.previous, level.current)
    in_table = table_tokens >= 0
    fresh_tokens, fresh_shares, is_fresh = knowledge.fresh.lookup(level.previous, level.current)
    in_fresh = fresh_tokens >= 0
    nodes = np.arange(len(level.current))[:, None] << _TOKEN_BITS
    keys = np.concatenate(
        [
            (level.group << _TOKEN_BITS) + level.tokens,
            (nodes + table_tokens)[in_table],
            (nodes + fresh_tokens)[in_fresh],
        ]
    )
    count, paths = len(keys), len(level.group)
    if count == 0:
        nothing = np.zeros(0, np.int64)
        return Candidates(nothing, nothing, np.zeros((0, COLUMNS), np.float32), nothing)
    # Columns: the sources' masses, the table's probability, the target's own.
    amounts = np.zeros((count, 5))
    amounts[:paths, :3] = level.masses
    shares = table_shares[in_table]
    amounts[paths : paths + len(shares), 3] = shares
    amounts[paths + len(shares) :, 4] = fresh_shares[in_fresh]

    order = keys.argsort(kind="stable")
    keys = keys[order]
    opens, ranks = _runs(keys)
    members = np.empty(count, np.int64)
    members[order] = ranks
    found = keys[opens]
    parents = found >> _TOKEN_BITS
    sums = np.add.reduceat(amounts[order], opens, axis=0)
    first, ranks = _runs(parents)
    totals = np.add.reduceat(sums[:, :3], first, axis=0)

    # A level's nodes are described once each, and their children by where they belong.
    escape = weights.escape(level.depth)
    at = parents[first]
    fresh, pair = is_fresh[at], is_pair[at]
    about = np.empty((len(at), 5))
    about[:, 0] = totals @ _ONES + escape + weights.fresh * fresh
    about[:, 1] = escape * np.where(pair, PAIR_SHARE, SINGLE_SHARE)
    about[:, 2] = fresh
    about[:, 3] = pair
    about[:, 4] = in_table[at, 0]
    about = about[ranks]
    known = np.empty((len(found), COLUMNS), np.float32)
    from_tables = about[:, 1] * sums[:, 3] + weights.fresh * sums[:, 4]
    known[:, MASSES] = sums[:, :3]
    known[:, TOTALS] = totals[ranks]
    known[:, FRESH] = sums[:, 4]
    known[:, TABLE] = sums[:, 3]
    known[:, MIXTURE] = (sums[:, :3] @ _ONES + from_tables) / about[:, 0]
    known[:, FROM_TABLES] = from_tables
    known[:, IS_FRESH : IS_KNOWN + 1] = about[:, 2:]
    return Candidates(parents, found - (parents << _TOKEN_BITS), known, members[:paths])


def _runs(ascending: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each run of equal numbers begins, and the run that each number belongs to."""
    opens = np.empty(len(ascending), np.bool_)
    opens[0] = True
    np.not_equal(ascending[1:], ascending[:-1], out=opens[1:])
    return opens.nonzero()[0], opens.cumsum() - 1
