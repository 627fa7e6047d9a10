"""RetrieverClient: drafts for a decode loop, or none, and never an exception or a wait beyond the deadline.

A thread of its own keeps the connection: after trouble it shakes hands again, at growing intervals, outside the
decode path. Because of that thread, and of gRPC's own, a client must be created after any fork of the process.
Knows nothing of models, drafting or verification.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType

import grpc
import numpy as np
from numpy.typing import NDArray

from decoder_client.breaker import Breaker
from decoder_client.handshake import Handshake, shake_hands
from decoder_client.query_batch import QueryBatch
from decoder_client.retrieve_link import Pending, RetrieveLink
from decoder_client.retriever_config import RetrieverConfig
from decoder_client.retriever_errors import RetrieverError, RetrieverMismatchError, RetrieverUnavailableError
from decoder_client.retriever_stats import CallRecorder, RetrieverStats
from decoder_client.wire import Draft, WireError, drafts_of
from dresd.identity import ModelIdentity, differences
from dresd.v1 import retriever_pb2 as pb

__all__ = [
    "Draft",
    "Handshake",
    "RetrieverClient",
    "RetrieverConfig",
    "RetrieverError",
    "RetrieverMismatchError",
    "RetrieverStats",
    "RetrieverUnavailableError",
]

logger = logging.getLogger(__name__)

_JOIN_S = 2.0
_SAME_COMPLAINT_S = 60.0


class RetrieverClient:
    """One decoder's connection to a retriever. Methods may be called from several threads.

    Usage: `with RetrieverClient(config) as client: client.connect(identity); client.retrieve(...)`.
    """

    def __init__(self, config: RetrieverConfig) -> None:
        self._config = config
        self._recorder = CallRecorder()
        self._breaker = Breaker(config.failure_threshold, config.retry_base_s, config.retry_max_s)
        self._identity: ModelIdentity | None = None
        self._keeper: threading.Thread | None = None
        # Guards everything below, and the breaker; notified when the breaker opens and on close.
        self._changed = threading.Condition()
        self._closed = False
        self._link: RetrieveLink | None = None  # the one in use
        self._links: set[RetrieveLink] = set()  # all not closed yet: in use, dialling, given up
        self._handshake: Handshake | None = None
        self._trouble = ""
        self._complained_s: dict[str, float] = {}

    def connect(self, identity: ModelIdentity) -> Handshake:
        """Shakes hands; from then on the client keeps itself connected until it is closed. Called once.

        Args:
            identity: the decoder's target model.

        Raises:
            RetrieverUnavailableError: nobody answers, or the server cannot serve now.
            RetrieverMismatchError: it serves another model's drafts.
            RetrieverError: the client is closed or connected already.
        """
        self._check_unconnected()
        link, handshake = self._dial(identity, None)
        self._adopt(link, handshake)
        self._start_keeper(identity)
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
        try:
            self.connect(identity)
        except RetrieverUnavailableError as error:
            with self._changed:
                self._breaker.trip()
                self._trouble = str(error)
            self._complain(f"decoding without retrieved drafts until the service is up: {error}")
            self._start_keeper(identity)

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
    def is_started(self) -> bool:
        """Whether one of the connect methods has been called; the service may be down all the same."""
        return self._keeper is not None

    @property
    def handshake(self) -> Handshake | None:
        """The latest handshake, None before the first. It changes when the service comes back with another build:
        reduce keys with this one's reducer, and read it anew for every call.
        """
        return self._handshake

    @property
    def stats(self) -> RetrieverStats:
        """What happened to the calls so far."""
        return self._recorder.snapshot()

    @property
    def trouble(self) -> str:
        """Why the service is left alone at the moment, for people; "" while it is being asked."""
        return self._trouble

    def retrieve(
        self,
        keys: NDArray[np.float16],
        next_tokens: Sequence[int],
        *,
        left_contexts: NDArray[np.int32] | None = None,
        neighbors: int,
        sparse_neighbors: int = 0,
        max_nodes: int,
        max_depth: int = 0,
        temperature: float,
        match_temperature: float = 3.3,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Draft] | None:
        """Asks for drafts of a batch of positions.

        Args:
            keys: float16 [B, dims], reduced by the handshake's reducer.
            next_tokens: [B], the token chosen at each position.
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
            One draft a position; None if there are none in this step: the service is down, late, overloaded or left
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
        with self._changed:
            link, handshake = self._link, self._handshake
        if len(next_tokens) == 0:
            return []
        if link is None or handshake is None:
            self._recorder.skipped()
            return None
        if keys.shape[1] != handshake.key_recipe.dims:
            # The service came back with another reducer between the caller's reducing and now.
            logger.warning("keys have %d numbers and the datastore's %d", keys.shape[1], handshake.key_recipe.dims)
            self._recorder.failed()
            return None
        deadline = began + self._config.deadline_ms / 1e3
        pending = [link.submit(request, deadline) for request in queries.requests(handshake)]
        drafts: list[Draft] = []
        try:
            if meanwhile is not None:
                # Work at once would keep the interpreter from the thread that sends.
                pending[-1].wait_until_sent()
                meanwhile()
            for each in pending:
                part = self._await(link, each, handshake.model.vocab_size)
                if part is None:
                    return None
                drafts.extend(part)
        finally:
            for each in pending:
                link.forget(each)
        self._recorder.answered(time.monotonic() - began)
        with self._changed:
            self._breaker.success()
        return drafts

    def close(self) -> None:
        """Ends all calls and threads. The client cannot be used again; `retrieve` returns None."""
        with self._changed:
            self._closed = True
            self._link = None
            links, self._links = self._links, set()
            self._changed.notify_all()
        for link in links:
            link.close()
        # An owner may be collected, and closes its client then, in any thread: in ours, too.
        if self._keeper is not None and self._keeper is not threading.current_thread():
            self._keeper.join(_JOIN_S)

    def __enter__(self) -> RetrieverClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check_unconnected(self) -> None:
        if self._closed or self._keeper is not None:
            raise RetrieverError("this retriever client is closed or connected already; create another one")

    def _start_keeper(self, identity: ModelIdentity) -> None:
        self._identity = identity
        self._keeper = threading.Thread(target=self._keep_connected, args=(identity,), name="dresd-keeper", daemon=True)
        self._keeper.start()

    def _await(self, link: RetrieveLink, pending: Pending, vocab_size: int) -> list[Draft] | None:
        if not pending.wait():
            self._recorder.late()
            self._failed(link, f"no answer within {self._config.deadline_ms:g} ms")
            return None
        answer = pending.answer
        if answer is not None and answer.HasField("response"):
            try:
                return drafts_of(answer.response, pending.request.request, vocab_size=vocab_size)
            except WireError as error:
                self._recorder.failed()
                self._failed(link, f"a faulty answer: {error}")
                return None
        self._recorder.failed()
        if answer is None:
            self._failed(link, "the connection was lost", at_once=True)
        else:
            self._refused(link, answer.error)
        return None

    def _refused(self, link: RetrieveLink, error: pb.StreamError) -> None:
        logger.debug("a request was refused: %s", error.message)
        if error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]:
            return  # the service is fine, the request was not
        another_build = error.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
        self._failed(link, error.message, at_once=another_build)

    def _failed(self, link: RetrieveLink, reason: str, *, at_once: bool = False) -> None:
        """Counts a failure of `link`; leaves the service alone if there were enough of them."""
        with self._changed:
            if link is not self._link:
                return  # given up already
            if at_once:
                self._breaker.trip()
            else:
                self._breaker.failure()
            if self._breaker.is_open:
                self._link = None
                self._trouble = reason
                self._changed.notify_all()
                self._complain(f"no drafts from the retriever at {self._config.address} for now: {reason}")

    def _keep_connected(self, identity: ModelIdentity) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._link is None)
                given_up = [] if self._closed else list(self._links)
                pause = self._breaker.pause_s()
            for link in given_up:
                self._discard(link)
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, pause):
                    return
            try:
                link, handshake = self._dial(identity, self._handshake)
            except RetrieverError as error:
                self._still_down(str(error))
            else:
                self._adopt(link, handshake)

    def _still_down(self, reason: str) -> None:
        if reason != self._trouble and not self._closed:
            self._trouble = reason
            self._complain(reason)

    def _complain(self, sentence: str) -> None:
        """Warns, but of the same trouble once a minute: a service at the edge of its deadline fails again and again."""
        now = time.monotonic()
        self._complained_s = {said: when for said, when in self._complained_s.items() if now < when + _SAME_COMPLAINT_S}
        repeated = sentence in self._complained_s
        logger.log(logging.DEBUG if repeated else logging.WARNING, "%s", sentence)
        self._complained_s.setdefault(sentence, now)

    def _dial(self, identity: ModelIdentity, known: Handshake | None) -> tuple[RetrieveLink, Handshake]:
        config = self._config
        link = RetrieveLink(
            config.address, config.access, lambda broken, reason: self._failed(broken, reason, at_once=True)
        )
        with self._changed:
            if self._closed:
                link.close()
                raise RetrieverError("this retriever client is closed")
            self._links.add(link)
        try:
            handshake = shake_hands(
                link.stub,
                config.address,
                identity,
                collection=config.collection,
                timeout_s=config.connect_timeout_s,
                require_same_weights=config.require_same_weights,
                known=known,
            )
            link.open_stream()
        except RetrieverError:
            self._discard(link)
            raise
        return link, handshake

    def _adopt(self, link: RetrieveLink, handshake: Handshake) -> None:
        with self._changed:
            if self._closed:
                return  # close() has the link
            if self._handshake is not None:
                logger.info("the retriever at %s is back, build %s", self._config.address, handshake.build_id)
                self._recorder.reconnected()
            self._link, self._handshake, self._trouble = link, handshake, ""
            self._breaker.close()

    def _discard(self, link: RetrieveLink) -> None:
        with self._changed:
            self._links.discard(link)
        link.close()
