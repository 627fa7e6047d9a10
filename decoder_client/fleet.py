"""The servers of one service as they come and go, and the routes over those that can be asked.

Every server has a connection with a thread of its own; where the address may come to mean other servers, one more
thread looks again, from time to time and after a failure. Knows nothing of queries.
"""

from __future__ import annotations

import logging
import threading

from decoder_client.handshake import Handshake
from decoder_client.reducer import KeyReducer
from decoder_client.retriever_config import RetrieverConfig
from decoder_client.retriever_errors import RetrieverError, RetrieverUnavailableError
from decoder_client.retriever_stats import CallRecorder
from decoder_client.routes import Replica, Routes, follow
from decoder_client.server_connection import ServerConnection
from dresd.addresses import AddressError, Discovery
from dresd.identity import ModelIdentity

logger = logging.getLogger(__name__)

_JOIN_S = 2.0


class Fleet:
    """Connected from the start until it is closed.

    Args:
        config: of the client.
        identity: the decoder's target model.
        recorder: notes reconnections.

    Raises:
        RetrieverError: the address is malformed.
    """

    def __init__(self, config: RetrieverConfig, identity: ModelIdentity, recorder: CallRecorder) -> None:
        self._config = config
        self._identity = identity
        self._recorder = recorder
        self._discovery = Discovery(config.address)
        # Guards everything below; notified on every change of a server, and on close.
        self._changed = threading.Condition(threading.RLock())
        self._closed = False
        self._look_again = False
        self._servers: dict[str, ServerConnection] = {}
        self._leaving: list[ServerConnection] = []  # listed no more, but perhaps about to answer
        self._replicas: list[Replica] = []
        self._routes: Routes | None = None
        self._handshake: Handshake | None = None
        self._discovery_error: AddressError | None = None
        self._resolve()
        self._resolver: threading.Thread | None = None
        if self._discovery.may_change:
            self._resolver = threading.Thread(target=self._keep_resolving, name="dresd-discovery", daemon=True)
            self._resolver.start()

    @property
    def routes(self) -> Routes | None:
        """Over the servers that can be asked now; None where there is none."""
        return self._routes

    def routes_of(self, reducer: KeyReducer) -> Routes | None:
        """Over servers whose keys are by `reducer`: the build followed, or one before it that is still served."""
        routes = self._routes
        if routes is None or routes.handshake.reducer.sha256 == reducer.sha256:
            return routes
        with self._changed:
            replicas = [each for each in self._replicas if each.handshake.reducer.sha256 == reducer.sha256]
        return follow(replicas, None)

    @property
    def handshake(self) -> Handshake | None:
        """Of the build followed, also while none of its servers can be asked; None before the first."""
        return self._handshake

    @property
    def servers(self) -> tuple[str, ...]:
        """The addresses listed now."""
        with self._changed:
            return tuple(self._servers)

    @property
    def servers_asked(self) -> frozenset[str]:
        """Those of them that are connected, and not left alone."""
        with self._changed:
            return frozenset(address for address, server in self._servers.items() if server.connected is not None)

    @property
    def trouble(self) -> str:
        """Why no server is asked at the moment, for people; "" while one is."""
        with self._changed:
            if self._routes is not None:
                return ""
            troubles = [server.trouble for server in self._servers.values() if server.trouble]
            if self._discovery_error is not None:
                troubles.append(str(self._discovery_error))
        return "; ".join(troubles)

    def first_handshake(self) -> Handshake:
        """Waits until every server has been dialled once.

        Raises:
            RetrieverError: none can be asked; says why one of them cannot.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or all(map(_was_dialled, self._servers.values())))
            if self._routes is None:
                errors = [server.error for server in self._servers.values() if server.error is not None]
                errors.sort(key=lambda error: isinstance(error, RetrieverUnavailableError))  # that may pass
                if errors:
                    # A copy, because what is raised refers to its raiser's callers, and a server keeps its error.
                    raise type(errors[0])(*errors[0].args)
                # One may have been lost right after it was found.
                troubles = [server.trouble for server in self._servers.values() if server.trouble]
                raise RetrieverUnavailableError("; ".join(troubles)) if troubles else self._nobody()
            for server in self._servers.values():
                if server.error is not None:
                    logger.warning("decoding without this server for now: %s", str(server.error))
            return self._routes.handshake

    def close(self) -> None:
        """Ends all calls and threads."""
        with self._changed:
            self._closed = True
            self._routes = None
            servers = [*self._servers.values(), *self._leaving]
            self._changed.notify_all()
        for server in servers:
            server.close()
        for server in servers:
            server.join()
        if self._resolver is not None and self._resolver is not threading.current_thread():
            self._resolver.join(_JOIN_S)

    def _nobody(self) -> RetrieverError:
        if self._closed:
            return RetrieverError("this retriever client is closed")
        if self._discovery_error is not None:
            return RetrieverUnavailableError(str(self._discovery_error))
        return RetrieverUnavailableError(f"{self._config.address} lists no servers; add the address of one")

    def _server_changed(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._route()
            self._look_again = self._look_again or any(server.trouble for server in self._servers.values())
            self._changed.notify_all()

    def _route(self) -> None:
        self._replicas = [
            Replica(server, connected.link, handshake, handshake is connected.handshake)
            for server in self._servers.values()
            if (connected := server.connected) is not None
            for handshake in (connected.handshake, *connected.older)
        ]
        before = self._handshake
        self._routes = follow(self._replicas, None if before is None else before.build_id)
        if self._routes is not None:
            self._handshake = self._routes.handshake
            if before is not None and before.build_id != self._handshake.build_id:
                logger.info("following build %s from now on", self._handshake.build_id)

    def _keep_resolving(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._look_again, self._config.resolve_interval_s)
                # A server that stays down reports again and again; the name server need not hear of each time.
                if self._changed.wait_for(lambda: self._closed, self._config.retry_base_s):
                    return
                self._look_again = False
            self._resolve()
            for server in [server for server in self._leaving if server.is_idle]:
                self._leaving.remove(server)
                server.close()
                server.join()

    def _resolve(self) -> None:
        """Connects to new servers, and leaves those that are gone: what is under way may still be answered."""
        try:
            addresses = self._discovery.addresses()
        except AddressError as error:
            if str(error) != str(self._discovery_error):
                logger.warning("going on with the servers known so far: %s", str(error))
            self._discovery_error = error
            return
        with self._changed:
            self._discovery_error = None
            if self._closed:
                return
            gone = [address for address in self._servers if address not in addresses]
            self._leaving += [self._servers.pop(address) for address in gone]
            for address in addresses:
                if address not in self._servers:
                    self._servers[address] = ServerConnection(
                        address,
                        self._config,
                        self._identity,
                        self._recorder,
                        lambda: self._handshake,
                        self._server_changed,
                    )
            self._route()
            self._changed.notify_all()


def _was_dialled(server: ServerConnection) -> bool:
    return server.connected is not None or server.error is not None or server.trouble != ""
