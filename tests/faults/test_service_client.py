"""A client whose service is killed, frozen, replaced or never was one."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import numpy as np
import pytest

from decoder_client.retriever import Drafts, RetrieverClient, RetrieverConfig, RetrieverError, RetrieverUnavailableError
from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.serving.config import Limits
from retriever_service.serving.messages import info_message, reducer_message
from tests.support.datastore import BuiltDatastore
from tests.support.serving import IDENTITY, PATIENCE_S, ServerProcess, eventually


def client_of(address: str, **changes: object) -> RetrieverClient:
    quick = {"deadline_ms": 100.0, "connect_timeout_s": 2.0, "retry_base_s": 0.01, "retry_max_s": 0.05}
    return RetrieverClient(RetrieverConfig(address, **{**quick, **changes}))


def ask(client: RetrieverClient, built: BuiltDatastore) -> Drafts | None:
    keys = built.entries.keys[:2].astype(np.float16)
    return client.retrieve(keys, built.entries.next_tokens[:2].tolist(), neighbors=9, max_nodes=9, temperature=0.1)


def test_drafts_come_back_after_a_kill_and_a_restart_on_the_same_port(built: BuiltDatastore):
    with ServerProcess(built.path) as first:
        address = first.ready()
        client = client_of(address)
        client.connect(IDENTITY)
        eventually(lambda: ask(client, built) is not None)
        first.send(signal.SIGKILL)
        first.finish()
    with client:
        eventually(lambda: client.trouble != "" and ask(client, built) is None)
        assert client.stats.skipped > 0, "it is left alone, not waited for"
        with ServerProcess(built.path, listen=address) as second:
            second.ready()
            eventually(lambda: ask(client, built) is not None)
            assert client.stats.reconnects >= 1
            assert client.trouble == ""


def test_a_kill_in_the_middle_of_calls_never_raises(built: BuiltDatastore):
    outcomes: list[object] = []
    stop = threading.Event()

    def decode(client: RetrieverClient) -> None:
        while not stop.is_set():
            outcomes.append(ask(client, built))

    with ServerProcess(built.path) as server:
        client = client_of(server.ready())
        client.connect(IDENTITY)
        with client, ThreadPoolExecutor(2) as threads:
            loops = [threads.submit(decode, client) for _ in range(2)]
            eventually(lambda: client.stats.answered > 20)
            server.send(signal.SIGKILL)
            eventually(lambda: client.stats.skipped > 20)
            stop.set()
            assert [loop.result(PATIENCE_S) for loop in loops] == [None, None]
    assert {type(outcome) for outcome in outcomes} == {Drafts, type(None)}


def test_a_frozen_service_costs_deadlines_until_it_is_left_alone_and_returns_when_it_thaws(built: BuiltDatastore):
    with ServerProcess(built.path) as server, client_of(server.ready(), failure_threshold=3) as client:
        client.connect(IDENTITY)
        eventually(lambda: ask(client, built) is not None)
        late = client.stats.late
        server.send(signal.SIGSTOP)
        eventually(lambda: ask(client, built) is None and client.trouble != "")
        assert client.stats.late - late <= 3
        for _ in range(50):
            assert ask(client, built) is None
        server.send(signal.SIGCONT)
        eventually(lambda: ask(client, built) is not None)


def test_closing_while_the_service_is_frozen_leaves_no_thread(built: BuiltDatastore):
    before = threading.active_count()
    with ServerProcess(built.path) as server:
        client = client_of(server.ready(), failure_threshold=1, connect_timeout_s=10 * PATIENCE_S)
        client.connect(IDENTITY)
        server.send(signal.SIGSTOP)
        eventually(lambda: ask(client, built) is None and client.trouble != "")
        client.close()
        eventually(lambda: threading.active_count() <= before)


@contextmanager
def speaking(say: bytes) -> Iterator[str]:
    """Something that listens, says this to everyone, and is no gRPC server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connections.append(connection)
                connection.sendall(say)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)
        for connection in connections:
            connection.close()


@pytest.mark.parametrize("say", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(range(256)) * 20])
def test_something_else_at_the_address_is_an_error_that_says_so(say: bytes):
    with (
        speaking(say) as address,
        client_of(address, connect_timeout_s=0.5) as client,
        pytest.raises(RetrieverUnavailableError, match=address),
    ):
        client.connect(IDENTITY)


