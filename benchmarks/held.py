"""What processes hold: open files and memory of their own. Knows nothing of what they do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def held_by(processes: Iterable[int]) -> tuple[int, int]:
    """Open files, and bytes of memory that is no file's, of all of them."""
    files = memory = 0
    for process in processes:
        files += len(list(Path(f"/proc/{process}/fd").iterdir()))
        status = Path(f"/proc/{process}/status").read_text()
        memory += 1024 * int(status.split("RssAnon:")[1].split()[0])
    return files, memory
