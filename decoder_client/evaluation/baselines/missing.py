"""A method that needs what is not installed. Knows nothing of the methods."""

from __future__ import annotations

from decoder_client.errors import DecoderError


class MissingPackageError(DecoderError):
    """A method's package is not installed: one sentence that says how to get it."""

    def __init__(self, method: str, command: str) -> None:
        super().__init__(f"Method {method} needs a package that is not installed. Run: {command}")
