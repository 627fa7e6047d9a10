"""The Retriever service: a checked request becomes one search in the pool, a refusal becomes a status.

Knows the contract, the pool and a datastore; not how a server starts, listens or stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio

from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.datastore import Datastore, DatastoreError, DraftBatch
from retriever_service.echo import echoed
from retriever_service.serving.config import Limits
from retriever_service.serving.messages import info_message, reducer_message, response_message, token_table_messages
from retriever_service.serving.search_pool import ExpiredError, QueueFullError, SearchPool
from retriever_service.serving.stream import AnswerStream
from retriever_service.serving.validation import RefusedError, Served, check

if TYPE_CHECKING:
    # Any: one alias for the contexts of five methods, whose messages the generated base class already types.
    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
    Stream: TypeAlias = AnswerStream[pb.RetrieveStreamRequest | None, pb.RetrieveStreamResponse]

logger = logging.getLogger(__name__)

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class _Loaded:
    datastore: Datastore
    served: Served
    info: pb.GetInfoResponse
    reducer: pb.GetReducerResponse
    token_table_sha256: str


class RetrieverService(pb_grpc.RetrieverServicer):
    """Answers from a datastore once it is loaded, and no longer once it drains.

    Args:
        pool: runs the searches; the service does not close it.
        limits: what one request may ask for.
    """

    def __init__(self, pool: SearchPool, limits: Limits) -> None:
        self._pool = pool
        self._limits = limits
        self._loaded: _Loaded | None = None
        self._draining = False
        self._streams: set[Stream] = set()
        self._open_calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def load(self, datastore: Datastore) -> None:
        """From now on requests are answered from this datastore."""
        manifest = datastore.manifest
        self._loaded = _Loaded(
            datastore,
            Served(
                manifest.build_id,
                manifest.key_recipe.dims,
                manifest.continuation_length,
                manifest.left_context_length,
                self._limits,
            ),
            info_message(datastore, self._limits),
            reducer_message(datastore),
            hashlib.sha256(datastore.token_table_bytes).hexdigest(),
        )

    def drain(self) -> None:
        """From now on new requests are refused; streams answer what they have read, then end with UNAVAILABLE."""
        self._draining = True
        for stream in self._streams:
            stream.stop_reading()

    async def idle(self) -> None:
        """Waits until no request is being answered and no stream is open."""
        await self._idle.wait()

    @contextlib.contextmanager
    def _open_call(self) -> Iterator[None]:
        self._open_calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._open_calls -= 1
            if self._open_calls == 0:
                self._idle.set()

    # A request is None where the bytes sent were no message; see `registration`.

    async def GetInfo(self, request: pb.GetInfoRequest | None, context: Context) -> pb.GetInfoResponse:  # noqa: N802
        """The handshake: what this server serves and what a request to it may ask for."""
        try:
            _message(request)
            return self._ready().info
        except RefusedError as refused:
            await _abort(context, refused)

    async def GetReducer(  # noqa: N802
        self,
        request: pb.GetReducerRequest | None,
        context: Context,
    ) -> pb.GetReducerResponse:
        """The reducer's file."""
        try:
            _message(request)
            return self._ready().reducer
        except RefusedError as refused:
            await _abort(context, refused)

    async def GetTokenTable(  # noqa: N802
        self,
        request: pb.GetTokenTableRequest | None,
        context: Context,
    ) -> AsyncIterator[pb.GetTokenTableResponse]:
        """The token table's file in parts."""
        try:
            _message(request)
            loaded = self._ready()
        except RefusedError as refused:
            await _abort(context, refused)
        for part in token_table_messages(loaded.datastore.token_table_bytes, loaded.token_table_sha256):
            yield part

    async def Retrieve(self, request: pb.RetrieveRequest | None, context: Context) -> pb.RetrieveResponse:  # noqa: N802
        """One batch of queries, one answer."""
        remaining = context.time_remaining()
        with self._open_call():
            try:
                deadline = None if remaining is None else time.monotonic() + remaining
                return await self._answer(_message(request), deadline)
            except RefusedError as refused:
                await _abort(context, refused)

    async def RetrieveStream(  # noqa: N802
        self,
        request_iterator: AsyncIterator[pb.RetrieveStreamRequest | None],
        context: Context,
    ) -> AsyncIterator[pb.RetrieveStreamResponse]:
        """Many batches, answered as they finish; one that fails gets a StreamError and the others go on.

        Bytes that are no message have no id to answer under: they end the stream.
        """
        stream = AnswerStream(request_iterator, self._answer_streamed)
        self._streams.add(stream)
        # A generator suspended at a yield is not told of a cancelled call; this is.
        context.add_done_callback(lambda _: stream.abandon())  # type: ignore[arg-type]  # any callable will do
        with self._open_call():
            try:
                if self._draining:
                    stream.stop_reading()
                async for response in stream.answers():
                    yield response
            except RefusedError as refused:
                await _abort(context, refused)
            finally:
                stream.abandon()
                self._streams.discard(stream)
        if self._draining:
            await _abort(context, _draining())

    async def _answer_streamed(self, request: pb.RetrieveStreamRequest | None) -> pb.RetrieveStreamResponse:
        message = _message(request)
        deadline = time.monotonic() + message.timeout_us / 1e6 if message.timeout_us else None
        try:
            response = await self._answer(message.request, deadline)
        except RefusedError as refused:
            number: int = refused.code.value[0]
            return pb.RetrieveStreamResponse(
                request_id=message.request_id, error=pb.StreamError(code=number, message=refused.message)
            )
        return pb.RetrieveStreamResponse(request_id=message.request_id, response=response)

    async def _answer(self, request: pb.RetrieveRequest, deadline: float | None) -> pb.RetrieveResponse:
        loaded = self._ready()
        queries = check(request, loaded.served)

        def search() -> DraftBatch:
            return loaded.datastore.draft(
                queries.keys,
                queries.next_tokens,
                left_contexts=queries.left_contexts,
                neighbors=queries.neighbors,
                sparse_neighbors=queries.sparse_neighbors,
                max_nodes=queries.max_nodes,
                max_depth=queries.max_depth,
                temperature=queries.temperature,
                match_temperature=queries.match_temperature,
                nprobe=queries.nprobe,
                partitions=queries.partitions,
            )

        try:
            batch, waited = await self._pool.run(search, deadline)
        except QueueFullError:
            raise RefusedError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "the search queue is full; ask less often or of another server"
            ) from None
        except ExpiredError:
            raise RefusedError(
                grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed before the search began; nothing was searched"
            ) from None
        except (DatastoreError, RuntimeError, ValueError, LookupError, OSError, MemoryError) as error:
            logger.exception("a search failed")
            raise RefusedError(grpc.StatusCode.INTERNAL, f"the search failed: {echoed(error)}") from error
        if request.require_full_coverage and batch.partitions_answered < batch.partitions_asked:
            raise RefusedError(
                grpc.StatusCode.UNAVAILABLE,
                f"require_full_coverage: {batch.partitions_answered} of the {batch.partitions_asked} partitions asked "
                "answered; ask again later, or for a partial answer",
            )
        return response_message(loaded.served.build_id, batch, waited)

    def _ready(self) -> _Loaded:
        if self._draining:
            raise _draining()
        if self._loaded is None:
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, "the datastore is still being loaded")
        return self._loaded


def _message(request: M | None) -> M:
    if request is None:
        raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, "the request is not a message of this call's type")
    return request


def _draining() -> RefusedError:
    return RefusedError(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")


async def _abort(context: Context, refused: RefusedError) -> NoReturn:
    await context.abort(refused.code, refused.message)
