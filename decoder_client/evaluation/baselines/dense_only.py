"""The datastore's dense neighbours alone: what one lookup with the next token as pre-filter gives, and nothing else.

Not published elsewhere; it shows what the datastore is worth without the other sources of our drafts. The tree is the
retriever's own: continuations of the 50 nearest entries of the token just chosen, weighted by similarity.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from decoder_client.drafting.drafter import DraftRequest, Outcome
from decoder_client.drafting.retriever import Retriever
from dresd.draft_tree import DraftTree

NEIGHBORS = 50
TEMPERATURE = 0.1


class DenseOnly:
    """See the module; a `Drafter` without a session."""

    def __init__(self, retriever: Retriever) -> None:
        """Drafts from what `retriever` finds."""
        self._retriever = retriever

    def start(self, prompt: Sequence[int]) -> None:
        """See `Drafter`: every lookup stands for itself."""

    def propose(self, requests: Sequence[DraftRequest[None]]) -> list[DraftTree]:
        """See `Drafter`: one call for all; no drafts where the retriever does not answer in time."""
        handshake = self._retriever.handshake
        nothing = [DraftTree.empty()] * len(requests)
        if handshake is None:
            return nothing
        states = torch.stack([request.state for request in requests])
        asked = time.perf_counter()
        drafts = self._retriever.retrieve(
            handshake.reducer.reduce_torch(states).cpu().numpy(),
            [request.text[-1] for request in requests],
            reducer=handshake.reducer,
            left_contexts=None,
            neighbors=NEIGHBORS,
            sparse_neighbors=0,
            max_nodes=max(request.max_nodes for request in requests),
            max_depth=max(request.max_depth for request in requests),
            temperature=TEMPERATURE,
            match_temperature=1.0,
        )
        waited = (time.perf_counter() - asked) / len(requests)
        for request in requests:
            request.stats.retrieval_s += waited
            request.stats.retrievals += 1
            request.stats.retrievals_answered += drafts is not None
        return nothing if drafts is None else [draft.tree for draft in drafts]

    def observe(self, session: None, outcome: Outcome) -> None:
        """See `Drafter`: the datastore does not change."""
