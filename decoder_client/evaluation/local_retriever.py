"""A datastore opened in this process, for drafters that would otherwise ask a service.

Its drafts are those of a service with the same datastore; its times lack the network. Knows the datastore and the
`Retriever` protocol of drafting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decoder_client.reducer import KeyReducer
from dresd.draft_tree import DraftTree
from dresd.token_table import TokenTable
from retriever_service.datastore import Datastore


@dataclass(frozen=True, slots=True)
class LocalHandshake:
    """What a service would say of the datastore, see `Handshaken`."""

    reducer: KeyReducer
    token_table: TokenTable
    left_context_length: int


@dataclass(frozen=True, slots=True)
class LocalDraft:
    """The answer to one query, see `RetrievedDraft`."""

    tree: DraftTree


class LocalRetriever:
    """See the module; a `Retriever` that always answers."""

    def __init__(self, datastore: Datastore) -> None:
        """Answers from `datastore`."""
        self._datastore = datastore
        self._handshake = LocalHandshake(
            KeyReducer.from_bytes(datastore.reducer_bytes),
            datastore.token_table,
            datastore.manifest.left_context_length,
        )

    @property
    def handshake(self) -> LocalHandshake:
        """See `Retriever`."""
        return self._handshake

    def retrieve(
        self,
        keys: NDArray[np.float16],
        next_tokens: Sequence[int],
        *,
        reducer: KeyReducer,  # noqa: ARG002 - there is only one
        left_contexts: NDArray[np.int32] | None,
        neighbors: int,
        sparse_neighbors: int,
        max_nodes: int,
        max_depth: int,
        temperature: float,
        match_temperature: float,
        meanwhile: Callable[[], None] | None = None,  # noqa: ARG002 - there is nothing to wait for
    ) -> list[LocalDraft]:
        """See `Retriever`."""
        batch = self._datastore.draft(
            keys.astype(np.float32),
            np.array(next_tokens, np.int64),
            left_contexts=left_contexts,
            neighbors=neighbors,
            sparse_neighbors=sparse_neighbors,
            max_nodes=max_nodes,
            max_depth=max_depth,
            temperature=temperature,
            match_temperature=match_temperature,
        )
        return [LocalDraft(tree) for tree in batch.trees]
