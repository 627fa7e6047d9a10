"""Builds that are stopped at a given place, and what two datastores have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from retriever_service.building.progress import NoProgress
from retriever_service.datastore import MANIFEST_FILE

_OF_ONE_BUILD = {"created", "command", "checksum"}


def contents(datastore: Path) -> dict[str, object]:
    """Every file of a datastore by name, its manifest without when and how it was made."""
    found: dict[str, object] = {
        str(path.relative_to(datastore)): path.read_bytes() for path in datastore.rglob("*") if path.is_file()
    }
    manifest = json.loads((datastore / MANIFEST_FILE).read_bytes())
    found[MANIFEST_FILE] = {name: value for name, value in manifest.items() if name not in _OF_ONE_BUILD}
    return found


class StoppingProgress(NoProgress):
    """Remembers what was said, and stops the build before or behind a stage (or does something else behind it)."""

    def __init__(self, *, before: str = "", behind: str = "", instead: Callable[[], object] | None = None) -> None:
        self.before = before
        self.behind = behind
        self.instead = instead
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    @contextmanager
    def stage(self, name: str, total: int, unit: str, done: Callable[[], int]) -> Iterator[None]:  # noqa: ARG002
        if name == self.before:
            raise KeyboardInterrupt
        yield
        if name == self.behind:
            if self.instead is None:
                raise KeyboardInterrupt
            self.instead()


def flip_a_byte(path: Path) -> None:
    """One in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
