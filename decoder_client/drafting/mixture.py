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

from decoder_client.drafting.acceptance import fitted_model
from decoder_client.drafting.budget import FixedBudget, NodeBudget
from decoder_client.drafting.candidates import Knowledge
from decoder_client.drafting.drafter import DraftRequest, Outcome
from decoder_client.drafting.evidence import Evidence, gather
from decoder_client.drafting.fresh import FreshTable
from decoder_client.drafting.growth import ORIGINS, Growth, GrowthLimits, grow
from decoder_client.drafting.local import LocalIndex
from decoder_client.drafting.retrieval import Query, Retrieval, RetrievalConfig
from decoder_client.drafting.retrieved import RetrievedPaths
from decoder_client.drafting.retriever import Handshaken, Retriever
from decoder_client.drafting.weights import DENSE, PAIR_SHARE, SINGLE_SHARE, SPARSE, Sighting, SourceWeights
from dresd.draft_tree import ROOT, DraftTree
from dresd.token_table import TokenTable


@dataclass(frozen=True, slots=True)
class MixtureConfig:
    """What is drafted from. Checks itself: ValueError names the field.

    Attributes:
        retrieval: what the retriever is asked for.
        places: earlier places of the text; 0 for none.
        tables: use what the target said of the same tokens before, in the datastore's corpus and in this sequence.
        path: draft the best single path instead of a tree, for engines that verify only one.
    """

    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)
    places: int = 24
    tables: bool = True
    path: bool = False

    def __post_init__(self) -> None:
        if self.places < 0:
            raise ValueError(f"places must be 0 or more, not {self.places}")


