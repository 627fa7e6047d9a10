"""`serve --workers`: several processes behind one port, as one server to everybody who asks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import grpc
import pytest

from dresd.v1 import retriever_pb2_grpc as pb_grpc
from tests.support.datastore import BuiltDatastore
from tests.support.serving import (
    PATIENCE_S,
    ServerProcess,
    eventually,
    request_for,
)
from tests.support.swapping import root_of_builds

WORKERS = ("--workers", "2", "--search-threads", "1")


def ask(address: str, built: BuiltDatastore) -> str:
    """The build that answered, over a connection of its own."""
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        request = request_for(built.entries.keys[:2], built.entries.next_tokens[:2].tolist())
        return pb_grpc.RetrieverStub(channel).Retrieve(request, timeout=PATIENCE_S, wait_for_ready=True).build_id


def processes_of(server: ServerProcess) -> list[int]:
    listed = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    return [int(one) for one in listed.split()]


def admin_line(server: ServerProcess) -> str:
    line = server.process.stdout.readline()
    assert line.startswith("dresd-retriever admin on "), line
    return line.rsplit(" ", 1)[1].strip()


def numbers_at(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def metrics_port(server: ServerProcess) -> int:
    for line in server.process.stderr:
        if found := re.search(r" ready .*metrics_port=(\d+)", line):
            return int(found.group(1))
    raise AssertionError("no worker said where its numbers are")


def test_all_workers_answer_at_one_port_and_their_numbers_are_shown_together(built: BuiltDatastore) -> None:
    with ServerProcess(built.path, *WORKERS, "--metrics-listen", "127.0.0.1:0") as server:
        address = server.ready()
        port = metrics_port(server)
        assert len(processes_of(server)) == 2

        def answered() -> dict[str, float]:
            name = "dresd_retriever_requests_total{"
            return {key: value for key, value in numbers_at(port).items() if key.startswith(name)}

        asked = 0
        while len(answered()) < 2:  # the kernel spreads connections over the workers
            assert asked < 1000
            ask(address, built)
            asked += 1
        assert {re.search(r'worker="(\d)"', key).group(1) for key in answered()} == {"0", "1"}
        assert sum(answered().values()) == asked
        server.send(signal.SIGTERM)
        code, _, errors = server.finish()
    assert code == 0
    assert "Traceback" not in errors


def test_a_killed_worker_is_started_again_and_the_others_go_on(built: BuiltDatastore) -> None:
    with ServerProcess(built.path, *WORKERS) as server:
        address = server.ready()
        before = processes_of(server)
        os.kill(before[0], signal.SIGKILL)
        assert ask(address, built) == "build-1"
        eventually(lambda: len(processes_of(server)) == 2 and before[0] not in processes_of(server))
        for _ in range(20):
            assert ask(address, built) == "build-1"
        server.send(signal.SIGTERM)
        code, _, errors = server.finish()
    assert code == 0
    assert "is started again" in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_no_worker_outlives_a_server_that_is_told_to_stop(built: BuiltDatastore, number: signal.Signals) -> None:
    with ServerProcess(built.path, *WORKERS) as server:
        server.ready()
        workers = processes_of(server)
        server.send(number)
        assert server.finish()[0] == 0
    assert not [one for one in workers if Path(f"/proc/{one}").exists()]


def test_workers_stop_when_the_one_that_watches_them_is_killed(built: BuiltDatastore) -> None:
    with ServerProcess(built.path, *WORKERS) as server:
        server.ready()
        workers = processes_of(server)
        server.send(signal.SIGKILL)
        server.finish()
        eventually(lambda: not [one for one in workers if Path(f"/proc/{one}").exists()])


def test_what_keeps_workers_from_starting_is_said_once(built: BuiltDatastore, tmp_path: Path) -> None:
    for arguments, reason in (
        ((str(tmp_path / "none"),), "error: "),
        ((str(built.path), "--partitions", "7"), "error: "),
        ((str(built.path), "--token-file", str(tmp_path / "none")), "error: cannot read"),
    ):
        folder, *options = arguments
        with ServerProcess(Path(folder), *WORKERS, *options) as server:
            code, output, errors = server.finish()
        assert code == 1
        assert output == ""
        assert errors.count(reason) == 1, errors
        assert "Traceback" not in errors


def test_a_port_in_use_is_said_before_any_worker_starts(built: BuiltDatastore) -> None:
    with ServerProcess(built.path, *WORKERS) as first:
        address = first.ready()
        with ServerProcess(built.path, *WORKERS, listen=address) as second:
            code, _, errors = second.finish()
        assert code == 1
        assert "stop what listens there" in errors
        first.send(signal.SIGTERM)
        first.finish()


def test_what_is_asked_of_the_admin_port_reaches_all_workers(tmp_path: Path) -> None:
    root = root_of_builds(tmp_path / "root", **{"build-1": {}, "build-2": {"seed": 1}})
    built = root.builds["build-1"]
    options = ("--admin-listen", "127.0.0.1:0", "--reload-interval", "0")
    with ServerProcess(root.path, *WORKERS, *options) as server:
        admin = admin_line(server)
        address = server.ready()
        root.publish("build-2")
        command = [sys.executable, "-m", "retriever_service.cli"]
        done = subprocess.run([*command, "reload", admin], capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        assert {ask(address, built) for _ in range(30)} == {"build-2"}
        shown = subprocess.run(
            [*command, "status", admin, "--json"], capture_output=True, text=True, timeout=PATIENCE_S
        )
        (collection,) = json.loads(shown.stdout)["collections"]
        assert [(each["build_id"], each["current"]) for each in collection["builds"]] == [
            ("build-2", True),
            ("build-1", False),
        ]
        server.send(signal.SIGTERM)
        assert server.finish()[0] == 0