class Impostor(pb_grpc.RetrieverServicer):
    """Shakes hands well and answers with whatever the test likes."""

    def __init__(self, built: BuiltDatastore) -> None:
        datastore = built.open()
        self.info = info_message(datastore, Limits())
        self.reducer = reducer_message(datastore)
        self.answer = pb.RetrieveResponse()
        self.wrong_id = False

    def GetInfo(self, request, context):  # noqa: ARG002, N802
        return self.info

    def GetReducer(self, request, context):  # noqa: ARG002, N802
        return self.reducer

    def Retrieve(self, request, context):  # noqa: ARG002, N802
        return self.answer

    def RetrieveStream(self, request_iterator, context):  # noqa: ARG002, N802
        for request in request_iterator:
            yield pb.RetrieveStreamResponse(request_id=request.request_id + self.wrong_id, response=self.answer)


@contextmanager
def answering(impostor: Impostor) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4))
    pb_grpc.add_RetrieverServicer_to_server(impostor, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait(PATIENCE_S)


@pytest.mark.parametrize(
    "tree",
    [
        pb.DraftTree(tokens=[1, 2], parents=[0], dense_masses=[1, 1]),
        pb.DraftTree(tokens=[1, 2], parents=[2, 0], dense_masses=[1, 1]),
        pb.DraftTree(tokens=[10**6], parents=[0], dense_masses=[1]),
    ],
)
def test_a_faulty_answer_is_no_draft(built: BuiltDatastore, tree: pb.DraftTree):
    impostor = Impostor(built)
    impostor.answer = pb.RetrieveResponse(trees=[tree, tree])
    with answering(impostor) as address, client_of(address, deadline_ms=PATIENCE_S * 1e3) as client:
        client.connect(IDENTITY)
        assert ask(client, built) is None
        assert client.stats.failed == 1
        impostor.answer = pb.RetrieveResponse(trees=[pb.DraftTree(), pb.DraftTree()])
        assert ask(client, built) is not None


class Held(Impostor):
    """Answers while `answers` is set."""

    def __init__(self, built: BuiltDatastore) -> None:
        super().__init__(built)
        self.answer = pb.RetrieveResponse(trees=[pb.DraftTree(), pb.DraftTree()])
        self.answers = threading.Event()
        self.answers.set()
        self.read = 0

    def RetrieveStream(self, request_iterator, context):  # noqa: ARG002, N802
        for request in request_iterator:
            self.read += 1
            self.answers.wait(PATIENCE_S)
            yield pb.RetrieveStreamResponse(request_id=request.request_id, response=self.answer)


def test_a_server_whose_answers_are_late_has_one_request_of_a_client_at_a_time(built: BuiltDatastore):
    held = Held(built)
    with answering(held) as address, client_of(address, failure_threshold=10_000) as client:
        client.connect(IDENTITY)
        eventually(lambda: ask(client, built) is not None)
        for _ in range(10):  # each time half as many are allowed
            held.answers.clear()
            late = client.stats.late
            eventually(lambda late=late: ask(client, built) is None and client.stats.late > late)
            held.answers.set()
            eventually(lambda: ask(client, built) is not None)
        held.answers.clear()
        late = client.stats.late
        eventually(lambda: ask(client, built) is None and client.stats.late > late)
        before = client.stats
        for _ in range(20):
            assert ask(client, built) is None
        assert client.stats.late <= before.late + 1
        assert client.stats.failed >= before.failed + 19, "refused here, as a server would"
        held.answers.set()
        eventually(lambda: ask(client, built) is not None)


def test_an_answer_to_nobodys_request_is_dropped(built: BuiltDatastore):
    impostor = Impostor(built)
    impostor.wrong_id = True
    with answering(impostor) as address, client_of(address) as client:
        client.connect(IDENTITY)
        assert ask(client, built) is None
        assert client.stats.late == 1


def test_a_reducer_that_is_not_the_announced_one_is_refused(built: BuiltDatastore):
    impostor = Impostor(built)
    impostor.reducer = pb.GetReducerResponse(safetensors=b"something else")
    with (
        answering(impostor) as address,
        client_of(address) as client,
        pytest.raises(RetrieverError, match=built.manifest.key_recipe.reducer_hash),
    ):
        client.connect(IDENTITY)


@pytest.mark.parametrize("spoil", ["limits", "continuation_length"])
def test_a_server_that_allows_nothing_is_refused(built: BuiltDatastore, spoil: str):
    impostor = Impostor(built)
    impostor.info.ClearField(spoil)
    with (
        answering(impostor) as address,
        client_of(address) as client,
        pytest.raises(RetrieverError, match="allows nothing"),
    ):
        client.connect(IDENTITY)
