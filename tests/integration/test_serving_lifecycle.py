"""From listening to stopping, in one process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.datastore import Datastore, DatastoreError
from retriever_service.serving.server import ServeConfig, ServeError
from tests.support.datastore import BuiltDatastore
from tests.support.serving import (
    PATIENCE_S,
    GatedDatastore,
    OpenStream,
    ServerThread,
    eventually,
    local_config,
    request_for,
    serving,
)

Health = health_pb2.HealthCheckResponse


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def health_of(channel: grpc.Channel) -> int:
    request = health_pb2.HealthCheckRequest(service="dresd.v1.Retriever")
    return health_pb2_grpc.HealthStub(channel).Check(request, wait_for_ready=True, timeout=PATIENCE_S).status


def good(built: BuiltDatastore) -> pb.RetrieveRequest:
    return request_for(built.entries.keys[:1], built.entries.next_tokens[:1].tolist())


def test_while_it_loads_it_is_there_but_not_serving(built: BuiltDatastore):
    gate, port = threading.Event(), free_port()

    def slow(_: Path) -> Datastore:
        assert gate.wait(PATIENCE_S)
        return built.open()

    thread = ServerThread(ServeConfig(built.path, listen=f"127.0.0.1:{port}"), slow, loaded=False)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert health_of(channel) == Health.NOT_SERVING
        stub = pb_grpc.RetrieverStub(channel)
        for call, request in (
            (stub.GetInfo, pb.GetInfoRequest()),
            (stub.GetReducer, pb.GetReducerRequest()),
            (stub.Retrieve, good(built)),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                call(request)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert refused.value.details() == "the datastore is still being loaded"
        (answer,) = stub.RetrieveStream(iter([pb.RetrieveStreamRequest(request_id=1, request=good(built))]))
        assert answer.error.code == grpc.StatusCode.UNAVAILABLE.value[0]
        assert answer.error.message == "the datastore is still being loaded"
        gate.set()
        thread.server = thread.starting.result(PATIENCE_S)
        assert health_of(channel) == Health.SERVING
        assert stub.GetInfo(pb.GetInfoRequest()).build_id == "build-1"
    thread.stop()
    thread.close()


def failed_start(config: ServeConfig, *opener: Callable[[Path], Datastore]) -> BaseException:
    thread = ServerThread(config, *opener, loaded=False)
    error = thread.starting.exception(PATIENCE_S)
    thread.close()
    assert error is not None
    return error


def test_a_port_in_use_is_an_error_that_says_so(built: BuiltDatastore):
    with serving(local_config(built.path)) as server:
        error = failed_start(ServeConfig(built.path, listen=server.address))
    assert isinstance(error, ServeError)
    assert server.address in str(error)
    assert "in use" in str(error)


def test_an_address_of_another_machine_is_an_error_that_says_so(built: BuiltDatastore):
    error = failed_start(ServeConfig(built.path, listen="192.0.2.1:0"))
    assert isinstance(error, ServeError)
    assert "192.0.2.1:0" in str(error)


@pytest.mark.parametrize("problem", [DatastoreError("store: it is broken."), PermissionError(13, "Permission denied")])
def test_a_datastore_that_does_not_open_stops_the_start_and_frees_the_port(built: BuiltDatastore, problem: Exception):
    port = free_port()
    config = ServeConfig(built.path, listen=f"127.0.0.1:{port}")

    def broken(_: Path) -> Datastore:
        raise problem

    error = failed_start(config, broken)
    assert isinstance(error, (DatastoreError, ServeError))
    assert ("Permission denied" in str(error)) == isinstance(problem, PermissionError)
    with serving(config):
        pass


def test_an_unknown_partition_is_an_error(built: BuiltDatastore):
    error = failed_start(local_config(built.path, partitions=(0, 7)))
    assert isinstance(error, DatastoreError)
    assert "7" in str(error)


def test_a_folder_without_a_datastore_is_an_error(tmp_path: Path):
    assert isinstance(failed_start(local_config(tmp_path)), DatastoreError)


def test_many_starts_that_fail_leave_the_process_alive():
    def broken(_: Path) -> Datastore:
        raise DatastoreError("it is broken")

    for _ in range(500):
        assert isinstance(failed_start(local_config(Path("absent")), broken), DatastoreError)


def test_stopping_finishes_what_runs_and_refuses_what_comes(built: BuiltDatastore):
    gated = GatedDatastore(built.open())
    thread = ServerThread(local_config(built.path), lambda _: gated)
    with grpc.insecure_channel(thread.address) as channel, OpenStream(thread.address) as stream:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == Health.SERVING
        unary = pb_grpc.RetrieverStub(channel).Retrieve.future(good(built))
        stream.send(1, good(built))
        assert gated.begun.acquire(timeout=PATIENCE_S)
        assert gated.begun.acquire(timeout=PATIENCE_S)
        stopped = threading.Thread(target=thread.stop, args=(PATIENCE_S,))
        stopped.start()
        assert next(watch).status == Health.NOT_SERVING
        with grpc.insecure_channel(thread.address) as late, pytest.raises(grpc.RpcError) as refused:
            pb_grpc.RetrieverStub(late).GetInfo(pb.GetInfoRequest())
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        gated.gate.set()
        assert len(unary.result(PATIENCE_S).trees) == 1
        assert stream.receive().WhichOneof("result") == "response"
        with pytest.raises(grpc.RpcError) as ended:
            stream.receive()
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in ended.value.details()
        stopped.join(PATIENCE_S)
        assert not stopped.is_alive()
    thread.close()


def test_stopping_ends_an_idle_stream_at_once(built: BuiltDatastore):
    thread = ServerThread(local_config(built.path))
    with OpenStream(thread.address) as stream:
        stream.send(1, good(built))
        stream.receive()
        thread.stop(grace_s=10 * PATIENCE_S)  # `call` waits for less than that
        with pytest.raises(grpc.RpcError) as ended:
            stream.receive()
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
    thread.close()


def test_a_search_that_outlives_the_grace_period_does_not_hold_up_the_end(built: BuiltDatastore):
    gated = GatedDatastore(built.open())
    thread = ServerThread(local_config(built.path), lambda _: gated)
    with grpc.insecure_channel(thread.address) as channel:
        unary = pb_grpc.RetrieverStub(channel).Retrieve.future(good(built))
        assert gated.begun.acquire(timeout=PATIENCE_S)
        thread.stop(grace_s=0.05)
        eventually(unary.done)
        assert unary.exception() is not None
    gated.gate.set()
    thread.close()


def test_stopping_twice_at_a_time_is_stopping_once(built: BuiltDatastore):
    for _ in range(50):
        thread = ServerThread(local_config(built.path))
        both = [threading.Thread(target=thread.stop, args=(0.0,)) for _ in range(2)]
        for one in both:
            one.start()
        for one in both:
            one.join(PATIENCE_S)
            assert not one.is_alive()
        thread.close()
