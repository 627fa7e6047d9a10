"""Token Recycling: for every token the 8 likeliest next ones as last seen, unrolled into a fixed tree.

Source: Luo et al., "Turning Trash into Treasure: Token Recycling" (arXiv 2408.08696): a matrix vocabulary x 8, kept
across prompts, refreshed from the target's own logits at every pass; a static tree of 80 nodes, 6 deep.

Deviations: the matrix starts empty, and a token without a row has no children (published: a matrix kept from earlier
runs, or zeros); a replay cannot refresh the rows of rejected nodes; the shape of the tree is ours, as the published one
is a table of numbers tuned on other models: its nodes are the 80 likeliest if the r-th likeliest token is right with
probability 0.6 / r^2, and a smaller budget keeps the likeliest of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from decoder_client.drafting.drafter import DraftRequest, Outcome
from dresd.draft_tree import PAD, ROOT, DraftTree

CANDIDATES = 8
TEMPLATE_NODES = 80
TEMPLATE_DEPTH = 6


def template() -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """The tree's shape, likeliest node first, so a parent before its children.

    Returns:
        parents: int32 [80], `ROOT` for none.
        ranks: int32 [80], from 0: which of its parent's likeliest tokens a node is.
        probabilities: float64 [80].
    """
    by_rank = [0.6 / rank**2 for rank in range(1, CANDIDATES + 1)]
    nodes: list[tuple[int, int, float]] = []
    waiting = [(-probability, 1, ROOT, rank) for rank, probability in enumerate(by_rank)]
    heapq.heapify(waiting)
    while len(nodes) < TEMPLATE_NODES:
        negative, depth, parent, rank = heapq.heappop(waiting)
        if depth < TEMPLATE_DEPTH:
            for child, probability in enumerate(by_rank):
                heapq.heappush(waiting, (negative * probability, depth + 1, len(nodes), child))
        nodes.append((parent, rank, -negative))
    parents, ranks, probabilities = zip(*nodes, strict=True)
    return np.array(parents, np.int32), np.array(ranks, np.int32), np.array(probabilities, np.float64)


class TokenRecycling:
    """See the module; a `Drafter` without a session: what it learns it keeps."""

    def __init__(self, vocab_size: int) -> None:
        """Starts knowing nothing of `vocab_size` tokens."""
        self._likely = np.full((vocab_size, CANDIDATES), PAD, np.int32)
        parents, ranks, probabilities = template()
        self._shape = list(zip(parents.tolist(), ranks.tolist(), probabilities.tolist(), strict=True))

    def start(self, prompt: Sequence[int]) -> None:
        """See `Drafter`."""

    def propose(self, requests: Sequence[DraftRequest[None]]) -> list[DraftTree]:
        """See `Drafter`."""
        return [self._propose(request) for request in requests]

    def observe(self, session: None, outcome: Outcome) -> None:
        """Refreshes the rows of the tokens that the target has just read, rejected ones included."""
        del session
        likely = outcome.likely(rejected=True)
        # Of a token seen twice the later row stays.
        self._likely[likely.contexts[:, 1]] = likely.next_tokens[:, :CANDIDATES]

    def _propose(self, request: DraftRequest[None]) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        masses: list[float] = []
        depths: list[int] = []
        place: dict[int, int] = {ROOT: ROOT}
        for number, (parent, rank, probability) in enumerate(self._shape):
            if len(tokens) == request.max_nodes:
                break
            above = place.get(parent)
            if above is None or (above != ROOT and depths[above] == request.max_depth):
                continue
            token = int(self._likely[request.text[-1] if above == ROOT else tokens[above], rank])
            if token == PAD:
                continue
            place[number] = len(tokens)
            tokens.append(token)
            parents.append(above)
            masses.append(probability)
            depths.append(1 if above == ROOT else depths[above] + 1)
        return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32), np.array(masses)[:, None])
