"""A channel to a retriever: what it allows, how it notices a dead peer, and what it shows of its owner.

Knows gRPC's options and credentials; no calls and no answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar, cast

import grpc

from decoder_client.retriever_errors import RetrieverError
from dresd.peer_access import PeerAccess, PeerAccessError

_OPTIONS: tuple[tuple[str, int | str], ...] = (
    # Every link connects anew: a shared subchannel would wait out the backoff of an earlier link's failures.
    ("grpc.use_local_subchannel_pool", 1),
    # A reducer (dims x hidden size x 4 bytes) and a routing table outgrow the default of 4 MiB.
    ("grpc.max_receive_message_length", 64 << 20),
    # A retriever is on the decoder's own network, where a proxy set for the web does not lead.
    ("grpc.enable_http_proxy", 0),
    # A server that vanished is noticed while nothing is asked. It is asked less often than servers cut callers off for.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)

Request = TypeVar("Request")
Response = TypeVar("Response")
Call = TypeVar("Call")


class RetrieverChannel:
    """A channel to `address`, with the credentials that the files of `access` hold now.

    Attributes:
        channel: makes calls with the bearer token, if there is one.

    Raises:
        RetrieverError: a file cannot be used, or the token would be readable on the way.
    """

    def __init__(self, address: str, access: PeerAccess) -> None:
        self._address = address
        self._access = access
        self._bearer = _Bearer()
        self.read_token()
        try:
            credentials = access.credentials()
        except PeerAccessError as error:
            raise RetrieverError(str(error)) from error
        options = [*_OPTIONS, *access.options()]
        self._plain = (
            grpc.insecure_channel(address, options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options)
        )
        self.channel = (
            self._plain if self._bearer.authorization is None else grpc.intercept_channel(self._plain, self._bearer)
        )

    def read_token(self) -> None:
        """Calls from now on bear the token that the file holds now.

        Raises:
            RetrieverError: the file cannot be used, or the token would be readable on the way.
        """
        try:
            self._bearer.authorization = self._access.authorization(self._address)
        except PeerAccessError as error:
            raise RetrieverError(str(error)) from error

    def close(self) -> None:
        """Ends all calls."""
        self._plain.close()


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: list[tuple[str, str | bytes]]
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class _Bearer(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Adds the header to every kind of call there is."""

    def __init__(self) -> None:
        self.authorization: str | None = None

    def intercept_unary_unary(
        self,
        continuation: Callable[[grpc.ClientCallDetails, Request], Call],
        client_call_details: grpc.ClientCallDetails,
        request: Request,
    ) -> Call:
        return continuation(self._with_header(client_call_details), request)

    def intercept_unary_stream(
        self,
        continuation: Callable[[grpc.ClientCallDetails, Request], Call],
        client_call_details: grpc.ClientCallDetails,
        request: Request,
    ) -> Call:
        return continuation(self._with_header(client_call_details), request)

    def intercept_stream_stream(
        self,
        continuation: Callable[[grpc.ClientCallDetails, Iterator[Request]], Call],
        client_call_details: grpc.ClientCallDetails,
        request_iterator: Iterator[Request],
    ) -> Call:
        return continuation(self._with_header(client_call_details), request_iterator)

    def _with_header(self, details: grpc.ClientCallDetails) -> grpc.ClientCallDetails:
        metadata = list(details.metadata or ())
        if self.authorization is not None:
            metadata.append(("authorization", self.authorization))
        return cast(
            "grpc.ClientCallDetails",  # which grpc's documentation lets callers imitate
            _Details(
                details.method,
                details.timeout,
                metadata,
                details.credentials,
                details.wait_for_ready,
                details.compression,
            ),
        )
