"""How far a build is: counters that worker processes keep in files, and bars that show their sum."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol

from retriever_service.echo import printable

_BAR_S = 0.5
"""Between looks at what a bar shows."""


class Progress(Protocol):
    """What a build reports to."""

    def say(self, line: str) -> None:
        """Something the user should know, one line."""

    def stage(self, name: str, total: int, unit: str, done: Callable[[], int]) -> AbstractContextManager[None]:
        """One stage of the build, open while it runs; `done` counts how much of `total` is done."""


class NoProgress:
    """Says nothing."""

    def say(self, line: str) -> None:
        """Drops the line."""

    @contextmanager
    def stage(self, name: str, total: int, unit: str, done: Callable[[], int]) -> Iterator[None]:  # noqa: ARG002
        """Shows nothing."""
        yield


class TerminalProgress:
    """Lines on stderr, and bars there if it is a terminal; else lines where a stage begins, ends, and in between.

    Args:
        every_s: between lines of a stage.
    """

    def __init__(self, every_s: float = 30.0) -> None:
        self._every_s = every_s

    def say(self, line: str) -> None:
        """Prints the line, control characters of names escaped."""
        print(printable(line), file=sys.stderr, flush=True)

    @contextmanager
    def stage(self, name: str, total: int, unit: str, done: Callable[[], int]) -> Iterator[None]:
        """Shows how `done` grows."""
        if not sys.stderr.isatty():
            self.say(f"{name}: {total:,} {unit}")
            started = time.monotonic()

            def told() -> str:
                return f"{done():,} of {total:,} {unit} in {time.monotonic() - started:.1f} s"

            with _called_every(self._every_s, lambda: self.say(f"{name}: {told()}")):
                yield
            self.say(f"{name} done: {told()}")
            return
        from tqdm import tqdm

        with tqdm(total=total, desc=name, unit=f" {unit}", unit_scale=total >= 10_000, file=sys.stderr) as bar:

            def follow() -> None:
                bar.update(done() - bar.n)

            try:
                with _called_every(_BAR_S, follow):
                    yield
            finally:
                follow()


@contextmanager
def _called_every(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Calls `act` again and again, in a thread of its own."""
    finished = threading.Event()

    def repeat() -> None:
        while not finished.wait(seconds):
            act()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


class Counter:
    """A number that one process raises and others read, in a file of 8 bytes that is gone when it is closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb", buffering=0)
        self._count = 0

    def add(self, number: int) -> None:
        """Raises it."""
        self._count += number
        self._file.seek(0)
        self._file.write(self._count.to_bytes(8, "little"))

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


def sum_of_counters(directory: Path, pattern: str) -> int:
    """The sum of the counters whose file names match."""
    total = 0
    for path in directory.glob(pattern):
        with suppress(FileNotFoundError):  # closed meanwhile
            total += int.from_bytes(path.read_bytes()[:8], "little")
    return total
