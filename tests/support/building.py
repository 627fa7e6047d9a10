"""What builds are tested with: a small corpus, the command line as a process, and workers that fail in every way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from retriever_service.building.errors import BuildError

QUESTIONS = [
    ("How do I reverse a list?", "Call reverse() on the list."),
    ("How do I sort a list?", "Call sort() on the list."),
    ("How do I copy a list?", "Call copy() on the list."),
    ("How do I empty a list?", "Call clear() on the list."),
]


def write_corpus(path: Path, *, times: int = 1) -> Path:
    """A .jsonl of prompts and answers."""
    lines = [json.dumps({"prompt": prompt, "response": answer}) for prompt, answer in QUESTIONS * times]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def retriever_command(*arguments: str | Path) -> list[str]:
    """The command line of `dresd-retriever` in this interpreter."""
    return [sys.executable, "-m", "retriever_service.cli", *map(str, arguments)]


def start_retriever(*arguments: str | Path, cwd: Path | None = None) -> subprocess.Popen[str]:
    """`dresd-retriever` as a process of its own, output captured, that can be interrupted."""
    # A shell that starts the tests in the background makes them, and so their children, ignore interrupts.
    return subprocess.Popen(
        retriever_command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


class FailingWorker:
    """A `BlockWorker` that does what its block says."""

    def __init__(self, *, broken: bool = False, threads: int) -> None:
        self.threads = threads
        if broken:
            raise BuildError("The worker cannot be made. Make another.")

    def __call__(self, block: str) -> int:
        """One, or a failure."""
        if block == "full disk":
            raise OSError(28, "No space left on device", "some/file")
        if block == "bug":
            raise ZeroDivisionError("division by nothing")
        if block == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return 1
