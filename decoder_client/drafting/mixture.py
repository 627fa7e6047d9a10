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

from decoder_client.drafting.acceptance import fitted_model
from decoder_client.drafting.budget import FixedBudget, NodeBudget
from decoder_client.drafting.drafter import DraftRequest, Outcome
from decoder_client.drafting.evidence import DENSE, SPARSE, Evidence, gather
from decoder_client.drafting.fresh import FreshTable
from decoder_client.drafting.growth import ORIGINS, Growth, GrowthLimits, Knowledge, compile_once, grow
from decoder_client.drafting.local import LocalIndex, LocalPlaces
from decoder_client.drafting.lookup import table_arrays
from decoder_client.drafting.retrieval import Query, Retrieval, RetrievalConfig
from decoder_client.drafting.retrieved import RetrievedPaths
from decoder_client.drafting.retriever import Handshaken, Retriever
from decoder_client.drafting.weights import SourceWeights
from dresd.draft_tree import DraftTree
from dresd.token_table import TokenTable

_NODES_A_STEP_OF_PATH = 16
"""Nodes grown for each that a single path may have."""


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
        places: of the text, earlier ones like the latest; None for none.
        is_prepared: for the coming draft all is done that does not depend on the retriever's answer.
        evidence: that of the latest draft; None if the latest step made none.
        undigested: the latest outcome and its new tokens, if nothing was learned from it yet.
        retrieval_s: the latest draft's share of the call to the retriever; 0 for none.
        draft_s: what the latest draft took to make, that share included.
    """

    index: LocalIndex = field(default_factory=LocalIndex)
    fresh: FreshTable = field(default_factory=FreshTable)
    handshake: Handshaken | None = None
    retrieved: RetrievedPaths | None = None
    places: LocalPlaces | None = None
    is_prepared: bool = False
    evidence: Evidence | None = None
    undigested: tuple[Outcome, tuple[int, ...]] | None = None
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
        self._table = table_arrays(TokenTable.empty())
        self._table_of: Handshaken | None = None
        self._model = fitted_model()
        compile_once()

    def start(self, _prompt: Sequence[int]) -> MixtureSession:
        """See `Drafter`."""
        self._budget.begin()
        if self._retrieval is not None:
            self._retrieval.begin()
        return MixtureSession()

    def observe(self, session: MixtureSession, outcome: Outcome) -> None:
        """See `Drafter`."""
        new = outcome.text[-outcome.count :]
        is_prompt = session.index.length == 0
        self._digest(session)
        keys = self._keys(session, outcome, len(outcome.states) if is_prompt else outcome.count)
        session.index.extend(outcome.text if is_prompt else new, keys)
        if session.retrieved is not None:
            session.retrieved = session.retrieved.after(new)
        # Where drafting does not pay, looking at logits does not either.
        if session.evidence is not None or is_prompt:
            session.undigested = outcome, tuple(new)

    def _digest(self, session: MixtureSession) -> None:
        """Learns from the latest outcome, once: put off until there is nothing to do but wait for the retriever."""
        if session.undigested is None:
            return
        outcome, new = session.undigested
        session.undigested = None
        # First what lets go of the interpreter: the threads that carry the call to the retriever take turns with it.
        likely = outcome.likely() if self._config.tables else None
        if session.evidence is not None:
            self._weights.learn(session.evidence, new, self._table, session.fresh)
            self._settle(session, outcome)
            session.evidence = None
        if likely is not None:
            session.fresh.add(likely)

    def propose(self, requests: Sequence[DraftRequest[MixtureSession]]) -> list[DraftTree]:
        """See `Drafter`."""
        if not self._budget.opens():
            return [DraftTree.empty(len(ORIGINS))] * len(requests)
        started = time.perf_counter()
        self._retrieve(requests)
        for request in requests:
            self._prepare(request)
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
        return growth.likeliest_path() if self._config.path else np.arange(len(growth.tokens))

    def _retrieve(self, requests: Sequence[DraftRequest[MixtureSession]]) -> None:
        """Asks for all sequences that have keys: in one call, but while the service goes over to another reducer."""
        if self._retrieval is None or self._retrieval.handshake is None or not self._retrieval.opens():
            return
        by_reducer: dict[str, tuple[Handshaken, list[DraftRequest[MixtureSession]]]] = {}
        for one in requests:
            handshake = one.session.handshake
            if handshake is not None and one.session.index.key is not None:
                by_reducer.setdefault(handshake.reducer.sha256, (handshake, []))[1].append(one)

        def prepare_all() -> None:
            for one in requests:
                self._prepare(one)

        for handshake, asking in by_reducer.values():
            queries = [Query(one.session.index, one.max_depth, one.stats) for one in asking]
            answers, share_s = self._retrieval.ask(queries, handshake, prepare_all)
            for one, answer in zip(asking, answers, strict=True):
                one.session.retrieval_s = share_s
                # What an earlier answer still foretells is better than nothing.
                one.session.retrieved = answer or one.session.retrieved

    def _prepare(self, request: DraftRequest[MixtureSession]) -> None:
        """Does, once a step, all that does not depend on the retriever's answer."""
        session = request.session
        if session.is_prepared:
            return
        session.is_prepared = True
        self._digest(session)
        if self._config.places:
            session.places = session.index.places(max_places=self._config.places, depth=self._depth(request))

    def _depth(self, request: DraftRequest[MixtureSession]) -> int:
        """Of the coming draft; a path is no deeper than it has nodes."""
        return min(request.max_depth, request.max_nodes) if self._config.path else request.max_depth

    def _settle(self, session: MixtureSession, outcome: Outcome) -> None:
        """Tells what came of a draft to everything that decides about the next."""
        retrieval_s, session.retrieval_s = session.retrieval_s, 0.0
        masses = outcome.tree.masses
        self._weights.calibrate(float(masses.sum()), len(outcome.nodes))
        self._budget.observe(outcome.count, session.draft_s)
        if self._retrieval is not None and retrieval_s > 0.0 and self._budget.token_s is not None:
            accepted = masses[list(outcome.nodes)]
            retrieved = float((accepted[:, [DENSE, SPARSE]].sum(axis=1) / accepted.sum(axis=1)).sum())
            self._retrieval.record(retrieved * self._budget.token_s, retrieval_s)

    def _grow(self, request: DraftRequest[MixtureSession]) -> Growth:
        session, config = request.session, self._config
        depth, nodes = self._depth(request), request.max_nodes
        if config.path:
            nodes *= _NODES_A_STEP_OF_PATH  # the best path is chosen among many
        session.is_prepared = False
        session.evidence = gather(session.index, session.places, session.retrieved, max_depth=depth)
        limits = GrowthLimits(depth, nodes, self._budget.floor, self._vocab_size)
        return grow(session.evidence, Knowledge(self._weights, self._table, session.fresh), self._model, limits)

    def _keys(self, session: MixtureSession, outcome: Outcome, count: int) -> NDArray[np.float32] | None:
        """The keys of the first `count` states, by the reducer served now; None without one."""
        handshake = None if self._retrieval is None else self._retrieval.handshake
        if handshake is None:
            return None
        if session.handshake is None or handshake.reducer.sha256 != session.handshake.reducer.sha256:
            # Another reducer: its keys do not compare with those so far.
            session.index.forget_keys()
            session.retrieved = None
        session.handshake = handshake
        if handshake is not self._table_of:
            self._table_of = handshake
            self._table = table_arrays(handshake.token_table if self._config.tables else TokenTable.empty())
        made = outcome.made_keys
        if made is not None and made.reducer is handshake.reducer:
            keys = made.keys[:count]
        else:
            keys = handshake.reducer.reduce_torch(outcome.states[:count]).float().cpu().numpy()
        # A damaged reducer may overflow; without keys the sequence drafts from its text alone.
        return keys if np.isfinite(keys).all() else None
