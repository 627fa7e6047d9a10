"""The service as a process: what it says, how it ends, and what stops it from starting."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from tests.support.datastore import BuiltDatastore
from tests.support.serving import PATIENCE_S, OpenStream, ServerProcess, request_for, servable_datastore


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltDatastore:
    return servable_datastore(tmp_path_factory.mktemp("process") / "a store", num_partitions=2)


def failure_of(server: ServerProcess, exit_code: int = 1) -> str:
    """The one sentence of a server that must not start; its exit code is 2 for wrong usage."""
    code, output, errors = server.finish()
    assert (code, output) == (exit_code, "")
    assert "Traceback" not in errors
    assert len(errors.splitlines()) == 1, errors
    assert errors.startswith("error: ")
    return errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_gracefully(built: BuiltDatastore, number: signal.Signals):
    with ServerProcess(built.path) as server:
        address = server.ready()
        assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", address)
        with OpenStream(address) as stream, grpc.insecure_channel(address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            stream.send(1, request_for(built.entries.keys[:1], built.entries.next_tokens[:1].tolist()))
            assert stream.receive().WhichOneof("result") == "response"
            server.send(number)
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(grpc.RpcError) as ended:
                stream.receive()
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        code, output, errors = server.finish()
    assert (code, output) == (0, ""), errors
    assert "Traceback" not in errors


def answer_of(stub: pb_grpc.RetrieverStub, request: pb.RetrieveRequest) -> pb.RetrieveResponse:
    """The answer as soon as the server takes the request: it refuses what it would let wait long."""
    while True:
        try:
            return stub.Retrieve(request, timeout=PATIENCE_S)
        except grpc.RpcError as error:  # noqa: PERF203 - asking again is the point
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise


def test_callers_that_leave_with_answers_unread_are_no_faults(built: BuiltDatastore):
    big = request_for(
        built.entries.keys[:256], built.entries.next_tokens[:256].tolist(), neighbors=1000, max_nodes=1000
    )
    # With nprobe it is none of those that are answered at once, before others that wait.
    small = request_for(built.entries.keys[:1], built.entries.next_tokens[:1].tolist(), nprobe=1)
    with ServerProcess(built.path, "--search-threads", "1") as server:
        address = server.ready()
        with grpc.insecure_channel(address) as channel:
            stub = pb_grpc.RetrieverStub(channel)
            for _ in range(3):
                with OpenStream(address) as leaving:
                    for request_id in range(40):
                        leaving.send(request_id, big)
                        # One thread, first come first served: this is answered after what the other has sent so far,
                        # which in the end has more answers waiting than fit into the connection.
                        answer_of(stub, small)
                    leaving.call.cancel()
            assert len(answer_of(stub, small).trees) == 1
        server.send(signal.SIGTERM)
        code, _, errors = server.finish()
    assert code == 0
    assert "Traceback" not in errors
    assert "ERROR" not in errors


LOADS_FOR_EVER = """
import sys, threading
from pathlib import Path
from retriever_service.serving.server import ServeConfig, run

def open_datastore(folder):
    print("loading", flush=True)
    threading.Event().wait()

sys.exit(run(ServeConfig(Path("nowhere"), listen="127.0.0.1:0"), open_datastore))
"""


def test_a_signal_while_it_loads_ends_it_too():
    with subprocess.Popen(
        [sys.executable, "-c", LOADS_FOR_EVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output, errors) == (0, "", "")


def test_partitions_and_build_of_the_command_line_are_served(built: BuiltDatastore):
    with ServerProcess(built.path, "--partitions", "1", "--skip-checksums", "--search-threads", "1") as server:
        with grpc.insecure_channel(server.ready()) as channel:
            info = pb_grpc.RetrieverStub(channel).GetInfo(pb.GetInfoRequest(), timeout=PATIENCE_S)
        assert (info.build_id, list(info.served_partitions)) == ("build-1", [1])


def test_a_port_in_use(built: BuiltDatastore):
    with ServerProcess(built.path) as first:
        address = first.ready()
        with ServerProcess(built.path, listen=address) as second:
            said = failure_of(second)
    assert address in said
    assert "in use" in said


def test_a_folder_that_is_no_datastore(tmp_path: Path):
    with ServerProcess(tmp_path) as server:
        assert str(tmp_path) in failure_of(server)


def test_a_folder_that_is_not_there(tmp_path: Path):
    with ServerProcess(tmp_path / "nowhere") as server:
        assert "nowhere" in failure_of(server)


def test_an_unknown_partition(built: BuiltDatastore):
    with ServerProcess(built.path, "--partitions", "0,9") as server:
        assert "9" in failure_of(server)


@pytest.mark.parametrize("listen", ["nowhere", "x" * 300 + ":1", "a b:1", "[localhost:0"])
def test_an_address_that_is_none(built: BuiltDatastore, listen: str):
    with ServerProcess(built.path, listen=listen) as server:
        assert "HOST:PORT" in failure_of(server, 2)


@pytest.mark.parametrize("host", ["x" * 64 + ".example", "a..b", ".", "no-such-host.invalid"])
def test_a_host_that_is_none(built: BuiltDatastore, host: str):
    with ServerProcess(built.path, listen=f"{host}:0") as server:
        assert "cannot listen on" in failure_of(server)


@pytest.mark.parametrize("option", ["--search-threads", "--queue-size"])
@pytest.mark.parametrize("number", ["0", "-1", "100000000000000000000"])
def test_an_option_out_of_range(built: BuiltDatastore, option: str, number: str):
    with ServerProcess(built.path, option, number) as server:
        assert f"{option.strip('-').replace('-', '_')} is {number}; it must be 1 to " in failure_of(server, 2)


@pytest.mark.parametrize("spoil", ["truncated", "corrupt", "missing"])
def test_a_spoilt_file_is_named(built: BuiltDatastore, tmp_path: Path, spoil: str):
    copy = tmp_path / "copy"
    shutil.copytree(built.path, copy)
    victim = max((path for path in copy.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(victim.read_bytes())
    if spoil == "missing":
        victim.unlink()
    elif spoil == "truncated":
        victim.write_bytes(content[:-1])
    else:
        content[len(content) // 2] ^= 0xFF
        victim.write_bytes(content)
    with ServerProcess(copy) as server:
        assert victim.name in failure_of(server)
