"""The one exception of a datastore's readers. It must not know who shows it, or how."""

from __future__ import annotations


class DatastoreError(Exception):
    """Something is wrong with a datastore's folder.

    Attributes:
        message: one sentence that names the file or folder at fault.
        hint: what to do about it, one sentence; "" when there is nothing to say.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()
