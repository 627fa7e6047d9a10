"""Drafts from the retriever: what followed the entries whose keys are nearest to the current state."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from decoder_client.drafting.drafter import DraftRequest, Proposal
from decoder_client.reducer import KeyReducer
from dresd.draft_tree import DraftTree


class RetrievedDraft(Protocol):
    """The retriever's answer to one query."""

    @property
    def tree(self) -> DraftTree:
        """Masses of one source, the dense neighbours."""

    @property
    def total_mass(self) -> float:
        """The mass of all neighbours found."""


class Handshaken(Protocol):
    """What is known of the datastore behind a retriever."""

    @property
    def reducer(self) -> KeyReducer:
        """Turns states into that datastore's keys."""


class Retriever(Protocol):
    """What a dense drafter needs of a retriever client."""

    @property
    def handshake(self) -> Handshaken | None:
        """The latest, None before the first; read anew for every lookup, because it may be another build's."""

    def retrieve(
        self,
        keys: NDArray[np.float16],
        next_tokens: Sequence[int],
        *,
        neighbors: int,
        max_nodes: int,
        max_depth: int,
        temperature: float,
    ) -> Sequence[RetrievedDraft] | None:
        """One draft a query, or None if there is no answer in time."""


class DenseDrafter:
    """Asks a connected retriever with the reduced state that predicted the newest token, and that token."""

    def __init__(self, retriever: Retriever, *, neighbors: int = 50, temperature: float = 0.1) -> None:
        """Drafts from the `neighbors` nearest entries, weighted by similarity at `temperature`."""
        self._retriever = retriever
        self._neighbors = neighbors
        self._temperature = temperature

    def begin(self) -> None:
        """Nothing to forget: every lookup stands for itself."""

    def propose(self, request: DraftRequest) -> Proposal | None:
        """See `Drafter`: weights sum to at most 1, the share of neighbours without a continuation is missing."""
        handshake = self._retriever.handshake
        if handshake is None:
            return None
        key = handshake.reducer.reduce_torch(request.state[None]).cpu().numpy()
        asked = time.perf_counter()
        drafts = self._retriever.retrieve(
            key,
            [request.tokens[-1]],
            neighbors=self._neighbors,
            max_nodes=request.max_nodes,
            max_depth=request.max_depth,
            temperature=self._temperature,
        )
        request.stats.retrieval_s += time.perf_counter() - asked
        request.stats.retrievals += 1
        if drafts is None:
            return None
        request.stats.retrievals_answered += 1
        draft = drafts[0]
        if len(draft.tree) == 0 or draft.total_mass <= 0.0:
            return None
        paths, weights = draft.tree.paths()
        return Proposal(paths, weights[:, 0] / draft.total_mass)
