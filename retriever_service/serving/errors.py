"""What keeps a server from starting. Knows nothing of what it was told to do."""

from __future__ import annotations


class ServeError(Exception):
    """A server that cannot start, in one sentence with what to do about it."""
