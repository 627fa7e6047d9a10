"""RetrieverClient: drafts for a decode loop, or none, and never an exception or a wait beyond the deadline.

Threads of its own keep the connections: after trouble they shake hands again, at growing intervals, outside the decode
path. Because of those threads, and of gRPC's own, a client must be created after any fork of the process. Knows nothing
of models, drafting or verification.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from decoder_client.batch_call import BatchCall
from decoder_client.drafts import Coverage, Drafts
from decoder_client.fleet import Fleet
from decoder_client.handshake import Handshake
from decoder_client.hedging import Hedging
from decoder_client.query_batch import QueryBatch
from decoder_client.reducer import KeyReducer
from decoder_client.retriever_config import RetrieverConfig
from decoder_client.retriever_errors import RetrieverError, RetrieverMismatchError, RetrieverUnavailableError
from decoder_client.retriever_stats import CallRecorder, RetrieverStats
from decoder_client.routes import Routes
from decoder_client.wire import Draft, compile_checks
from dresd.identity import ModelIdentity, differences
from dresd.path_merging import compile_merging

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = [
    "Coverage",
    "Draft",
    "Drafts",
    "Handshake",
    "RetrieverClient",
    "RetrieverConfig",
    "RetrieverError",
    "RetrieverMismatchError",
    "RetrieverStats",
    "RetrieverUnavailableError",
]

logger = logging.getLogger(__name__)


class RetrieverClient:
    """One decoder's connection to a retrieval service, of one server or many; several threads may use it.

    Usage: `with RetrieverClient(config) as client: client.connect(identity); client.retrieve(...)`.

    Args:
        config: where the service is, and how it is asked.
        tracer_provider: OpenTelemetry's, whom calls are told; None traces nothing.
    """

    def __init__(self, config: RetrieverConfig, tracer_provider: TracerProvider | None = None) -> None:
        self._config = config
        self._tracing = None
        if tracer_provider is not None:
            # OpenTelemetry is an optional extra.
            from decoder_client.tracing import CallTracing

            self._tracing = CallTracing(tracer_provider)
        self._recorder = CallRecorder()
        self._hedging = Hedging(config.hedging)
        self._identity: ModelIdentity | None = None
        self._fleet: Fleet | None = None
        self._closed = False

    def connect(self, identity: ModelIdentity) -> Handshake:
        """Shakes hands; from then on the client keeps itself connected until it is closed. Called once.

        Args:
            identity: the decoder's target model.

        Raises:
            RetrieverUnavailableError: nobody answers, or no server can serve now.
            RetrieverMismatchError: it serves another model's drafts.
            RetrieverError: the client is closed or connected already.
        """
        fleet = self._new_fleet(identity)
        try:
            handshake = fleet.first_handshake()
        except BaseException:
            fleet.close()
            raise
        self._adopt(fleet, identity)
        return handshake

    def connect_when_up(self, identity: ModelIdentity) -> None:
        """Like `connect`, but a service that is down is no error: hands are shaken in the background once it is up.

        Args:
            identity: the decoder's target model.

        Raises:
            RetrieverMismatchError: it is up and serves another model's drafts. (Found later, that is logged, and the
                service is left alone.)
            RetrieverError: the client is closed or connected already.
        """
        fleet = self._new_fleet(identity)
        try:
            fleet.first_handshake()
        except RetrieverUnavailableError as error:
            logger.warning("decoding without retrieved drafts until the service is up: %s", str(error))
        except BaseException:
            fleet.close()
            raise
        self._adopt(fleet, identity)

    def check_identity(self, identity: ModelIdentity) -> None:
        """Whether another decoder may use this client, which is connected already, for its target model `identity`.

        Raises:
            RetrieverMismatchError: it asks for another model's drafts.
            RetrieverError: it is not connected.
        """
        connected = self._identity
        if connected is None:
            raise RetrieverError("this retriever client is not connected; call connect first")
        if not self._config.require_same_weights:
            connected = replace(connected, weights_fingerprint=identity.weights_fingerprint)
        if differ := differences(identity, connected):
            raise RetrieverMismatchError(
                f"the client of the retriever at {self._config.address} is connected for another model "
                f"({connected.name}; this decoder runs {identity.name}); decoder against client: {'; '.join(differ)}. "
                "Give each model a client of its own"
            )

    @property
    def config(self) -> RetrieverConfig:
        """As given."""
        return self._config

    @property
    def is_started(self) -> bool:
        """Whether one of the connect methods has been called; the service may be down all the same."""
        return self._fleet is not None

    @property
    def handshake(self) -> Handshake | None:
        """The latest handshake, None before the first. It changes when the service goes over to another build:
        reduce keys with this one's reducer, name it with the call, and read it anew for the next.
        """
        return None if self._fleet is None else self._fleet.handshake

    @property
    def servers(self) -> tuple[str, ...]:
        """The addresses of the servers known, those that are left alone included."""
        return () if self._fleet is None else self._fleet.servers

    @property
    def servers_asked(self) -> frozenset[str]:
        """Those of `servers` that can be asked now."""
        return frozenset() if self._fleet is None else self._fleet.servers_asked

    @property
    def stats(self) -> RetrieverStats:
        """What happened to the calls so far."""
        return self._recorder.snapshot()

    @property
    def trouble(self) -> str:
        """Why the service is left alone at the moment, for people; "" while it is being asked."""
        return "" if self._fleet is None else self._fleet.trouble

    def retrieve(
        self,
        keys: NDArray[np.float16],
        next_tokens: Sequence[int],
        *,
        reducer: KeyReducer | None = None,
        left_contexts: NDArray[np.int32] | None = None,
        neighbors: int,
        sparse_neighbors: int = 0,
        max_nodes: int,
        max_depth: int = 0,
        temperature: float,
        match_temperature: float = 3.3,
        meanwhile: Callable[[], None] | None = None,
    ) -> Drafts | None:
        """Asks for drafts of a batch of positions.

        Args:
            keys: float16 [B, dims], reduced by the reducer of a handshake.
            next_tokens: [B], the token chosen at each position.
            reducer: that one; None is the latest handshake's. Where the service has gone over to another build since
                the keys were made, they are for the build before it, as long as that is served.
            left_contexts: int32 [B, C], the tokens before each next token, most recent first, -1 for none; more than
                the datastore stores are not looked at.
            neighbors: nearest keys searched for each, 0 for none; more than the server allows is that many.
            sparse_neighbors: longest matches of the left context looked up for each, 0 for none; likewise.
            max_nodes: of each tree; more than the server allows is that many.
            max_depth: of each tree; 0, or more than the datastore stores, is what it stores.
            temperature: of the similarities.
            match_temperature: of the lengths of the matches, in tokens.
            meanwhile: called once the request is on its way, instead of only waiting; not called if none is sent.

        Returns:
            One draft a position, and how much of the datastore they come from: what did not answer in time is missing
            from the drafts of its tokens. None if nothing answered: the service is down, late, overloaded or left
            alone, or refused the request (a NaN in a key). Never later than the deadline.

        Raises:
            ValueError: the arrays do not form a batch, or neither kind of neighbour is asked for.
        """
        began = time.monotonic()
        queries = QueryBatch(
            keys,
            next_tokens,
            left_contexts,
            neighbors,
            sparse_neighbors,
            max_nodes,
            max_depth,
            temperature,
            match_temperature,
        )
        if len(next_tokens) == 0:
            return Drafts()
        if self._fleet is None:
            routes = None
        else:
            routes = self._fleet.routes if reducer is None else self._fleet.routes_of(reducer)
        if routes is None:
            self._recorder.skipped()
            return None
        dims = routes.handshake.key_recipe.dims
        if keys.shape[1] != dims:
            # The service went over to another reducer between the caller's reducing and now.
            logger.warning("keys have %d numbers and the datastore's %d", keys.shape[1], dims)
            self._recorder.failed()
            return None
        if self._tracing is None:
            return self._ask(queries, routes, began, meanwhile)[0]
        with self._tracing.call(len(next_tokens)) as span:
            drafts, hedged = self._ask(queries, routes, began, meanwhile, span.traceparent)
            span.outcome(drafts, hedged)
            return drafts

    def _ask(
        self,
        queries: QueryBatch,
        routes: Routes,
        began: float,
        meanwhile: Callable[[], None] | None,
        traceparent: str = "",
    ) -> tuple[Drafts | None, int]:
        """As `retrieve`, and the second requests made."""
        deadline_ms = self._config.deadline_ms
        call = BatchCall(queries, routes, began + deadline_ms / 1e3, deadline_ms, self._hedging, traceparent)
        try:
            if meanwhile is not None:
                # Work at once would keep the interpreter from the thread that sends.
                call.wait_until_sent()
                meanwhile()
            drafts = call.drafts()
        finally:
            call.forget()
        if drafts is not None and self._config.require_full_coverage and not drafts.coverage.is_full:
            self._recorder.failed()
            return None, call.hedged
        if drafts is not None:
            self._recorder.answered(time.monotonic() - began, drafts.coverage, call.hedged)
        elif call.was_late:
            self._recorder.late()
        else:
            self._recorder.failed()
        return drafts, call.hedged

    def close(self) -> None:
        """Ends all calls and threads. The client cannot be used again; `retrieve` returns None."""
        self._closed = True
        if self._fleet is not None:
            self._fleet.close()

    def __enter__(self) -> RetrieverClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _new_fleet(self, identity: ModelIdentity) -> Fleet:
        if self._closed or self._fleet is not None:
            raise RetrieverError("this retriever client is closed or connected already; create another one")
        compile_checks()
        compile_merging()
        return Fleet(self._config, identity, self._recorder)

    def _adopt(self, fleet: Fleet, identity: ModelIdentity) -> None:
        self._identity, self._fleet = identity, fleet
        if self._closed:  # meanwhile, by another thread
            fleet.close()
