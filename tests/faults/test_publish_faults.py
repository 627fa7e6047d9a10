"""Publishing and reloading with processes that are killed, disks that are full, and builds that are spoilt."""

from __future__ import annotations

import fcntl
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.datastore import CURRENT_FILE, current_build
from tests.support.certificates import put
from tests.support.serving import PATIENCE_S, ServerProcess, eventually, servable_datastore
from tests.support.swapping import Admin, Root, held, root_of_builds

RETRIEVER = [sys.executable, "-m", "retriever_service.cli"]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return root_of_builds(tmp_path / "root", one={}, two={"seed": 1})


def test_a_publisher_that_is_killed_leaves_what_was_published_and_stops_nobody(root: Root):
    with (root.path / f".{CURRENT_FILE}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # it gets as far as this, and waits
        with subprocess.Popen([*RETRIEVER, "publish", root.path, root.path / "two"]) as publisher:
            waiting = re.compile(rf"-> FLOCK .* {publisher.pid} ")
            eventually(lambda: waiting.search(Path("/proc/locks").read_text()) is not None)
            publisher.send_signal(signal.SIGKILL)
            assert publisher.wait(PATIENCE_S) == -signal.SIGKILL
    assert current_build(root.path) == root.path / "one"
    # One killed while it writes leaves a part of a file beside.
    (root.path / f".{CURRENT_FILE}.partial").write_bytes(b"tw")
    assert current_build(root.path) == root.path / "one"
    root.publish("two")
    assert current_build(root.path) == root.path / "two"
    assert not (root.path / f".{CURRENT_FILE}.partial").exists()


def test_publishing_on_a_full_disk_is_one_sentence_and_changes_nothing(tmp_path: Path):
    """On a file system of its own; skipped where one may not be mounted."""
    servable_datastore(tmp_path / "build")
    disk = tmp_path / "disk"
    disk.mkdir()
    unshare = ["unshare", "--map-root-user", "--mount"]
    mount = 'mount -t tmpfs -o size=1M small "$0"'
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "sh", "-c", mount, disk], capture_output=True, check=False).returncode
    ):
        pytest.skip("this machine lets nobody mount a small file system")
    # The mount is gone with the process, so what is left is shown from inside.
    script = (
        f'{mount} && cp -r "$1" "$0/one" && cp -r "$1" "$0/two" && printf one > "$0/CURRENT" && shift && '
        '{ cat /dev/zero > "$0/filler" 2>/dev/null; "$@"; code=$?; cat "$0/CURRENT"; ls -A "$0" >&2; exit $code; }'
    )
    command = [*RETRIEVER, "publish", disk, disk / "two"]
    ended = subprocess.run(
        [*unshare, "sh", "-c", script, disk, tmp_path / "build", *command], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout == "one"
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "No space left on device" in errors[0]
    assert "Traceback" not in ended.stderr
    assert f".{CURRENT_FILE}.partial" not in ended.stderr


def test_a_server_goes_on_through_bad_builds_and_takes_up_the_next_good_one(root: Root):
    bad = root.add_copy("bad", "two")
    victim = max((path for path in bad.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    victim.write_bytes(victim.read_bytes()[:-1])
    options = ("--admin-listen", "127.0.0.1:0", "--reload-interval", "0.02", "--build-grace", "0")
    with ServerProcess(root.path, *options) as server:
        line = server.process.stdout.readline()
        assert line.startswith("dresd-retriever admin on 127.0.0.1:")
        with Admin(line.rsplit(" ", 1)[1].strip()) as admin, grpc.insecure_channel(server.ready()) as channel:
            stub = pb_grpc.RetrieverStub(channel)
            for name in ("bad", "nowhere", "../root/two"):
                put(root.path / CURRENT_FILE, name.encode())  # at once: half of it would be refused, too
                eventually(lambda name=name: name in admin.status().last_reload_error)
                assert stub.GetInfo(pb.GetInfoRequest(), timeout=PATIENCE_S).build_id == "one"
            root.publish("two")
            eventually(lambda: admin.builds() == ["two"])
            assert stub.GetInfo(pb.GetInfoRequest(), timeout=PATIENCE_S).build_id == "two"
            process = str(server.process.pid)
            eventually(lambda: not held(root.path / "one", process) and not held(bad, process))
            # What is served may be deleted: files that are open stay.
            shutil.rmtree(root.path / "two")
            assert stub.GetInfo(pb.GetInfoRequest(), timeout=PATIENCE_S).build_id == "two"
        server.send(signal.SIGTERM)
        code, _, errors = server.finish()
    assert code == 0
    assert "Traceback" not in errors
    assert errors.count("another build was refused") == 3


def test_an_admin_port_in_use_stops_the_start(root: Root):
    with ServerProcess(root.path) as first:
        taken = first.ready()
        with ServerProcess(root.path, "--admin-listen", taken) as second:
            code, output, errors = second.finish()
    assert (code, output) == (1, "")
    assert taken in errors
    assert "in use" in errors
    assert "Traceback" not in errors
