"""Asks the retriever for the sequences of a step, as long as its answers are worth the wait.

Knows the retriever's surface and what its answers gain; nothing of how drafts are made of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from decoder_client.drafting.gate import Gate
from decoder_client.drafting.local import MAX_MATCH, LocalIndex
from decoder_client.drafting.retrieved import RetrievedPaths
from decoder_client.drafting.retriever import Handshaken, Retriever
from decoder_client.stats import GenerationStats


@dataclass(frozen=True, slots=True)
class RetrievalConfig:
    """What is asked for. Checks itself: ValueError names the field.

    Attributes:
        neighbors: entries with the nearest keys; 0 for none.
        sparse_neighbors: entries with the longest matching left context; 0 for none.
        nodes: of the tree that the retriever answers with.
        temperature: of the keys' similarities.
        match_temperature: of the lengths of matching left contexts.
    """

    neighbors: int = 32
    sparse_neighbors: int = 10
    nodes: int = 64
    temperature: float = 0.09
    match_temperature: float = 2.4

    def __post_init__(self) -> None:
        for name in ("neighbors", "sparse_neighbors"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if self.neighbors + self.sparse_neighbors < 1:
            raise ValueError("neighbors and sparse_neighbors must not both be 0")
        if self.nodes < 1:
            raise ValueError(f"nodes must be 1 or more, not {self.nodes}")
        for name in ("temperature", "match_temperature"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Query:
    """One sequence's question.

    Attributes:
        index: its text and keys.
        max_depth: of the answer.
        stats: notes calls and waiting.
    """

    index: LocalIndex
    max_depth: int
    stats: GenerationStats


class Retrieval:
    """The calls of one drafter."""

    def __init__(self, retriever: Retriever, config: RetrievalConfig) -> None:
        """Asks `retriever` for what `config` says."""
        self._retriever = retriever
        self._config = config
        self._gate = Gate()

    @property
    def handshake(self) -> Handshaken | None:
        """Of the datastore served now; None before the first."""
        return self._retriever.handshake

    def begin(self) -> None:
        """A new sequence starts, which the datastore may know more of."""
        self._gate.begin()

    def opens(self) -> bool:
        """Asked once a step: whether a call at this one may pay."""
        return self._gate.opens()

    def record(self, gain_s: float, cost_s: float) -> None:
        """What an answer gained a sequence, and its share of the call that brought it."""
        self._gate.record(gain_s, cost_s)

    def ask(
        self, queries: Sequence[Query], handshake: Handshaken, meanwhile: Callable[[], None]
    ) -> tuple[list[RetrievedPaths | None], float]:
        """One call for all `queries`, whose keys are by the reducer of `handshake`.

        Args:
            queries: at least one.
            handshake: the latest, or the one before it.
            meanwhile: may be done while the answer is on its way; its time does not count as waiting.

        Returns:
            What each got, None without an answer in time; and each one's share of the time in seconds.
        """
        config = self._config
        width = min(handshake.left_context_length, MAX_MATCH)
        busy_s = 0.0

        def work() -> None:
            nonlocal busy_s
            begun = time.perf_counter()
            meanwhile()
            busy_s += time.perf_counter() - begun

        started = time.perf_counter()
        drafts = self._retriever.retrieve(
            np.array([query.index.key for query in queries], np.float16),
            [query.index.last_two[1] for query in queries],
            reducer=handshake.reducer,
            left_contexts=np.stack([query.index.left_context(width) for query in queries]),
            neighbors=config.neighbors,
            sparse_neighbors=config.sparse_neighbors,
            max_nodes=config.nodes,
            max_depth=max(query.max_depth for query in queries),
            temperature=config.temperature,
            match_temperature=config.match_temperature,
            meanwhile=work,
        )
        share_s = (time.perf_counter() - started - busy_s) / len(queries)
        for query in queries:
            query.stats.retrieval_s += share_s
            query.stats.retrievals += 1
            query.stats.retrievals_answered += drafts is not None
        if drafts is None:
            return [None] * len(queries), share_s
        return [RetrievedPaths.of(draft.tree) for draft in drafts], share_s
