"""The admin service and the commands that ask it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pytest

from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.cli import main
from retriever_service.datastore import Datastore
from retriever_service.serving.access import Access, TlsFiles
from tests.support.certificates import NAME, authority, issued_by, put, put_pair
from tests.support.serving import (
    IDENTITY,
    PATIENCE_S,
    ServerThread,
    eventually,
    serving,
)
from tests.support.swapping import Admin, Root, root_of_builds, swapping_config

OTHER_MODEL = dataclasses.replace(IDENTITY, tokenizer_hash="88" * 32)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return root_of_builds(tmp_path / "root", one={}, two={"seed": 1}, other={"model": OTHER_MODEL})


def test_the_admin_service_is_not_on_the_servers_port_nor_the_other_way_round(root: Root):
    with serving(swapping_config(root.path)) as server, Admin(server.address) as wrong:
        assert wrong.refusal()[0] is grpc.StatusCode.UNIMPLEMENTED
        with grpc.insecure_channel(f"127.0.0.1:{server.server.admin_port}") as channel:
            with pytest.raises(grpc.RpcError) as refused:
                pb_grpc.RetrieverStub(channel).GetInfo(pb.GetInfoRequest())
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
            for method in ("Reload", "GetStatus"):
                garbage = channel.unary_unary(f"/dresd.v1.Admin/{method}")
                with pytest.raises(grpc.RpcError) as refused:
                    garbage(b"\xff\xff")
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with serving(swapping_config(root.path, admin_listen=None)) as server:
        assert server.server.admin_port is None


def test_while_the_first_build_is_loaded_there_is_status_and_no_reload(root: Root):
    gate = threading.Event()

    def opener(folder: Path) -> Datastore:
        assert gate.wait(PATIENCE_S)
        return Datastore.open(folder)

    with serving(swapping_config(root.path)) as found_a_port:
        address = f"127.0.0.1:{found_a_port.server.admin_port}"
    thread = ServerThread(swapping_config(root.path, admin_listen=address), opener, loaded=False)
    with Admin(address) as admin:
        eventually(lambda: admin.refusal()[0] is grpc.StatusCode.FAILED_PRECONDITION)
        assert "still being loaded" in admin.refusal()[1]
        assert admin.builds() == []
        gate.set()
        thread.server = thread.starting.result(PATIENCE_S)
        assert admin.builds() == ["one"]
    thread.stop()
    thread.close()


def test_the_commands_reload_and_status(root: Root, capsys: pytest.CaptureFixture[str]):
    with serving(swapping_config(root.path)) as server, Admin(server) as admin:
        assert main(["reload", admin.address]) == 0
        assert capsys.readouterr().out == "serving build one still\n"
        root.publish("two")
        assert main(["reload", admin.address, "--collection", "default"]) == 0
        assert capsys.readouterr().out == "serving build two in place of one\n"
        root.publish("other")
        assert main(["reload", admin.address]) == 1
        errors = capsys.readouterr().err
        assert len(errors.splitlines()) == 1
        assert "tokenizer_hash" in errors
        assert main(["status", admin.address]) == 0
        shown = capsys.readouterr().out
        assert [line.split()[0] for line in shown.splitlines()] == ["default:", "current", "leaving", "refused"]
        assert main(["status", admin.address, "--json"]) == 0
        (collection,) = json.loads(capsys.readouterr().out)["collections"]
        assert [(build["build_id"], build["current"]) for build in collection["builds"]] == [
            ("two", True),
            ("one", False),
        ]
        assert main(["reload", admin.address, "--allow-other-model"]) == 0
        assert capsys.readouterr().out == "serving build other in place of two\n"
        assert main(["reload", server.address]) == 1
        assert "--admin-listen" in capsys.readouterr().err
        gone = admin.address
    for command in ("reload", "status"):
        assert main([command, gone]) == 1
        errors = capsys.readouterr().err
        assert len(errors.splitlines()) == 1
        assert "Nobody answers" in errors


def test_the_commands_show_certificate_and_token_of_the_environment(root: Root, tmp_path: Path):
    trusted = authority()
    certificate, key = put_pair(tmp_path, issued_by(trusted))
    tokens = put(tmp_path / "tokens", b"letmein-0123456789-letmein\n")
    access = Access(tls=TlsFiles(certificate, key), token_file=tokens)
    encrypted = {"DRESD_RETRIEVER_CA_FILE": str(put(tmp_path / "ca.pem", trusted.pem))}
    encrypted["DRESD_RETRIEVER_SERVER_NAME"] = NAME

    def status(**environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "retriever_service.cli", "status", address]
        return subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )

    with serving(swapping_config(root.path, access=access)) as server:
        address = f"127.0.0.1:{server.server.admin_port}"
        for environment, says in (
            ({}, "Nobody answers"),
            (encrypted, "DRESD_RETRIEVER_TOKEN_FILE"),
            ({"DRESD_RETRIEVER_TOKEN_FILE": str(tmp_path / "nowhere")}, "nowhere"),
        ):
            refused = status(**environment)
            assert (refused.returncode, refused.stdout) == (1, "")
            assert len(refused.stderr.splitlines()) == 1, refused.stderr
            assert says in refused.stderr
        accepted = status(**encrypted, DRESD_RETRIEVER_TOKEN_FILE=str(tokens))
    assert accepted.returncode == 0, accepted.stderr
    assert "current  one" in accepted.stdout


def test_status_tells_full_names_of_folders_that_were_named_from_the_servers_own(
    root: Root, capsys: pytest.CaptureFixture[str]
):
    with serving(swapping_config(Path(os.path.relpath(root.path)))) as server, Admin(server) as admin:
        assert main(["status", admin.address, "--json"]) == 0
    (collection,) = json.loads(capsys.readouterr().out)["collections"]
    # A folder that leads upwards is told as it was named, because ".." behind a link is not where it seems to be.
    told = [collection["folder"], *(build["folder"] for build in collection["builds"])]
    assert all(Path(folder).is_absolute() for folder in told)
    assert [Path(folder).resolve() for folder in told] == [root.path, root.path / "one"]
