"""One connection to a retriever: a channel and the one stream of requests on it.

Answers are matched to requests by id; one that comes after its caller gave up is dropped. A stream that the server
ends in order, as servers do when a connection has grown old, is followed by another, and what was not answered is
asked again there. A link that breaks stays broken: whoever owns it makes another. Knows no policy: not what a failure
means, not when to try again.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator

import grpc

from decoder_client.channel import RetrieverChannel
from decoder_client.handshake import reason_of
from decoder_client.retriever_errors import RetrieverError, RetrieverUnavailableError
from dresd.allowance import Allowance
from dresd.peer_access import PeerAccess
from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc

_STREAM = f"/{pb.DESCRIPTOR.services_by_name['Retriever'].full_name}/RetrieveStream"
_TOO_MANY = pb.StreamError(
    code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], message="the server is busy with earlier requests of this client"
)
_JOIN_S = 2.0
_USEFUL_S = 1.0
"""A stream that ends sooner and without an answer is not worth another."""


class Pending:
    """A request under way.

    Args:
        request: to send.
        deadline: on `time.monotonic`'s clock.
        beside: another request for the same; whoever waits for that one waits for this one, too.
    """

    __slots__ = ("_arrived", "_sent", "answer", "deadline", "kept_back", "request", "sent_at", "settled")

    def __init__(self, request: pb.RetrieveStreamRequest, deadline: float, beside: Pending | None = None) -> None:
        self.request = request
        self.deadline = deadline
        self.answer: pb.RetrieveStreamResponse | None = None
        self.settled = self.kept_back = False  # kept back: the server knows nothing of it
        self.sent_at = 0.0
        # A bare lock wakes its waiter with one system call; an Event takes several.
        self._arrived: threading.Lock = threading.Lock() if beside is None else beside._arrived
        if beside is None:
            self._arrived.acquire()
        self._sent = threading.Lock()
        self._sent.acquire()

    def sent(self) -> bytes:
        """The request, which is on its way from now on.

        Called when gRPC is about to hand the bytes to its core: whoever waits for the sending goes on while the core
        sends, and not only when gRPC has heard of that.
        """
        self.sent_at = time.monotonic()
        self.request.timeout_us = max(1, round((self.deadline - self.sent_at) * 1e6))
        content = self.request.SerializeToString()
        self.note_sent()
        return content

    def note_sent(self) -> None:
        """The request is on its way, or will never be."""
        with contextlib.suppress(RuntimeError):  # it was on its way on an earlier stream, too
            self._sent.release()

    def wait_until_sent(self) -> None:
        """Lets go of the interpreter until the request is on its way, at most until the deadline."""
        self._sent.acquire(timeout=max(0.0, self.deadline - time.monotonic()))

    def settle(self, answer: pb.RetrieveStreamResponse | None) -> None:
        """Hands over the answer; None if there will be none. Called once."""
        self.answer = answer
        self.settled = True
        with contextlib.suppress(RuntimeError):  # the one beside it was settled, and nobody has looked yet
            self._arrived.release()

    def wait(self, until: float | None = None) -> bool:
        """Waits until settled, or the one beside it, at most until the deadline or `until`; says whether one was.

        Of two, each may be what ended the wait; look at `settled`, and wait again for the other.
        """
        until = self.deadline if until is None else min(until, self.deadline)
        return self._arrived.acquire(timeout=max(0.0, until - time.monotonic()))


class RetrieveLink:
    """A channel to `address`; `open_stream` begins the stream, `submit` uses it.

    Args:
        address: "HOST:PORT".
        access: what the server is shown.
        on_broken: called once, from the link's own thread, with the reason when an open stream breaks.

    Raises:
        RetrieverError: a file of `access` cannot be used.
    """

    def __init__(self, address: str, access: PeerAccess, on_broken: Callable[[RetrieveLink, str], None]) -> None:
        self._channel = RetrieverChannel(address, access)
        self.stub = pb_grpc.RetrieverStub(self._channel.channel)
        # The stub's own call, but for the hands that serialise. gRPC calls them in the threads that send and receive:
        # what is told there need not be handed to another thread first.
        self._retrieve_stream: grpc.StreamStreamMultiCallable[Pending, pb.RetrieveStreamResponse] = (
            self._channel.channel.stream_stream(_STREAM, Pending.sent, self._arrived)
        )
        self._on_broken = on_broken
        self._ids = itertools.count(1)
        self._outgoing: queue.SimpleQueue[Pending | None] = queue.SimpleQueue()
        self._lock = threading.RLock()  # a collected owner may close this link while the reader holds it
        self._waiting: dict[int, Pending] | None = {}  # None once the stream has ended
        # Each is written by one thread or under the lock: submitted, never sent, answered.
        self._submitted = self._withheld = self._answered = 0
        self._allowance = Allowance()
        self._late: dict[int, float] = {}  # when those were sent that nobody waits for any more
        self._cancel_stream: Callable[[], object] | None = None
        self._reader: threading.Thread | None = None

    def open_stream(self) -> None:
        """Begins the stream; called once, before `submit`.

        Raises:
            RetrieverUnavailableError: the link was closed meanwhile.
        """
        stream = self._new_stream()
        self._reader = threading.Thread(target=self._read, args=(stream,), name="dresd-retrieve", daemon=True)
        self._reader.start()

    @property
    def outstanding(self) -> int:
        """Requests that the server has not answered, those that nobody waits for any more included."""
        return self._submitted - self._withheld - self._answered

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for an answer."""
        return not self._waiting

    def submit(
        self,
        request: pb.RetrieveRequest,
        deadline: float,
        beside: Pending | None = None,
        after: Pending | None = None,
    ) -> Pending:
        """Sends a request without waiting; `deadline` is on `time.monotonic`'s clock.

        A link that has broken settles it at once without an answer; one whose server is too late with earlier answers
        keeps it back, settled as the server would refuse it. `beside`: see `Pending`. One that comes `after` another of
        the same batch goes the way of that one: parts of a batch are of no use alone.
        """
        identifier = next(self._ids)
        pending = Pending(pb.RetrieveStreamRequest(request_id=identifier, request=request), deadline, beside)
        refused: pb.RetrieveStreamResponse | None = None
        with self._lock:
            if self._waiting is not None:
                if self._allowance.allows(self.outstanding) if after is None else not after.kept_back:
                    self._waiting[identifier] = pending
                    self._submitted += 1
                    self._outgoing.put(pending)
                    return pending
                pending.kept_back = True
                refused = pb.RetrieveStreamResponse(request_id=identifier, error=_TOO_MANY)
        pending.note_sent()
        pending.settle(refused)
        return pending

    def forget(self, pending: Pending) -> None:
        """Nobody waits for this answer any more."""
        with self._lock:
            identifier = pending.request.request_id
            waited = None if self._waiting is None else self._waiting.pop(identifier, None)
            if waited is not None and waited.sent_at:
                self._late[identifier] = waited.sent_at

    def close(self) -> None:
        """Ends the stream and the channel, with all calls on it, and every thread of theirs."""
        self._end()
        if self._cancel_stream is not None:
            self._cancel_stream()
        self._channel.close()
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(_JOIN_S)

    def _new_stream(self) -> Iterator[pb.RetrieveStreamResponse]:
        try:
            stream = self._retrieve_stream(self._requests(self._outgoing))
        except ValueError as error:  # grpc's way to say that the channel is closed
            raise RetrieverUnavailableError("the connection was closed") from error
        self._cancel_stream = stream.cancel
        return stream

    def _next_stream(self) -> Iterator[pb.RetrieveStreamResponse] | None:
        """After one that ended in order; None if the link was closed meanwhile."""
        with self._lock:
            if self._waiting is None:
                return None
            self._outgoing.put(None)  # whoever still waits for requests for the stream that ended
            self._outgoing = queue.SimpleQueue()
            for pending in self._waiting.values():
                self._outgoing.put(pending)
            self._submitted, self._withheld, self._answered = len(self._waiting), 0, 0
            self._late.clear()
            self._channel.read_token()
            return self._new_stream()

    def _requests(self, outgoing: queue.SimpleQueue[Pending | None]) -> Iterator[Pending]:
        while (pending := outgoing.get()) is not None:
            # Flow control may hold a request back past its deadline; then nobody wants the answer.
            if pending.deadline > time.monotonic():
                yield pending
            else:
                self._withheld += 1
                pending.note_sent()

    def _read(self, answers: Iterator[pb.RetrieveStreamResponse]) -> None:
        stream: Iterator[pb.RetrieveStreamResponse] | None = answers
        reason = "the server ended the stream"
        try:
            while stream is not None and self._was_useful(stream):
                stream = self._next_stream()
        except grpc.RpcError as error:
            reason = reason_of(error)
        except RetrieverError as error:
            reason = str(error)
        if self._end():
            self._on_broken(self, reason)

    def _arrived(self, content: bytes) -> pb.RetrieveStreamResponse:
        """Reads an answer and hands it to whoever waits for it."""
        answer = pb.RetrieveStreamResponse.FromString(content)
        self._answered += 1
        with self._lock:
            pending = self._waiting.pop(answer.request_id, None) if self._waiting is not None else None
            sent_at = self._late.pop(answer.request_id, 0.0) if pending is None else pending.sent_at
            if sent_at:
                self._allowance.answered(sent_at, time.monotonic(), _server_s(answer))
        if pending is not None:
            pending.settle(answer)
        return answer

    def _was_useful(self, answers: Iterator[pb.RetrieveStreamResponse]) -> bool:
        """Whether a stream, which has ended in order when this returns, is worth another."""
        began = time.monotonic()
        any_answer = False
        for _ in answers:
            any_answer = True
        return any_answer or time.monotonic() - began >= _USEFUL_S

    def _end(self) -> bool:
        """Settles everything under way without an answer; False if that was done before."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is None:
            return False
        self._outgoing.put(None)
        for pending in waiting.values():
            pending.note_sent()
            pending.settle(None)
        return True


def _server_s(answer: pb.RetrieveStreamResponse) -> float:
    timing = answer.response.timing
    return (timing.queue_us + timing.search_us + timing.merge_us) / 1e6
