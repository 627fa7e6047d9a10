"""The datastore's neighbours of one kind alone: what one lookup gives, dense or sparse, and nothing else.

Not published elsewhere; it shows what each kind is worth without the other sources of our drafts. The tree is the
retriever's own: continuations of neighbours of the token just chosen, weighted by the similarity of their keys, or by
how many tokens before it match.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from decoder_client.drafting.drafter import DraftRequest, Outcome
from decoder_client.drafting.retriever import Retriever
from dresd.draft_tree import PAD, DraftTree

NEIGHBORS = 50
"""Of the kind asked for."""
TEMPERATURE = 0.1
MATCH_TEMPERATURE = 2.4


class OneKind:
    """See the module; a `Drafter` without a session. Asks for either number of neighbours, the other one 0."""

    def __init__(self, retriever: Retriever, *, neighbors: int = 0, sparse_neighbors: int = 0) -> None:
        """Drafts from what `retriever` finds."""
        self._retriever = retriever
        self._neighbors = neighbors
        self._sparse_neighbors = sparse_neighbors

    def start(self, prompt: Sequence[int]) -> None:
        """See `Drafter`: every lookup stands for itself."""

    def propose(self, requests: Sequence[DraftRequest[None]]) -> list[DraftTree]:
        """See `Drafter`: one call for all; no drafts where the retriever does not answer in time."""
        handshake = self._retriever.handshake
        nothing = [DraftTree.empty()] * len(requests)
        if handshake is None:
            return nothing
        states = torch.stack([request.state for request in requests])
        width = handshake.left_context_length
        left_contexts = np.full((len(requests), width), PAD, np.int32)
        for row, request in zip(left_contexts, requests, strict=True):
            before = request.text[-2 : -2 - width : -1]
            row[: len(before)] = before
        asked = time.perf_counter()
        drafts = self._retriever.retrieve(
            handshake.reducer.reduce_torch(states).cpu().numpy(),
            [request.text[-1] for request in requests],
            reducer=handshake.reducer,
            left_contexts=left_contexts if self._sparse_neighbors else None,
            neighbors=self._neighbors,
            sparse_neighbors=self._sparse_neighbors,
            max_nodes=max(request.max_nodes for request in requests),
            max_depth=max(request.max_depth for request in requests),
            temperature=TEMPERATURE,
            match_temperature=MATCH_TEMPERATURE,
        )
        waited = (time.perf_counter() - asked) / len(requests)
        for request in requests:
            request.stats.retrieval_s += waited
            request.stats.retrievals += 1
            request.stats.retrievals_answered += drafts is not None
        return nothing if drafts is None else [draft.tree for draft in drafts]

    def observe(self, session: None, outcome: Outcome) -> None:
        """See `Drafter`: the datastore does not change."""
