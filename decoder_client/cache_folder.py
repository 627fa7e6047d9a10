"""Where this side keeps what it would otherwise compute or build again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$DRESD_CACHE`, or `dresd` in the user's cache folder."""
    user_cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("DRESD_CACHE") or Path(user_cache) / "dresd")
