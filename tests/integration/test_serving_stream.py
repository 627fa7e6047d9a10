"""One stream: many requests, each with its own answer or error."""

from __future__ import annotations

from pathlib import Path

import grpc
import numpy as np
import pytest

from dresd.v1 import retriever_pb2 as pb
from retriever_service.serving.server import ServeConfig
from retriever_service.serving.stream import MAX_IN_FLIGHT
from tests.support.datastore import BuiltDatastore
from tests.support.serving import (
    PATIENCE_S,
    GatedDatastore,
    OpenStream,
    local_config,
    request_for,
    serving,
)


def good(built: BuiltDatastore, at: int = 0, **changes: object) -> pb.RetrieveRequest:
    return request_for(built.entries.keys[at : at + 1], built.entries.next_tokens[at : at + 1].tolist(), **changes)


def narrow(path: Path, queue_size: int) -> ServeConfig:
    return ServeConfig(path, listen="127.0.0.1:0", search_threads=1, queue_size=queue_size)


def begun(gated: GatedDatastore) -> None:
    assert gated.begun.acquire(timeout=PATIENCE_S)


def test_every_request_is_answered_under_its_id(built: BuiltDatastore):
    count = 3 * MAX_IN_FLIGHT
    store = built.open()
    with serving(local_config(built.path)) as server, OpenStream(server.address) as stream:
        for at in range(count):
            stream.send(1000 + at, good(built, at))
        stream.half_close()
        answers = {answer.request_id: answer.response for answer in stream.call}
    assert sorted(answers) == list(range(1000, 1000 + count))
    for at in range(count):
        keys = built.entries.keys[at : at + 1].astype(np.float16).astype(np.float32)
        expected = store.draft(
            keys, built.entries.next_tokens[at : at + 1], neighbors=10, max_nodes=16, max_depth=6, temperature=0.1
        )
        assert list(answers[1000 + at].trees[0].tokens) == expected.trees[0].tokens.tolist()


@pytest.mark.parametrize(
    ("request_of", "code", "says"),
    [
        (lambda built: good(built, max_nodes=0), grpc.StatusCode.INVALID_ARGUMENT, "max_nodes: "),
        (lambda built: good(built, build_id="x"), grpc.StatusCode.FAILED_PRECONDITION, "build_id: "),
        (lambda _: None, grpc.StatusCode.INVALID_ARGUMENT, "num_queries: "),
    ],
)
def test_a_refused_request_is_an_error_and_the_stream_goes_on(built: BuiltDatastore, request_of, code, says: str):
    with serving(local_config(built.path)) as server, OpenStream(server.address) as stream:
        stream.send(1, request_of(built))
        refused = stream.receive()
        stream.send(2, good(built))
        answered = stream.receive()
    assert (refused.request_id, refused.error.code) == (1, code.value[0])
    assert says in refused.error.message
    assert (answered.request_id, answered.WhichOneof("result")) == (2, "response")


def test_requests_of_a_stream_run_concurrently(built: BuiltDatastore):
    gated = GatedDatastore(built.open())
    with serving(local_config(built.path), lambda _: gated) as server, OpenStream(server.address) as stream:
        stream.send(1, good(built))
        stream.send(2, good(built))
        begun(gated)
        begun(gated)  # the second began while the first was still running
        stream.send(3, good(built, neighbors=0))
        assert stream.receive().request_id == 3, "an answer need not wait for those before it"
        gated.gate.set()
        assert {stream.receive().request_id, stream.receive().request_id} == {1, 2}


def test_a_full_queue_is_resource_exhausted(built: BuiltDatastore):
    gated = GatedDatastore(built.open())
    with serving(narrow(built.path, queue_size=2), lambda _: gated) as server, OpenStream(server.address) as stream:
        stream.send(1, good(built))
        begun(gated)
        for request_id in (2, 3, 4):
            stream.send(request_id, good(built))
        refused = stream.receive()
        assert (refused.request_id, refused.error.code) == (4, grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
        gated.gate.set()
        assert sorted(stream.receive().request_id for _ in range(3)) == [1, 2, 3]


def test_work_whose_deadline_passed_in_the_queue_is_not_searched(built: BuiltDatastore):
    gated = GatedDatastore(built.open())
    with serving(narrow(built.path, queue_size=2), lambda _: gated) as server, OpenStream(server.address) as stream:
        stream.send(1, good(built))
        begun(gated)
        stream.send(2, good(built), timeout_us=1)
        stream.send(3, good(built, neighbors=0))
        assert stream.receive().request_id == 3  # so the server has read the one before, too
        gated.gate.set()
        answers = {answer.request_id: answer for answer in (stream.receive(), stream.receive())}
    assert answers[1].WhichOneof("result") == "response"
    assert answers[2].error.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    assert gated.searches == 1


def test_a_cancelled_stream_frees_its_work(built: BuiltDatastore):
    gated = GatedDatastore(built.open())
    with serving(narrow(built.path, queue_size=2), lambda _: gated) as server, OpenStream(server.address) as lasting:
        with OpenStream(server.address) as cancelled:
            cancelled.send(1, good(built))
            begun(gated)
            for request_id in (2, 3, 4):
                cancelled.send(request_id, good(built))
            assert cancelled.receive().request_id == 4  # refused: the queue is full of 2 and 3
        # 2 and 3 leave the queue, so that another stream finds room; 1 runs on, it cannot be stopped.
        answer, request_id = None, 10
        while answer is None or answer.error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]:
            request_id += 1
            lasting.send(request_id, good(built))
            lasting.send(0, good(built, neighbors=0))
            answer = lasting.receive()  # the bad request's refusal, unless the good one was refused before it
            if answer.request_id != 0:
                assert lasting.receive().request_id == 0
        gated.gate.set()
        assert lasting.receive().request_id == request_id
        assert gated.searches == 2, "the requests of the cancelled stream were not searched"
