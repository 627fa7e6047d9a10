"""What builds are tested with: a small corpus, the command line as a process, and workers that fail in every way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from retriever_service.building.errors import BuildError
from retriever_service.building.workspace import open_workspace
from tests.support.commands import retriever_command

QUESTIONS = [
    ("How do I reverse a list?", "Call reverse() on the list."),
    ("How do I sort a list?", "Call sort() on the list."),
    ("How do I copy a list?", "Call copy() on the list."),
    ("How do I empty a list?", "Call clear() on the list."),
]


def write_corpus(path: Path, *, times: int = 1) -> Path:
    """A .jsonl of prompts and answers, from the second time on numbered so that no two are equal."""
    lines = [
        json.dumps({"prompt": prompt, "response": answer + (f" ({number})" if number else "")})
        for number in range(times)
        for prompt, answer in QUESTIONS
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def start_retriever(
    *arguments: str | Path, cwd: Path | None = None, ray_folder: Path | None = None
) -> subprocess.Popen[str]:
    """`dresd-retriever` as a process of its own, output captured, that can be interrupted.

    Ray keeps its sockets under `ray_folder`, whose name must be short; None leaves it Ray's usual one.
    """
    return subprocess.Popen(
        retriever_command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=os.environ if ray_folder is None else {**os.environ, "RAY_TMPDIR": str(ray_folder)},
    )


def ended_within(process: subprocess.Popen[str], seconds: float) -> bool:
    """Waits for a process at most so long."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def open_and_tell(out: str) -> None:
    """Opens a workspace for `out` and prints with what sentence it is refused."""
    try:
        with open_workspace(Path(out)):
            print("opened")
    except BuildError as error:
        print(error)


FINE, FULL_DISK, BUG, KILLED, KILLED_ONCE, IN_COMPANY = range(6)
FAILING_WORKER = "tests.support.building:FailingWorker"


class FailingWorker:
    """A `BlockWorker` that does what its block says."""

    def __init__(self, *, broken: bool = False, marks: Path | None = None, threads: int) -> None:
        self.threads = threads
        self.marks = marks
        if broken:
            raise BuildError("The worker cannot be made. Make another.")

    def __call__(self, block: int) -> int:
        """One, or a failure."""
        kind = block % 10
        if kind == FULL_DISK:
            raise OSError(28, "No space left on device", "some/file")
        if kind == BUG:
            raise ZeroDivisionError("division by nothing")
        if kind == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == KILLED_ONCE and self.marks is not None and not (self.marks / str(block)).exists():
            (self.marks / str(block)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == IN_COMPANY and self.marks is not None:
            (self.marks / str(os.getpid())).touch()
            from tests.support.serving import eventually

            marks = self.marks
            eventually(lambda: len(list(marks.iterdir())) >= 2)  # another worker has a block, too
        return 1
