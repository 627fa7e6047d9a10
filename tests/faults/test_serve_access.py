"""`dresd-retriever serve` as a process, with certificates and tokens named by options and by the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import grpc
import pytest

from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.commands.serve_operations import _FILES
from tests.support.certificates import authority, issued_by, put, put_pair
from tests.support.serving import PATIENCE_S, ServerProcess, servable_datastore

TOKEN = "f" * 32


def served(address: str, root_pem: bytes, token: str) -> grpc.StatusCode:
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(root_pem)) as channel:
        metadata = (("authorization", f"Bearer {token}"),)
        try:
            pb_grpc.RetrieverStub(channel).GetInfo(pb.GetInfoRequest(), metadata=metadata, timeout=PATIENCE_S)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


@pytest.mark.parametrize("by_environment", [False, True])
def test_files_named_by_options_or_environment(tmp_path: Path, by_environment: bool):
    built, root = servable_datastore(tmp_path / "store"), authority()
    cert, key = put_pair(tmp_path, issued_by(root))
    tokens = put(tmp_path / "tokens", TOKEN.encode())
    if by_environment:
        arguments, environment = [], {
            "DRESD_SERVE_TLS_CERT": str(cert), "DRESD_SERVE_TLS_KEY": str(key), "DRESD_SERVE_TOKEN_FILE": str(tokens)
        }  # fmt: skip
    else:
        arguments = ["--tls-cert", str(cert), "--tls-key", str(key), "--token-file", str(tokens)]
        environment = {}
    with ServerProcess(built.path, *arguments, environment=environment) as server:
        address = server.ready()
        assert served(address, root.pem, TOKEN) is grpc.StatusCode.OK
        assert served(address, root.pem, TOKEN[1:] + "0") is grpc.StatusCode.UNAUTHENTICATED
        server.process.terminate()
        code, _, errors = server.finish()
    assert code == 0
    assert TOKEN not in errors
    assert "PRIVATE KEY" not in errors


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--tls-cert", "server.pem"], 2),
        (["--tls-key", "server.key"], 2),
        (["--tls-client-ca", "ca.pem"], 2),
        (["--tls-cert", "absent.pem", "--tls-key", "absent.key"], 1),
        (["--token-file", "absent"], 1),
        (["--token-file", "."], 1),
    ],
)
def test_what_cannot_work_is_one_sentence(tmp_path: Path, arguments: list[str], code: int):
    result = subprocess.run(
        [sys.executable, "-m", "retriever_service.cli", "serve", "store", "--listen", "127.0.0.1:0", *arguments],
        capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE_S, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert result.returncode == code
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("variable", [variable for variable, _ in _FILES.values()])
def test_a_variable_left_empty_does_not_open_the_server(tmp_path: Path, variable: str):
    result = subprocess.run(
        [sys.executable, "-m", "retriever_service.cli", "serve", "store", "--listen", "127.0.0.1:0"],
        capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE_S, env={**os.environ, variable: ""},
    )  # fmt: skip
    assert result.returncode == 2
    assert f"${variable} is set and empty" in result.stderr


def test_json_logs_and_metrics_of_a_process(tmp_path: Path):
    built = servable_datastore(tmp_path / "store")
    with ServerProcess(built.path, "--log-format", "json", "--metrics-listen", "127.0.0.1:0") as server:
        address = server.ready()
        ready = next(said for line in server.process.stderr if (said := event_of(line)).get("message") == "ready")
        assert address.endswith(f":{ready['port']}")
        url = f"http://127.0.0.1:{ready['metrics_port']}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
            assert b"dresd_retriever_entries" in response.read()
        server.process.terminate()
        code, _, errors = server.finish()
    assert code == 0
    assert str(event_of(errors.splitlines()[-1])["message"]).startswith("shutting down")


def event_of(line: str) -> dict[str, object]:
    """Of the server's log; gRPC's own lines are none."""
    return json.loads(line) if line.startswith("{") else {}
