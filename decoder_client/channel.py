"""A channel to a retriever that shows its owner's token with every call. Knows no calls and no answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar, cast

import grpc

from decoder_client.retriever_errors import RetrieverError
from dresd.peer_access import PeerAccess, PeerAccessError

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
            self._plain = access.channel(address)
        except PeerAccessError as error:
            raise RetrieverError(str(error)) from error
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
