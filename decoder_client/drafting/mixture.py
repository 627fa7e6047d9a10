"""The drafter that decodes by default: retrieved entries, the text itself and the target's own habits in one tree.

For every sequence it gathers evidence (dense and sparse neighbours from a retriever, earlier places of the text, what
the target said before), estimates each node's probability from it, lets the budget choose the nodes, and learns from
what the target accepted. One call to the retriever serves all sequences of a step. Knows no model and no decode loop.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from decoder_client.drafting.budget import FixedBudget, NodeBudget
from decoder_client.drafting.drafter import DraftRequest, Outcome
from decoder_client.drafting.fresh import FreshTable
from decoder_client.drafting.general import GeneralTable
from decoder_client.drafting.growth import Evidence, Growth, NextTokens, grow
from decoder_client.drafting.local import LocalIndex
from decoder_client.drafting.retrieved import RetrievedPaths
from decoder_client.drafting.retriever import Handshaken, Retriever
from decoder_client.drafting.weights import DENSE, LOCAL, SPARSE, Sighting, SourceWeights, local_masses
from dresd.draft_tree import PAD, ROOT, DraftTree

_FLOOR = 1e-3
"""Nodes less likely than this are not looked at."""


@dataclass(frozen=True, slots=True)
class MixtureConfig:
    """What is drafted from. Checks itself: ValueError names the field.

    Attributes:
        neighbors: entries with the nearest keys; 0 for none.
        sparse_neighbors: entries with the longest matching left context; 0 for none.
        retrieved_nodes: of the tree that the retriever answers with.
        places: earlier places of the text; 0 for none.
        tables: use what the target said of the same tokens before, in the datastore's corpus and in this sequence.
        temperature: of the keys' similarities.
        match_temperature: of the lengths of matching left contexts.
        path: draft the best single path instead of a tree, for engines that verify only one.
    """

    neighbors: int = 50
    sparse_neighbors: int = 50
    retrieved_nodes: int = 128
    places: int = 24
    tables: bool = True
    temperature: float = 0.09
    match_temperature: float = 2.4
    path: bool = False

    def __post_init__(self) -> None:
        for name in ("neighbors", "sparse_neighbors", "retrieved_nodes", "places"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        for name in ("temperature", "match_temperature"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")


@dataclass(slots=True)
class MixtureSession:
    """One sequence.

    Attributes:
        index: its text and keys.
        fresh: what the target said in it.
        handshake: whose reducer made the keys.
        retrieved: the latest answer of the retriever, as far as it is still ahead of the text.
        evidence: that of the latest draft.
    """

    index: LocalIndex = field(default_factory=LocalIndex)
    fresh: FreshTable = field(default_factory=FreshTable)
    handshake: Handshaken | None = None
    retrieved: RetrievedPaths | None = None
    evidence: Evidence | None = None


class MixtureDrafter:
    """Drafts for any number of sequences; what it learns of its sources serves all of them. Not for several threads."""

    def __init__(
        self,
        retriever: Retriever | None = None,
        *,
        vocab_size: int,
        config: MixtureConfig | None = None,
        budget: NodeBudget | None = None,
    ) -> None:
        """Drafts from `retriever`, if there is one, and from the text; no token beyond `vocab_size`."""
        self._retriever = retriever
        self._vocab_size = vocab_size
        self._config = config or MixtureConfig()
        self._budget = budget or FixedBudget()
        self._weights = SourceWeights()
        self._table = GeneralTable(None)
        self._table_of: Handshaken | None = None

    def start(self, _prompt: Sequence[int]) -> MixtureSession:
        """See `Drafter`."""
        return MixtureSession()

    def observe(self, session: MixtureSession, outcome: Outcome) -> None:
        """See `Drafter`."""
        new = outcome.text[-outcome.count :]
        if session.evidence is not None:
            self._learn(session, session.evidence, new)
            self._budget.observe(outcome.count)
            session.evidence = None
        is_prompt = session.index.length == 0
        keys = self._keys(session, outcome.states if is_prompt else outcome.states[: outcome.count])
        session.index.extend(outcome.text if is_prompt else new, keys)
        if session.retrieved is not None:
            session.retrieved = session.retrieved.after(new)
        if self._config.tables:
            session.fresh.add(outcome.likely())

    def propose(self, requests: Sequence[DraftRequest[MixtureSession]]) -> list[DraftTree]:
        """See `Drafter`."""
        self._retrieve(requests)
        grown = [self._grow(request) for request in requests]
        orders = [self._order(growth)[: request.max_nodes] for growth, request in zip(grown, requests, strict=True)]
        counts = self._budget.choose([g.probabilities[order] for g, order in zip(grown, orders, strict=True)])
        return [_tree(growth, order[:count]) for growth, order, count in zip(grown, orders, counts, strict=True)]

    def _order(self, growth: Growth) -> NDArray[np.int64]:
        """Nodes worth verifying, the likeliest first and parents before children."""
        return _likeliest_path(growth) if self._config.path else np.argsort(-growth.probabilities, kind="stable")

    def _retrieve(self, requests: Sequence[DraftRequest[MixtureSession]]) -> None:
        """Asks for all sequences whose keys are of the datastore served now."""
        handshake = None if self._retriever is None else self._retriever.handshake
        if self._retriever is None or handshake is None:
            return
        asking = [one for one in requests if one.session.handshake is handshake and one.session.index.key is not None]
        if not asking:
            return
        started = time.perf_counter()
        drafts = self._retriever.retrieve(
            np.array([one.session.index.key for one in asking], np.float16),
            [one.text[-1] for one in asking],
            left_contexts=np.stack([one.session.index.left_context(handshake.left_context_length) for one in asking]),
            neighbors=self._config.neighbors,
            sparse_neighbors=self._config.sparse_neighbors,
            max_nodes=self._config.retrieved_nodes,
            max_depth=max(one.max_depth for one in asking),
            temperature=self._config.temperature,
            match_temperature=self._config.match_temperature,
        )
        share_s = (time.perf_counter() - started) / len(asking)
        for place, one in enumerate(asking):
            one.stats.retrieval_s += share_s
            one.stats.retrievals += 1
            if drafts is not None:
                one.stats.retrievals_answered += 1
                one.session.retrieved = RetrievedPaths.of(drafts[place].tree)

    def _grow(self, request: DraftRequest[MixtureSession]) -> Growth:
        session, config = request.session, self._config
        paths, masses = np.zeros((0, 0), np.int32), np.zeros((0, 3))
        retrieved = session.retrieved
        places = session.index.places(max_places=config.places, depth=request.max_depth) if config.places else None
        if retrieved is not None:
            paths = retrieved.paths[:, : request.max_depth]
            masses = np.zeros((len(paths), 3))
            masses[:, [DENSE, SPARSE]] = retrieved.masses
        if places is not None:
            both = np.full((len(paths) + len(places.paths), max(paths.shape[1], places.paths.shape[1])), PAD, np.int32)
            both[: len(paths), : paths.shape[1]] = paths
            both[len(paths) :, : places.paths.shape[1]] = places.paths
            local = np.zeros((len(places.paths), 3))
            local[:, LOCAL] = local_masses(places)
            paths, masses = both, np.concatenate([masses, local])
        previous = request.text[-2] if len(request.text) > 1 else -1
        session.evidence = Evidence(paths, masses, previous, request.text[-1])
        depth = min(request.max_depth, request.max_nodes) if config.path else request.max_depth
        return grow(
            session.evidence,
            self._weights,
            self._table,
            session.fresh,
            max_depth=depth,
            beam=request.max_nodes,
            floor=_FLOOR,
            vocab_size=self._vocab_size,
        )

    def _keys(self, session: MixtureSession, states: Tensor) -> NDArray[np.float32] | None:
        """The keys of some states, by the reducer served now; None without one."""
        handshake = None if self._retriever is None else self._retriever.handshake
        if handshake is not session.handshake:
            # Another datastore: its keys do not compare with those so far.
            session.index.forget_keys()
            session.handshake = handshake
            session.retrieved = None
        if handshake is None:
            return None
        if handshake is not self._table_of:
            self._table_of = handshake
            self._table = GeneralTable(handshake.token_table if self._config.tables else None)
        return handshake.reducer.reduce_torch(states).float().cpu().numpy()

    def _learn(self, session: MixtureSession, evidence: Evidence, new: Sequence[int]) -> None:
        """Compares what was known with what the target chose, up to the first token that nothing foresaw."""
        paths, masses = evidence.paths, evidence.masses
        previous, current = evidence.previous, evidence.newest
        for depth, token in enumerate(new):
            if depth == paths.shape[1]:
                paths, masses = np.zeros((0, len(new)), np.int32), masses[:0]
            column = paths[:, depth]
            hit = column == token
            seen = Sighting(
                masses[hit].sum(axis=0),
                masses[column >= 0].sum(axis=0),
                _probability(self._table, previous, current, token) or 0.0,
                _probability(session.fresh, previous, current, token),
                depth,
            )
            self._weights.learn(seen)
            if not (seen.masses.any() or seen.table or seen.fresh):
                break
            paths, masses = paths[hit], masses[hit]
            previous, current = current, token


def _probability(table: NextTokens, previous: int, current: int, token: int) -> float | None:
    """What a table says of one token; None if it knows nothing of the pair before it."""
    tokens, probabilities, known = table.lookup(np.array([previous]), np.array([current]))
    return float(probabilities[tokens == token].sum()) if known[0] else None


def _likeliest_path(growth: Growth) -> NDArray[np.int64]:
    """The nodes of the path of the greatest expected accepted length, root first."""
    gains = [0.0] * (len(growth.tokens) + 1)
    best_child = [ROOT] * len(gains)
    parents, probabilities = growth.parents.tolist(), growth.probabilities.tolist()
    # Parents come before their children, so a node's own gain is complete when its turn comes.
    for node in range(len(parents) - 1, -1, -1):
        gain = probabilities[node] + gains[node + 1]
        parent = parents[node] + 1
        if gain > gains[parent]:
            gains[parent], best_child[parent] = gain, node
    path = []
    node = best_child[0]
    while node != ROOT:
        path.append(node)
        node = best_child[node + 1]
    return np.array(path, np.int64)


def _tree(growth: Growth, nodes: NDArray[np.int64]) -> DraftTree:
    """The chosen nodes, parents before children; their masses are the shares of `ORIGINS` in their probability."""
    place = np.full(len(growth.tokens) + 1, ROOT, np.int32)  # the last element stays ROOT: it answers for parent -1
    place[nodes] = np.arange(len(nodes), dtype=np.int32)
    return DraftTree(growth.tokens[nodes].astype(np.int32), place[growth.parents[nodes]], growth.origins[nodes])
