"""Workers that cannot be started for a while are started later, whatever goes on meanwhile."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.serving import PATIENCE_S

# In a process of its own, because a supervisor forks and takes over signals.
PROGRAM = """
import os, signal, sys
from retriever_service.serving.crew import READY, frame
from retriever_service.serving.supervisor import Supervisor

refused = set(map(int, sys.argv[1].split(",")))
forks = 0

def fork():
    global forks
    forks += 1
    if forks in refused:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return os.fork()

def work(number, supervisor):
    supervisor.sendall(frame({"kind": READY}))
    signal.pause()

sys.exit(Supervisor(2, work, 1.0, lambda: print("ready", flush=True), fork).run())
"""


@pytest.mark.parametrize("refused", ["1", "1,2,3"])
def test_a_system_that_has_no_process_to_give_is_asked_again(refused: str) -> None:
    command = [sys.executable, "-c", PROGRAM, refused]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