@dataclass(slots=True)
class MixtureSession:
    """One sequence.

    Attributes:
        index: its text and keys.
        fresh: what the target said in it.
        handshake: whose reducer made the keys.
        retrieved: the latest answer of the retriever, as far as it is still ahead of the text.
        evidence: that of the latest draft; None if the latest step made none.
        retrieval_s: the latest draft's share of the call to the retriever; 0 for none.
        draft_s: what the latest draft took to make, that share included.
    """

    index: LocalIndex = field(default_factory=LocalIndex)
    fresh: FreshTable = field(default_factory=FreshTable)
    handshake: Handshaken | None = None
    retrieved: RetrievedPaths | None = None
    evidence: Evidence | None = None
    retrieval_s: float = 0.0
    draft_s: float = 0.0


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
        self._config = config or MixtureConfig()
        self._retrieval = None if retriever is None else Retrieval(retriever, self._config.retrieval)
        self._vocab_size = vocab_size
        self._budget = budget or FixedBudget()
        self._weights = SourceWeights()
        self._table = TokenTable.empty()
        self._table_of: Handshaken | None = None
        self._model = fitted_model()

    def start(self, _prompt: Sequence[int]) -> MixtureSession:
        """See `Drafter`."""
        return MixtureSession()

    def observe(self, session: MixtureSession, outcome: Outcome) -> None:
        """See `Drafter`."""
        new = outcome.text[-outcome.count :]
        is_prompt = session.index.length == 0
        drafted = session.evidence is not None
        if session.evidence is not None:
            self._learn(session, session.evidence, new)
            self._settle(session, outcome)
            session.evidence = None
        keys = self._keys(session, outcome.states if is_prompt else outcome.states[: outcome.count])
        session.index.extend(outcome.text if is_prompt else new, keys)
        if session.retrieved is not None:
            session.retrieved = session.retrieved.after(new)
        # Where drafting does not pay, looking at logits does not either.
        if self._config.tables and (drafted or is_prompt):
            session.fresh.add(outcome.likely())

    def propose(self, requests: Sequence[DraftRequest[MixtureSession]]) -> list[DraftTree]:
        """See `Drafter`."""
        if not self._budget.opens():
            return [DraftTree.empty(len(ORIGINS))] * len(requests)
        started = time.perf_counter()
        self._retrieve(requests)
        grown = [self._grow(request) for request in requests]
        orders = [self._order(growth)[: request.max_nodes] for growth, request in zip(grown, requests, strict=True)]
        counts = self._budget.choose([g.probabilities[order] for g, order in zip(grown, orders, strict=True)])
        trees = [growth.tree(order[:count]) for growth, order, count in zip(grown, orders, counts, strict=True)]
        share_s = (time.perf_counter() - started) / len(requests)
        for request in requests:
            request.session.draft_s = share_s
        return trees

    def _order(self, growth: Growth) -> NDArray[np.int64]:
        """Nodes worth verifying, the likeliest first and parents before children."""
        return _likeliest_path(growth) if self._config.path else np.argsort(-growth.probabilities, kind="stable")

    def _retrieve(self, requests: Sequence[DraftRequest[MixtureSession]]) -> None:
        """Asks for all sequences whose keys are of the datastore served now."""
        for one in requests:
            one.session.retrieval_s = 0.0
        handshake = None if self._retrieval is None else self._retrieval.handshake
        if self._retrieval is None or handshake is None or not self._retrieval.opens():
            return
        asking = [one for one in requests if one.session.handshake is handshake and one.session.index.key is not None]
        if not asking:
            return
        queries = [Query(one.session.index, one.max_depth, one.stats) for one in asking]
        answers, share_s = self._retrieval.ask(queries, handshake)
        for one, answer in zip(asking, answers, strict=True):
            one.session.retrieval_s = share_s
            # What an earlier answer still foretells is better than nothing.
            one.session.retrieved = answer or one.session.retrieved

    def _settle(self, session: MixtureSession, outcome: Outcome) -> None:
        """Tells what came of a draft to everything that decides about the next."""
        masses = outcome.tree.masses
        self._weights.calibrate(float(masses.sum()), len(outcome.nodes))
        self._budget.observe(outcome.count, session.draft_s)
        if self._retrieval is not None and session.retrieval_s > 0.0 and self._budget.token_s is not None:
            accepted = masses[list(outcome.nodes)]
            retrieved = float((accepted[:, [DENSE, SPARSE]].sum(axis=1) / accepted.sum(axis=1)).sum())
            self._retrieval.record(retrieved * self._budget.token_s, session.retrieval_s)

    def _grow(self, request: DraftRequest[MixtureSession]) -> Growth:
        session, config = request.session, self._config
        depth = min(request.max_depth, request.max_nodes) if config.path else request.max_depth
        session.evidence = gather(session.index, session.retrieved, max_places=config.places, max_depth=depth)
        limits = GrowthLimits(depth, request.max_nodes, self._budget.floor, self._vocab_size)
        return grow(session.evidence, Knowledge(self._weights, self._table, session.fresh), self._model, limits)

    def _keys(self, session: MixtureSession, states: Tensor) -> NDArray[np.float32] | None:
        """The keys of some states, by the reducer served now; None without one."""
        handshake = None if self._retrieval is None else self._retrieval.handshake
        if handshake is not session.handshake:
            # Another datastore: its keys do not compare with those so far.
            session.index.forget_keys()
            session.handshake = handshake
            session.retrieved = None
        if handshake is None:
            return None
        if handshake is not self._table_of:
            self._table_of = handshake
            self._table = handshake.token_table if self._config.tables else TokenTable.empty()
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
                self._table_share(previous, current, token),
                session.fresh.probability(previous, current, token),
                depth,
            )
            self._weights.learn(seen)
            if not (seen.masses.any() or seen.table or seen.fresh):
                break
            paths, masses = paths[hit], masses[hit]
            previous, current = current, token

    def _table_share(self, previous: int, current: int, token: int) -> float:
        tokens, probabilities, is_pair = self._table.lookup(np.array([previous]), np.array([current]))
        return float(probabilities[tokens == token].sum()) * (PAIR_SHARE if is_pair[0] else SINGLE_SHARE)


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
