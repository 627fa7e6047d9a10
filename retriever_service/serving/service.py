"""The Retriever service: a checked request becomes one search in the pool, a refusal becomes a status.

Knows the contract, the pool and the collections; not how a server starts, listens or stops, nor where builds come from.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import grpc
import grpc.aio

from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.datastore import DatastoreError, DraftBatch
from retriever_service.echo import echoed
from retriever_service.serving.call_log import RefusalLog, enter
from retriever_service.serving.collection import Collection, Collections
from retriever_service.serving.forwarding import Forwarding
from retriever_service.serving.loaded_build import LoadedBuild
from retriever_service.serving.messages import fill_response, token_table_messages
from retriever_service.serving.meters import RequestMeter
from retriever_service.serving.refusals import abort, message_of
from retriever_service.serving.search_pool import ExpiredError, QueueFullError, SearchPool
from retriever_service.serving.stream import AnswerStream
from retriever_service.serving.validation import Queries, RefusedError, check

if TYPE_CHECKING:
    from retriever_service.serving.refusals import Context
    from retriever_service.serving.tracing import RequestTracing

    Stream: TypeAlias = AnswerStream[pb.RetrieveStreamRequest | None, pb.RetrieveStreamResponse]

logger = logging.getLogger(__name__)

_FEW_NEIGHBORS = 256
"""Of all queries of a request together; what other short searches took says nothing of one for more."""


class RetrieverService(pb_grpc.RetrieverServicer):
    """Answers from collections once they are loaded, and no longer once it drains.

    Args:
        pool: runs the searches; the service does not close it.
        collections: whose current builds may be replaced at any time.
        forwarding: passes on what is not served here; None answers without it. The service closes it.
        stream_age_s: when a stream ends by itself, with OK once what it has read is answered; None for never.
        meter: counts retrieve requests.
        tracing: makes a span of each.
    """

    def __init__(
        self,
        pool: SearchPool,
        collections: Collections,
        stream_age_s: float | None = None,
        meter: RequestMeter | None = None,
        forwarding: Forwarding | None = None,
        tracing: RequestTracing | None = None,
    ) -> None:
        self._pool = pool
        self._collections = collections
        self._stream_age_s = stream_age_s
        self._meter = meter
        self._tracing = tracing
        self._refusals = RefusalLog(logger)
        self._forwarding = forwarding
        self._draining = False
        self._streams: set[Stream] = set()
        self._open_calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def drain(self) -> None:
        """From now on new requests are refused; streams answer what they have read, then end with UNAVAILABLE."""
        self._draining = True
        for stream in self._streams:
            stream.stop_reading()

    async def idle(self) -> None:
        """Waits until no request is being answered and no stream is open."""
        await self._idle.wait()

    @property
    def open_streams(self) -> int:
        """RetrieveStream calls being answered."""
        return len(self._streams)

    async def close(self) -> None:
        """Passes nothing on any more; called once, when no request is being answered."""
        if self._forwarding is not None:
            await self._forwarding.close()

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

    @contextlib.contextmanager
    def _aging(self, stream: Stream) -> Iterator[None]:
        if self._stream_age_s is None:
            yield
            return
        timer = asyncio.get_running_loop().call_later(self._stream_age_s, stream.stop_reading)
        try:
            yield
        finally:
            timer.cancel()

    # A request is None where the bytes sent were no message; see `registration`.

    async def GetInfo(self, request: pb.GetInfoRequest | None, context: Context) -> pb.GetInfoResponse:  # noqa: N802
        """The handshake: what this server serves and what a request to it may ask for."""
        try:
            return self._collection(message_of(request).collection).build("").info
        except RefusedError as refused:
            await self._abort(context, refused)

    async def GetReducer(  # noqa: N802
        self,
        request: pb.GetReducerRequest | None,
        context: Context,
    ) -> pb.GetReducerResponse:
        """The reducer's file."""
        try:
            message = message_of(request)
            return self._collection(message.collection).build(message.build_id).reducer
        except RefusedError as refused:
            await self._abort(context, refused)

    async def GetTokenTable(  # noqa: N802
        self,
        request: pb.GetTokenTableRequest | None,
        context: Context,
    ) -> AsyncIterator[pb.GetTokenTableResponse]:
        """The token table's file in parts."""
        try:
            message = message_of(request)
            build = self._collection(message.collection).build(message.build_id)
            content, sha256 = build.token_table, build.token_table_sha256
            del build  # a caller that reads slowly must not keep it
        except RefusedError as refused:
            await self._abort(context, refused)
        for part in token_table_messages(content, sha256):
            yield part

    async def Retrieve(self, request: pb.RetrieveRequest | None, context: Context) -> pb.RetrieveResponse:  # noqa: N802
        """One batch of queries, one answer."""
        enter(context)
        remaining = context.time_remaining()
        with self._open_call():
            try:
                deadline = None if remaining is None else time.monotonic() + remaining
                response, message = pb.RetrieveResponse(), message_of(request)
                if self._tracing is not None:
                    self._tracing.take_header(message, context)
                await self._answer("Retrieve", message, deadline, response)
            except RefusedError as refused:
                await self._abort(context, refused)
            return response

    async def RetrieveStream(  # noqa: N802
        self,
        request_iterator: AsyncIterator[pb.RetrieveStreamRequest | None],
        context: Context,
    ) -> AsyncIterator[pb.RetrieveStreamResponse]:
        """Many batches, answered as they finish; one that fails gets a StreamError and the others go on.

        Bytes that are no message have no id to answer under: they end the stream.
        """
        enter(context)
        stream = AnswerStream(request_iterator, self._answer_streamed, self._answers_at_once)
        self._streams.add(stream)
        # A generator suspended at a yield is not told of a cancelled call; this is.
        context.add_done_callback(lambda _: stream.abandon())  # type: ignore[arg-type]  # any callable will do
        with self._open_call(), self._aging(stream):
            try:
                if self._draining:
                    stream.stop_reading()
                async for response in stream.answers():
                    yield response
            except RefusedError as refused:
                await self._abort(context, refused)
            finally:
                stream.abandon()
                self._streams.discard(stream)
        if self._draining:
            await self._abort(context, _draining())

    def _answers_at_once(self, request: pb.RetrieveStreamRequest | None) -> bool:
        """Whether `_answer_streamed` has nothing to wait for: no thread, no peer."""
        if request is not None and _is_small(request.request) and self._pool.runs_at_once:
            return self._forwarding is None
        return self._pool.is_full

    async def _answer_streamed(self, request: pb.RetrieveStreamRequest | None) -> pb.RetrieveStreamResponse:
        message = message_of(request)
        deadline = time.monotonic() + message.timeout_us / 1e6 if message.timeout_us else None
        # The answer is written where it is sent from: a message put into another one is copied.
        reply = pb.RetrieveStreamResponse(request_id=message.request_id)
        try:
            await self._answer("RetrieveStream", message.request, deadline, reply.response)
        except RefusedError as refused:
            self._refusals.refused(refused.code, refused.message)
            number: int = refused.code.value[0]
            reply.error.code, reply.error.message = number, refused.message
        return reply

    async def _answer(
        self, call: str, request: pb.RetrieveRequest, deadline: float | None, response: pb.RetrieveResponse
    ) -> None:
        """Fills an empty response."""
        if self._tracing is None:
            await self._count(call, request, deadline, response)
            return
        with self._tracing.request(call, request, response):
            await self._count(call, request, deadline, response)

    async def _count(
        self, call: str, request: pb.RetrieveRequest, deadline: float | None, response: pb.RetrieveResponse
    ) -> None:
        meter = self._meter
        if meter is None:
            await self._search(self._collection(request.collection), request, deadline, response)
            return
        began = time.monotonic()
        name = ""
        try:
            collection = self._collection(request.collection)
            name = collection.name
            await self._search(collection, request, deadline, response)
        except RefusedError as refused:
            meter.refused(name, call, refused.code)
            raise
        meter.answered(name, call, time.monotonic() - began, response)

    async def _search(
        self,
        collection: Collection,
        request: pb.RetrieveRequest,
        deadline: float | None,
        response: pb.RetrieveResponse,
    ) -> None:
        build = collection.build(request.build_id)
        is_small = _is_small(request)
        if self._pool.is_full and not (is_small and self._pool.runs_at_once):
            # Before the work of looking at the request: a server with too much to do must refuse cheaply.
            raise _overloaded()
        queries = check(request, build.served)
        away = (
            None
            if self._forwarding is None
            else self._forwarding.begin(collection.name, build, request, queries, deadline)
        )
        build.in_flight += 1
        try:
            batch, waited = await self._search_here(build, queries, deadline, is_small=is_small)
            fill_response(response, build.build_id, collection.build("").build_id, batch, waited)
            if away is not None:
                await away.merge_into(response)
        finally:
            build.in_flight -= 1
            if away is not None:
                away.cancel()
        coverage = response.coverage
        if request.require_full_coverage and coverage.partitions_answered < coverage.partitions_asked:
            raise RefusedError(
                grpc.StatusCode.UNAVAILABLE,
                f"require_full_coverage: {coverage.partitions_answered} of the {coverage.partitions_asked} partitions "
                "asked answered; ask again later, or for a partial answer",
            )

    async def _search_here(
        self, build: LoadedBuild, queries: Queries, deadline: float | None, *, is_small: bool
    ) -> tuple[DraftBatch, float]:
        """The drafts, and the seconds they waited in the queue."""

        def search() -> DraftBatch:
            return build.datastore.draft(
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
            return await self._pool.run(search, deadline, is_small=is_small)
        except QueueFullError:
            raise _overloaded() from None
        except ExpiredError:
            raise RefusedError(
                grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed before the search began; nothing was searched"
            ) from None
        except (DatastoreError, RuntimeError, ValueError, LookupError, OSError, MemoryError) as error:
            logger.exception("a search failed")
            raise RefusedError(grpc.StatusCode.INTERNAL, f"the search failed: {echoed(error)}") from error

    async def _abort(self, context: Context, refused: RefusedError) -> NoReturn:
        enter(context)
        self._refusals.refused(refused.code, refused.message)
        await abort(context, refused)

    def _collection(self, name: str) -> Collection:
        if self._draining:
            raise _draining()
        return self._collections.find(name)


def _is_small(request: pb.RetrieveRequest) -> bool:
    neighbors = request.num_queries * (request.neighbors + request.sparse_neighbors)
    return neighbors <= _FEW_NEIGHBORS and request.nprobe == 0


def _overloaded() -> RefusedError:
    return RefusedError(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "the search queue is full; ask less often or of another server"
    )


def _draining() -> RefusedError:
    return RefusedError(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
