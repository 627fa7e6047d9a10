"""Where this side keeps what it would otherwise compute or build again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$DRESD_CACHE`, or `dresd` in the user's cache folder.

    Raises:
        FileNotFoundError: neither is set, and the user has no home, as in some containers.
    """
    chosen, users = os.environ.get("DRESD_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if chosen:
        return Path(chosen)
    try:
        return Path(users or Path.home() / ".cache") / "dresd"
    except RuntimeError as error:
        raise FileNotFoundError("The user has no home folder. Name a cache folder in DRESD_CACHE.") from error
