"""Memory of a process and of those below it, by /proc."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_WATCH_S = 0.2


class Memory:
    """Most bytes while a block runs.

    Attributes:
        own: of this process, without what it maps from files.
        together: of it and all below it; shared pages count once.
    """

    def __init__(self) -> None:
        self.own = self.together = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        me = os.getpid()
        while not self._ended.wait(_WATCH_S):
            below = [me, *(process for process, _ in processes_below(me))]
            self.own = max(self.own, _bytes(me, "status", "RssAnon"))
            self.together = max(self.together, sum(_bytes(process, "smaps_rollup", "Pss") for process in below))


def processes_below(parent: int) -> Iterator[tuple[int, str]]:
    """The processes that a process started, and those they started: (number, title)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    left = [parent]
    while left:
        for process in children.get(left.pop(), []):
            left.append(process)
            with suppress(OSError):
                title = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield process, title.strip()


def _bytes(process: int, file: str, field: str) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{process}/{file}").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return 0
