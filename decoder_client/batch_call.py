"""One batch on its way: split among servers, asked of all of them at once, put together again.

Raises nothing, waits for nothing beyond the deadline, and tells every server's connection how it did. Knows neither how
servers are found nor what is counted.
"""

from __future__ import annotations

import logging

import grpc

from decoder_client.drafts import Coverage, Drafts, together
from decoder_client.hedging import Hedging
from decoder_client.query_batch import QueryBatch
from decoder_client.replica_call import ReplicaCall
from decoder_client.routes import Part, Replica, Routes
from decoder_client.wire import Draft, WireError, drafts_of
from dresd.v1 import retriever_pb2 as pb

logger = logging.getLogger(__name__)


class BatchCall:
    """Sends a batch's requests at once.

    Args:
        queries: at least one.
        routes: of the build that the keys were made for.
        deadline: on `time.monotonic`'s clock.
        deadline_ms: what that is, for people.
        hedging: when to ask a second server.
        traceparent: the caller's place in a trace, "" for none.
    """

    def __init__(
        self,
        queries: QueryBatch,
        routes: Routes,
        deadline: float,
        deadline_ms: float,
        hedging: Hedging,
        traceparent: str = "",
    ) -> None:
        self._queries = queries
        self._handshake = routes.handshake
        self._deadline_ms = deadline_ms
        self._was_late = False
        self._parts: list[tuple[Part, list[ReplicaCall]]] = []
        for part in routes.split(queries.next_tokens):
            mine = queries if part.rows is None else queries.take(part.rows)
            requests = list(mine.requests(self._handshake, part.partitions))
            if traceparent:
                for request in requests:
                    request.traceparent = traceparent
            first = ReplicaCall(requests[0], part.replicas, deadline, hedging)
            after = first.asked[0][1]
            others = [ReplicaCall(each, part.replicas, deadline, hedging, after) for each in requests[1:]]
            self._parts.append((part, [first, *others]))

    @property
    def was_late(self) -> bool:
        """Whether a server had not answered when the deadline passed."""
        return self._was_late

    @property
    def hedged(self) -> int:
        """Second requests made because a first one was overdue."""
        return sum(call.hedged for _, calls in self._parts for call in calls)

    def wait_until_sent(self) -> None:
        """Lets go of the interpreter until the requests are on their way."""
        for _, calls in self._parts:
            calls[-1].wait_until_sent()

    def drafts(self) -> Drafts | None:
        """What came by the deadline; None where that is nothing at all."""
        answers = [self._answer(calls) for _, calls in self._parts]
        if answers and all(answer is None for answer in answers):
            return None
        found: list[list[Draft]] = [[] for _ in self._queries.next_tokens]
        asked = answered = 0
        for (part, _), answer in zip(self._parts, answers, strict=True):
            if answer is None:
                asked += part.num_partitions
                continue
            if part.rows is None:
                return answer
            asked += answer.coverage.partitions_asked
            answered += answer.coverage.partitions_answered
            for row, draft in zip(part.rows.tolist(), answer, strict=True):
                found[row].append(draft)
        max_nodes = min(self._queries.max_nodes, self._handshake.limits.max_nodes)
        return Drafts([together(drafts, max_nodes) for drafts in found], Coverage(asked, answered))

    def forget(self) -> None:
        """Nobody waits for an answer any more."""
        for _, calls in self._parts:
            for call in calls:
                call.forget()

    def _answer(self, calls: list[ReplicaCall]) -> Drafts | None:
        """A part's drafts; None if one of its requests got none."""
        drafts: list[Draft] = []
        asked = answered = 0
        complete = True
        for call in calls:
            outcome = call.wait()
            request = call.asked[0][1].request.request
            self._note_failures(call, nobody_answered=outcome is None)
            if outcome is None:
                complete = False
                continue
            replica, response = outcome
            try:
                drafts += drafts_of(response, request, vocab_size=self._handshake.model.vocab_size)
            except WireError as error:
                replica.connection.failed(replica.link, f"a faulty answer: {error}")
                complete = False
                continue
            replica.connection.succeeded()
            if response.current_build_id:
                replica.connection.heard_of(replica.link, response.current_build_id)
            asked += response.coverage.partitions_asked
            answered += response.coverage.partitions_answered
        return Drafts(drafts, Coverage(asked, answered)) if complete else None

    def _note_failures(self, call: ReplicaCall, *, nobody_answered: bool) -> None:
        for replica, pending in call.asked:
            answer = pending.answer
            if not pending.settled:
                if nobody_answered:
                    self._was_late = True
                    replica.connection.failed(replica.link, f"no answer within {self._deadline_ms:g} ms")
            elif answer is None:
                replica.connection.failed(replica.link, "the connection was lost", at_once=True)
            elif not answer.HasField("response") and not pending.kept_back:
                _refused(replica, answer.error)


def _refused(replica: Replica, error: pb.StreamError) -> None:
    logger.debug("a request was refused: %s", error.message)
    if error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]:
        return  # the service is fine, the request was not
    if error.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]:
        replica.connection.refused_build(replica.link, replica.handshake.build_id, error.message)
    else:
        replica.connection.failed(replica.link, error.message)
