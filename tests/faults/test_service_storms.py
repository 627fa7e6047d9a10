"""Callers in crowds, callers that give up, wires that are slow or torn: answers stay right, nothing is left over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import numpy as np
import pytest

from benchmarks.held import held_by
from decoder_client.retriever import RetrieverClient
from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.datastore import Datastore
from tests.support.datastore import BuiltDatastore
from tests.support.fleet import asked_of, expected, same_tree, trees_of
from tests.support.retriever import client_of
from tests.support.serving import (
    IDENTITY,
    PATIENCE_S,
    OpenStream,
    ServerProcess,
    eventually,
    request_for,
)
from tests.support.wire import Wire

ROWS = list(range(20))
MORE_FILES, MORE_BYTES = 4, 48 << 20
"""What a server may hold afterwards and did not before: threads, buffers that grew once."""


@pytest.fixture(scope="module")
def store(built: BuiltDatastore) -> Datastore:
    return built.open()


@pytest.fixture(scope="module")
def running(built: BuiltDatastore) -> Iterator[tuple[str, int]]:
    """A server's address and process."""
    with ServerProcess(built.path, "--search-threads", "1") as server:
        yield server.ready(), server.process.pid


@contextmanager
def nothing_left_over(running: tuple[str, int], built: BuiltDatastore) -> Iterator[None]:
    address, process = running
    with grpc.insecure_channel(address) as channel:
        stub = pb_grpc.RetrieverStub(channel)
        right = stub.Retrieve(question(built), timeout=PATIENCE_S)
        files, memory = held_by([process])
        yield
        eventually(lambda: held_by([process])[0] <= files + MORE_FILES)
        assert held_by([process])[1] <= memory + MORE_BYTES
        again = stub.Retrieve(question(built), timeout=PATIENCE_S)
        assert list(again.trees) == list(right.trees)


def question(built: BuiltDatastore, at: int = 0, **changes: object) -> pb.RetrieveRequest:
    return request_for(built.entries.keys[at : at + 1], built.entries.next_tokens[at : at + 1].tolist(), **changes)


def own_channel(address: str) -> grpc.Channel:
    return grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


class Judge:
    """Asks with a client, and compares what comes with what the datastore holds."""

    def __init__(self, built: BuiltDatastore, store: Datastore) -> None:
        self._built, self._trees = built, expected(store, built, ROWS)

    def is_answered(self, client: RetrieverClient) -> bool:
        drafts = asked_of(client, self._built, ROWS)
        if drafts is not None:
            assert all(same_tree(found, wanted) for found, wanted in zip(trees_of(drafts), self._trees, strict=True))
        return drafts is not None


def test_a_hundred_clients_that_come_at_once_are_all_answered(
    running: tuple[str, int], built: BuiltDatastore, store: Datastore
):
    judge = Judge(built, store)
    with nothing_left_over(running, built):
        together = threading.Barrier(100)

        def one(_: int) -> bool:
            together.wait(PATIENCE_S)
            with client_of(running[0]) as client:
                client.connect(IDENTITY)
                eventually(lambda: judge.is_answered(client))
            return True

        with ThreadPoolExecutor(100) as callers:
            assert all(callers.map(one, range(100)))


def test_ten_thousand_cancelled_calls_in_a_row(running: tuple[str, int], built: BuiltDatastore):
    asked = question(built)
    with nothing_left_over(running, built), own_channel(running[0]) as channel:
        stub = pb_grpc.RetrieverStub(channel)
        for _ in range(100):
            calls = [stub.Retrieve.future(asked, timeout=PATIENCE_S) for _ in range(100)]
            for call in calls:
                call.cancel()
            assert len(stub.Retrieve(asked, timeout=PATIENCE_S).trees) == 1


def test_a_thousand_cancelled_streams_in_a_row(running: tuple[str, int], built: BuiltDatastore):
    asked = pb.RetrieveStreamRequest(request_id=1, request=question(built))
    with nothing_left_over(running, built), own_channel(running[0]) as channel:
        stub = pb_grpc.RetrieverStub(channel)
        for number in range(1000):
            stream = stub.RetrieveStream(iter([asked] * 5))
            if number % 2:
                next(stream)
            stream.cancel()


def test_half_of_a_streams_requests_are_given_up_and_the_others_are_answered(
    running: tuple[str, int], built: BuiltDatastore, store: Datastore
):
    count = 400
    with nothing_left_over(running, built), OpenStream(running[0]) as stream:
        for at in range(count):
            # With nprobe it waits for a thread, behind others.
            stream.send(at, question(built, at % 20, nprobe=1), timeout_us=1 if at % 2 else 0)
        stream.half_close()
        answers = {answer.request_id: answer for answer in stream.call}
    assert sorted(answers) == list(range(count))
    codes = {answer.error.code for answer in answers.values() if answer.HasField("error")}
    assert codes <= {grpc.StatusCode.DEADLINE_EXCEEDED.value[0], grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]}
    answered = {number: answer.response for number, answer in answers.items() if answer.HasField("response")}
    assert answered
    for number, response in answered.items():
        at = number % 20
        right = store.draft(
            built.entries.keys[at : at + 1].astype(np.float16).astype(np.float32),
            built.entries.next_tokens[at : at + 1],
            neighbors=10,
            max_nodes=16,
            temperature=float(np.float32(0.1)),
        )
        assert list(response.trees[0].tokens) == right.trees[0].tokens.tolist()


def test_a_service_that_is_slow_by_half_a_second_costs_drafts_until_it_is_quick(
    running: tuple[str, int], built: BuiltDatastore, store: Datastore
):
    judge = Judge(built, store)
    with Wire(running[0]) as wire, client_of(wire.address, deadline_ms=200.0) as client:
        client.connect(IDENTITY)
        eventually(lambda: judge.is_answered(client))
        wire.delay_s = 0.5
        eventually(lambda: not judge.is_answered(client) and client.trouble != "")
        assert client.stats.late > 0
        wire.delay_s = 0.0
        eventually(lambda: judge.is_answered(client))
        assert client.trouble == ""


def test_connections_that_are_reset_in_the_middle_of_a_stream_are_made_anew(
    running: tuple[str, int], built: BuiltDatastore, store: Datastore
):
    judge = Judge(built, store)
    with nothing_left_over(running, built), Wire(running[0]) as wire, client_of(wire.address) as client:
        client.connect(IDENTITY)
        for number in range(1, 6):
            eventually(lambda: judge.is_answered(client))
            torn = threading.Thread(target=wire.reset)
            torn.start()
            while client.stats.reconnects < number:
                judge.is_answered(client)
            torn.join()
        eventually(lambda: judge.is_answered(client))
