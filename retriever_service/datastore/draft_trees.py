"""The trees that the neighbours of a batch make, compiled: weighed, continued and merged in one call.

Takes arrays only; the formulas are said in `store`.
"""

from __future__ import annotations

from dresd.compiled import njit
from dresd.path_merging import merge
from retriever_service.datastore.finding import gather
from retriever_service.datastore.weighing import weigh


@njit
def draft_trees(
    ids, similarities, temperature, matched, lengths, left_context_length, match_temperature,
    stored, first_id, depth, max_nodes,
):  # fmt: skip
    """One tree a query.

    Args:
        ids, similarities, temperature, matched, lengths, left_context_length, match_temperature: as for `weigh`.
        stored: uint16 or uint32 [n, N], continuations.
        first_id: of the first of them.
        depth: of the trees, at most N.
        max_nodes: of each tree.

    Returns:
        ends, tokens, parents, masses: as from `merge`.
        totals, bests, longest, counts: as from `weigh`.
    """
    queries, ids, weights, totals, bests, longest, counts = weigh(
        ids, similarities, temperature, matched, lengths, left_context_length, match_temperature
    )
    paths = gather(stored, ids - first_id, depth)
    ends, tokens, parents, masses = merge(queries, paths, weights, len(counts), max_nodes)
    return ends, tokens, parents, masses, totals, bests, longest, counts
