"""Puts the services on their servers, with a request that is no message read as None in place of an exception.

gRPC answers an exception of its deserialiser with UNKNOWN and logs a traceback, as if the server were at fault; a
service answers None with INVALID_ARGUMENT. Knows names and message types, nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from dresd.v1 import admin_pb2, ingest_pb2
from dresd.v1 import retriever_pb2 as pb
from retriever_service.serving.admin import AdminService
from retriever_service.serving.ingest import IngestService
from retriever_service.serving.refusals import abort, message_of
from retriever_service.serving.service import RetrieverService
from retriever_service.serving.validation import RefusedError

if TYPE_CHECKING:
    from retriever_service.serving.refusals import Context

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Retriever"].full_name
ADMIN_SERVICE_NAME = admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name
INGEST_SERVICE_NAME = ingest_pb2.DESCRIPTOR.services_by_name["Ingest"].full_name

M = TypeVar("M", bound=Message)


def register(service: RetrieverService, server: grpc.aio.Server) -> None:
    """Makes the server answer the contract's five calls with the service's methods."""
    # Any: every call has messages of its own types.
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "GetInfo": grpc.unary_unary_rpc_method_handler(
            service.GetInfo, _message_or_none(pb.GetInfoRequest), pb.GetInfoResponse.SerializeToString
        ),
        "GetReducer": grpc.unary_unary_rpc_method_handler(
            service.GetReducer, _message_or_none(pb.GetReducerRequest), pb.GetReducerResponse.SerializeToString
        ),
        "GetTokenTable": grpc.unary_stream_rpc_method_handler(
            service.GetTokenTable,
            _message_or_none(pb.GetTokenTableRequest),
            pb.GetTokenTableResponse.SerializeToString,
        ),
        "Retrieve": grpc.unary_unary_rpc_method_handler(
            service.Retrieve, _message_or_none(pb.RetrieveRequest), pb.RetrieveResponse.SerializeToString
        ),
        "RetrieveStream": grpc.stream_stream_rpc_method_handler(
            service.RetrieveStream,
            _message_or_none(pb.RetrieveStreamRequest),
            pb.RetrieveStreamResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))


def register_admin(service: AdminService, server: grpc.aio.Server) -> None:
    """Makes the server answer the admin contract's two calls with the service's methods."""
    # Any: as above.
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Reload": grpc.unary_unary_rpc_method_handler(
            service.Reload, _message_or_none(admin_pb2.ReloadRequest), admin_pb2.ReloadResponse.SerializeToString
        ),
        "GetStatus": grpc.unary_unary_rpc_method_handler(
            service.GetStatus,
            _message_or_none(admin_pb2.GetStatusRequest),
            admin_pb2.GetStatusResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(ADMIN_SERVICE_NAME, handlers),))


def register_ingest(service: IngestService, server: grpc.aio.Server) -> None:
    """Makes the server answer the ingest contract's call with the service's method."""
    # Any: as above.
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Append": grpc.unary_unary_rpc_method_handler(
            service.Append, _message_or_none(ingest_pb2.AppendRequest), ingest_pb2.AppendResponse.SerializeToString
        )
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(INGEST_SERVICE_NAME, handlers),))


def register_health(servicer: health_pb2_grpc.HealthServicer, server: grpc.aio.Server) -> None:
    """Makes the server answer health checks; bytes that are none get INVALID_ARGUMENT here, too."""

    async def check(request: health_pb2.HealthCheckRequest | None, context: Context) -> health_pb2.HealthCheckResponse:
        return await servicer.Check(await _message(request, context), context)

    async def watch(request: health_pb2.HealthCheckRequest | None, context: Context) -> None:
        await servicer.Watch(await _message(request, context), context)

    read, write = _message_or_none(health_pb2.HealthCheckRequest), health_pb2.HealthCheckResponse.SerializeToString
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Check": grpc.unary_unary_rpc_method_handler(check, read, write),
        "Watch": grpc.unary_stream_rpc_method_handler(watch, read, write),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(health.SERVICE_NAME, handlers),))


def register_reflection(names: Sequence[str], server: grpc.aio.Server) -> None:
    """Makes the server tell callers which calls there are; bytes that are no question get INVALID_ARGUMENT, too."""
    servicer = reflection.aio.ReflectionServicer((*names, reflection.SERVICE_NAME))

    async def info(
        requests: AsyncIterator[reflection_pb2.ServerReflectionRequest | None], context: Context
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        messages = (await _message(request, context) async for request in requests)
        async for answer in servicer.ServerReflectionInfo(messages, context):
            yield answer

    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
            info,
            _message_or_none(reflection_pb2.ServerReflectionRequest),
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, handlers),))


async def _message(request: M | None, context: Context) -> M:
    try:
        return message_of(request)
    except RefusedError as refused:
        await abort(context, refused)


def _message_or_none(message: type[M]) -> Callable[[bytes], M | None]:
    def read(content: bytes) -> M | None:
        try:
            return message.FromString(content)
        except DecodeError:
            return None

    return read
