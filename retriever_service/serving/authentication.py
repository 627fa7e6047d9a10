"""Turns away calls without an accepted bearer token, before anything of them is read.

For any gRPC server of ours, each with its own tokens. Knows names of calls and metadata, no messages.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, NoReturn

import grpc
import grpc.aio

from retriever_service.serving.bearer_tokens import BearerTokens
from retriever_service.serving.call_log import Context, RefusalLog, enter
from retriever_service.serving.meters import RequestMeter

logger = logging.getLogger(__name__)

HEALTH = "/grpc.health.v1.Health/"
INGEST = "/dresd.v1.Ingest/"

_MISSING = "this server wants a bearer token: send it as `authorization: Bearer TOKEN`"
_UNKNOWN = "the bearer token sent is none of this server's"


class Authentication(grpc.aio.ServerInterceptor):
    """Lets a call pass that bears one of the tokens; the others get UNAUTHENTICATED.

    Args:
        tokens: accepted.
        open_to_all: beginnings of the names of calls that need none.
        only: beginning of the names of calls that need one; "" is all others.
        meter: counts the others.
    """

    def __init__(
        self,
        tokens: BearerTokens,
        open_to_all: Collection[str] = (),
        meter: RequestMeter | None = None,
        only: str = "",
    ) -> None:
        self._tokens = tokens
        self._open = tuple(open_to_all)
        self._meter = meter
        self._only = only
        self._refusals = RefusalLog(logger)
        self._missing, self._unknown = self._refusal(_MISSING), self._refusal(_UNKNOWN)

    # Any: a handler of whatever messages the call has.
    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Hands the call on, or answers it."""
        method = handler_call_details.method
        if method.startswith(self._only) and not method.startswith(self._open):
            sent = [value for name, value in handler_call_details.invocation_metadata if name == "authorization"]
            if len(sent) != 1:
                return self._missing
            value = sent[0]
            if not self._tokens.accepts(value if isinstance(value, bytes) else value.encode()):
                return self._unknown
        return await continuation(handler_call_details)

    def _refusal(self, message: str) -> grpc.RpcMethodHandler[Any, Any]:
        async def refuse(_: object, context: Context) -> NoReturn:
            enter(context)
            self._refusals.refused(grpc.StatusCode.UNAUTHENTICATED, message)
            if self._meter is not None:
                self._meter.unauthenticated += 1
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, message)

        # A stream of both kinds ends without waiting for a request, whatever kind of call it answers.
        return grpc.stream_stream_rpc_method_handler(refuse)
