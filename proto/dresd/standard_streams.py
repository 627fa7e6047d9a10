"""Standard output and errors of a command: whatever becomes of them, printing never ends in a traceback.

Output that cannot be written (a full disk, a reader that left) is an `OutputError`; errors that cannot be written are
dropped. Characters the terminal's encoding lacks are printed as JSON escapes. Knows no commands.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_ESCAPE = "dresd.escape"


class OutputError(Exception):
    """Standard output takes no more; its cause is the `OSError`."""


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Guards `sys.stdout` and `sys.stderr`; opens those that the process was started without.

    Raises:
        OutputError: where something is printed, or here in the end, for what was not printed before.
    """
    _open_missing()
    with _in_place_of("stderr", _Errors), _in_place_of("stdout", _Output):
        yield


def drop_output() -> None:
    """Sends all further output nowhere: what is still in a buffer would only fail again when the process ends."""
    _redirect_to_nowhere(sys.stdout)


class _Guarded(io.TextIOWrapper):
    """Writes to another stream's buffer, which it does not close."""

    def close(self) -> None:
        self.flush()


class _Output(_Guarded):
    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise OutputError from error

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise OutputError from error


class _Errors(_Guarded):
    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            _redirect_to_nowhere(self)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            _redirect_to_nowhere(self)


@contextmanager
def _in_place_of(name: str, kind: type[_Guarded]) -> Iterator[None]:
    stream = getattr(sys, name)
    if not isinstance(stream, io.TextIOWrapper):
        yield  # somebody else's object, not a terminal, file or pipe
        return
    guarded = kind(
        stream.buffer,
        encoding=stream.encoding,
        errors=_ESCAPE,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    setattr(sys, name, guarded)
    try:
        yield
        guarded.flush()
    finally:
        setattr(sys, name, stream)


def _open_missing() -> None:
    # A closed descriptor would be taken by the next file that is opened, and what is printed would end up in there.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - for good


def _redirect_to_nowhere(stream: object) -> None:
    with suppress(OSError, AttributeError):  # not every stream has a descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[attr-defined]
        os.close(nowhere)


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(_ESCAPE, _escape)
