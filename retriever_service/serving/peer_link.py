"""One other server of the same service: what it serves, and the one stream that requests are passed on by.

Keeps itself connected by a task of its own; a peer that fails is left alone and tried again at growing intervals. Used
from one event loop. Knows requests as messages, not what is asked or why.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Sequence

import grpc
import grpc.aio

from dresd.allowance import Allowance
from dresd.breaker import Breaker
from dresd.peer_access import PeerAccess, PeerAccessError
from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.echo import echoed

logger = logging.getLogger(__name__)

_LEARN_S = 5.0
"""Between two looks at what the peer serves, and the longest of such a look."""
_LEAST_PAUSE_S = 0.5
_FAILURE_THRESHOLD, _RETRY_BASE_S, _RETRY_MAX_S = 3, 0.1, 5.0


class PeerLink:
    """Connects in the background from the start until it is closed.

    Args:
        address: of the peer.
        access: what it is shown.
        collections: names of those that it may be asked for.
    """

    def __init__(self, address: str, access: PeerAccess, collections: Sequence[str]) -> None:
        self._address = address
        self._access = access
        self._collections = collections
        self._breaker = Breaker(_FAILURE_THRESHOLD, _RETRY_BASE_S, _RETRY_MAX_S)
        self._served: dict[tuple[str, str], frozenset[int]] = {}  # by collection and build
        self._ids = itertools.count(1)
        self._outgoing: asyncio.Queue[pb.RetrieveStreamRequest | None] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[pb.RetrieveStreamResponse | None]] = {}
        self._unanswered: dict[int, float] = {}  # when they were passed on
        self._allowance = Allowance()
        self._told = asyncio.Event()  # the peer must be left alone, or asked what it serves
        self._task = asyncio.create_task(self._keep_connected())

    def owns(self, collection: str, build_id: str, partition: int) -> bool:
        """Whether the peer can be asked for this now."""
        return partition in self._served.get((collection, build_id), ())

    @property
    def is_asked(self) -> bool:
        """Whether it is connected, and not left alone."""
        return bool(self._served)

    @property
    def outstanding(self) -> int:
        """Requests that the peer has not answered."""
        return len(self._unanswered)

    def learn(self) -> None:
        """Asks the peer soon what it serves: it may have taken up another build."""
        self._told.set()

    async def ask(self, request: pb.RetrieveRequest, until: float) -> pb.RetrieveResponse | None:
        """Passes a request on; None if there is no response by `until`, on `time.monotonic`'s clock.

        None at once where the peer is too late with earlier answers.
        """
        remaining = until - time.monotonic()
        if remaining <= 0.0 or not self._served or not self._allowance.allows(self.outstanding):
            return None
        identifier = next(self._ids)
        settled: asyncio.Future[pb.RetrieveStreamResponse | None] = asyncio.get_running_loop().create_future()
        self._waiting[identifier] = settled
        self._unanswered[identifier] = time.monotonic()
        self._outgoing.put_nowait(
            pb.RetrieveStreamRequest(request_id=identifier, request=request, timeout_us=max(1, round(remaining * 1e6)))
        )
        try:
            answer = await asyncio.wait_for(settled, remaining)
        except asyncio.TimeoutError:
            self._failed(f"no answer within {remaining * 1e3:.0f} ms")
            return None
        finally:
            del self._waiting[identifier]
        if answer is None:
            return None
        if answer.HasField("response"):
            self._breaker.success()
            return answer.response
        if answer.error.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]:
            self._served.pop((request.collection, request.build_id), None)
            self.learn()
        else:
            self._failed(answer.error.message)
        return None

    async def close(self) -> None:
        """Ends the connection and everything that waits for it."""
        self._task.cancel()
        await asyncio.wait({self._task})

    def _failed(self, reason: str) -> None:
        self._breaker.failure()
        if self._breaker.is_open and self._served:
            logger.warning("left alone for now: peer=%s reason=%s", self._address, echoed(reason))
            self._served = {}
            self._told.set()

    async def _keep_connected(self) -> None:
        trouble = ""
        while True:
            try:
                await self._connect_and_serve()
                trouble = ""
            except (grpc.RpcError, PeerAccessError) as error:
                reason = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else error
                if str(reason) != trouble:
                    logger.warning("cannot be reached: peer=%s reason=%s", self._address, echoed(reason))
                trouble = str(reason)
            await asyncio.sleep(self._breaker.pause_s())

    async def _connect_and_serve(self) -> None:
        credentials = self._access.credentials()
        authorization = self._access.authorization(self._address)
        metadata = () if authorization is None else (("authorization", authorization),)
        options = self._access.options()
        channel = (
            grpc.aio.insecure_channel(self._address, options)
            if credentials is None
            else grpc.aio.secure_channel(self._address, credentials, options)
        )
        async with channel:
            stub = pb_grpc.RetrieverStub(channel)
            self._outgoing = asyncio.Queue()
            self._allowance = Allowance()
            served = await self._learn(stub, metadata)
            stream = stub.RetrieveStream(self._requests(self._outgoing), metadata=metadata)
            reader = asyncio.create_task(self._read(stream))
            self._breaker.close()
            self._served = served
            logger.info("connected: peer=%s", self._address)
            try:
                while not (reader.done() or self._breaker.is_open):
                    self._told.clear()
                    waiter = asyncio.create_task(self._told.wait())
                    try:
                        await asyncio.wait({reader, waiter}, timeout=_LEARN_S, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        waiter.cancel()
                    if not (reader.done() or self._breaker.is_open):
                        await asyncio.sleep(_LEAST_PAUSE_S)  # many requests may want to know
                        # Builds that are served no more say so themselves.
                        self._served = {**self._served, **await self._learn(stub, metadata)}
                if reader.done():
                    reader.result()
            finally:
                self._served = {}
                self._outgoing.put_nowait(None)
                reader.cancel()
                self._unanswered.clear()
                for settled in self._waiting.values():
                    if not settled.done():
                        settled.set_result(None)

    async def _learn(
        self, stub: pb_grpc.RetrieverStub, metadata: tuple[tuple[str, str], ...]
    ) -> dict[tuple[str, str], frozenset[int]]:
        served: dict[tuple[str, str], frozenset[int]] = {}
        for collection in self._collections:
            call = stub.GetInfo(pb.GetInfoRequest(collection=collection), timeout=_LEARN_S, metadata=metadata)
            try:
                info: pb.GetInfoResponse = await call  # type: ignore[misc]  # the stubs know synchronous channels
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
                continue  # the peer serves other collections
            served[collection, info.build_id] = frozenset(info.served_partitions)
        return served

    async def _requests(
        self, outgoing: asyncio.Queue[pb.RetrieveStreamRequest | None]
    ) -> AsyncIterator[pb.RetrieveStreamRequest]:
        while (request := await outgoing.get()) is not None:
            yield request

    async def _read(self, stream: AsyncIterable[pb.RetrieveStreamResponse]) -> None:
        async for answer in stream:
            sent = self._unanswered.pop(answer.request_id, None)
            if sent is not None:
                timing = answer.response.timing
                server_s = (timing.queue_us + timing.search_us + timing.merge_us) / 1e6
                self._allowance.answered(sent, time.monotonic(), server_s)
            settled = self._waiting.get(answer.request_id)
            if settled is not None and not settled.done():
                settled.set_result(answer)
