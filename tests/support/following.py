"""A `fetch` that stays, as a process of its own, and its numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.serving import PATIENCE_S


@contextmanager
def following(url: str, root: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Keeps `root` at what is published at the URL until the block ends; gives the process and its metrics port."""
    command = [sys.executable, "-m", "retriever_service.cli", "fetch", url, str(root), "--every", "0.01"]
    process = subprocess.Popen(
        [*command, "--metrics-listen", "127.0.0.1:0", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline().rpartition(" ")[2])
    finally:
        process.kill()
        process.communicate()


def numbers_at(port: int) -> dict[str, float]:
    """What a metrics port of this machine shows, by name with labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}
