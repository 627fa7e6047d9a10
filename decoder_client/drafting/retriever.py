"""What drafting needs of a retriever client, so that anything that answers like one can be drafted from.

Types only; knows no wire and no service.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from decoder_client.reducer import KeyReducer
from dresd.draft_tree import DraftTree
from dresd.token_table import TokenTable


class RetrievedDraft(Protocol):
    """The retriever's answer to one query."""

    @property
    def tree(self) -> DraftTree:
        """Masses of two sources, the dense and the sparse neighbours."""


class Handshaken(Protocol):
    """What is known of the datastore behind a retriever."""

    @property
    def reducer(self) -> KeyReducer:
        """Turns states into that datastore's keys."""

    @property
    def token_table(self) -> TokenTable:
        """Likely next tokens by the target's own probabilities."""

    @property
    def left_context_length(self) -> int:
        """Tokens of left context that a sparse lookup may compare."""


class Retriever(Protocol):
    """A retriever client."""

    @property
    def handshake(self) -> Handshaken | None:
        """The latest, None before the first; read anew for every lookup, because it may be another build's."""

    def retrieve(
        self,
        keys: NDArray[np.float16],
        next_tokens: Sequence[int],
        *,
        reducer: KeyReducer,
        left_contexts: NDArray[np.int32] | None,
        neighbors: int,
        sparse_neighbors: int,
        max_nodes: int,
        max_depth: int,
        temperature: float,
        match_temperature: float,
        meanwhile: Callable[[], None] | None = None,
    ) -> Sequence[RetrievedDraft] | None:
        """One draft a query, or None if there is no answer in time; may call `meanwhile` while it waits.

        The keys are by `reducer`, the handshake's or that of the handshake before it.
        """
