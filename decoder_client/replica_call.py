"""One request to one of several servers that can answer it: another is asked when the first is overdue or lost.

The first response wins and nobody waits for the others. Knows requests and links; not what an answer means.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import grpc

from decoder_client.hedging import Hedging
from decoder_client.retrieve_link import Pending
from decoder_client.routes import Replica
from dresd.v1 import retriever_pb2 as pb

# A server that says so is not the one to ask; another one may be.
_ELSEWHERE = (grpc.StatusCode.UNAVAILABLE.value[0], grpc.StatusCode.FAILED_PRECONDITION.value[0])
_OVERLOADED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


class ReplicaCall:
    """Sends the request at once.

    Args:
        request: to send.
        replicas: the one to ask first, then those to turn to.
        deadline: on `time.monotonic`'s clock.
        hedging: when to ask a second one.
        after: the first request of the same batch to these servers.

    Attributes:
        asked: every server asked, with its request.
        hedged: a second one was asked because the first was overdue.
    """

    __slots__ = ("_began", "_deadline", "_hedging", "_others", "_request", "asked", "hedged")

    def __init__(
        self,
        request: pb.RetrieveRequest,
        replicas: Sequence[Replica],
        deadline: float,
        hedging: Hedging,
        after: Pending | None = None,
    ) -> None:
        self._request = request
        self._others = list(replicas[1:])
        self._deadline = deadline
        self._hedging = hedging
        self.hedged = False
        self._began = 0.0
        self.asked: list[tuple[Replica, Pending]] = [
            (replicas[0], replicas[0].link.submit(request, deadline, after=after))
        ]
        if self._others:
            self._began = time.monotonic()
            hedging.asked()

    def wait_until_sent(self) -> None:
        """Lets go of the interpreter until the first request is on its way."""
        self.asked[0][1].wait_until_sent()

    def wait(self) -> tuple[Replica, pb.RetrieveResponse] | None:
        """The response and who gave it; None if nobody did by the deadline, and `asked` tells what they did."""
        first = self.asked[0][1]
        if not self._others:
            first.wait()
            return self._response()
        delay_s = self._hedging.delay_s
        while True:
            hedge = self._others and not self.hedged and delay_s is not None
            first.wait(self._began + delay_s if hedge and delay_s is not None else None)
            answered = self._response()
            now = time.monotonic()
            if answered is not None:
                self._hedging.answered(now - self._began)
                return answered
            if now >= self._deadline:
                return None
            if all(pending.settled for _, pending in self.asked):
                if not (self._others and self._another_may_do(self.asked[-1][1].answer)):
                    return None
                self._ask_another()
            elif hedge and delay_s is not None and now >= self._began + delay_s:
                if self._hedging.may_ask():
                    self.hedged = True
                    self._ask_another()
                else:
                    delay_s = None

    def forget(self) -> None:
        """Nobody waits for an answer any more."""
        for replica, pending in self.asked:
            replica.link.forget(pending)

    def _ask_another(self) -> None:
        replica = self._others.pop(0)
        self.asked.append((replica, replica.link.submit(self._request, self._deadline, self.asked[0][1])))

    def _another_may_do(self, answer: pb.RetrieveStreamResponse | None) -> bool:
        if answer is None or answer.error.code in _ELSEWHERE:
            return True  # nothing was done for it, so this is no more load than there should be
        return answer.error.code == _OVERLOADED and self._hedging.may_ask()

    def _response(self) -> tuple[Replica, pb.RetrieveResponse] | None:
        for replica, pending in self.asked:
            answer = pending.answer
            if answer is not None and answer.HasField("response"):
                return replica, answer.response
        return None
