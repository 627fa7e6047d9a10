"""A file that a user named for a command's results: replaced as a whole, and nothing but a file ever replaced.

Knows texts and paths; not what is in them.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_output(path: Path, text: str) -> None:
    """Writes UTF-8 beside the file and renames, so that there is all of it or what was there before.

    A device or a pipe is written to, and a symbolic link stays one: the file that it leads to is replaced.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    place = Path(os.path.realpath(path))
    beside = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)
