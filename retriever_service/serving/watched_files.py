"""Files that are read again when they change, so that secrets and certificates rotate without a restart.

Knows when a file has changed and what of it must never be shown: its content. What it means is the parser's business.
"""

from __future__ import annotations

import hashlib
import logging
import stat
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from retriever_service.echo import echoed
from retriever_service.serving.errors import ServeError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_BYTES = 1 << 20
_SETTLED_NS = 2_000_000_000
"""A file that changed less than this before it was read may change again with the same time stamp."""

_Stamp = tuple[tuple[int, int, int, int], ...]


class WatchedFiles(Generic[T]):
    """What some files together say. Asked from any thread.

    A change that cannot be read, or makes no sense, is logged once and what was said before stays: a file half
    written, or a wrong one, must not lock everybody out.

    Args:
        what: of the files, for messages, such as "the TLS files".
        paths: read in this order; symbolic links are followed, as Kubernetes swaps them.
        parse: makes of their contents what they say; its ServeError must not show any of it.

    Raises:
        ServeError: a file cannot be read, may be written by everybody, or makes no sense.
    """

    def __init__(self, what: str, paths: Sequence[Path], parse: Callable[[Sequence[bytes]], T]) -> None:
        self._what = what
        self._paths = tuple(paths)
        self._parse = parse
        self._lock = threading.Lock()
        self._stamp, contents = self._read()
        self._latest = parse(contents)
        self._digest = _digest_of(contents)
        self._problem = ""

    def latest(self) -> T:
        """What the files say now, or said when they last made sense; the same object until they change."""
        with self._lock:
            if not self._is_unchanged():
                self._read_again()
            return self._latest

    def _is_unchanged(self) -> bool:
        try:
            return self._stamp is not None and self._stamp == _stamp_of(self._paths)
        except OSError:
            return False

    def _read_again(self) -> None:
        try:
            self._stamp, contents = self._read()
            digest = _digest_of(contents)
            if digest == self._digest and not self._problem:
                return
            latest = self._parse(contents)
        except ServeError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                logger.error("%s changed and cannot be used, what they said before stays: %s", self._what, error)  # noqa: TRY400 - the sentence says it all
            return
        self._latest, self._digest, self._problem = latest, digest, ""
        logger.info("%s were read again", self._what)

    def _read(self) -> tuple[_Stamp | None, list[bytes]]:
        """The contents, and the stamp by which a change will be seen; None if they are too fresh for that."""
        try:
            stamp = _stamp_of(self._paths)
            contents = [_content_of(path) for path in self._paths]
        except OSError as error:
            raise ServeError(
                f"cannot read {echoed(error.filename)}: {error.strerror}; is the path right, and may this user read it?"
            ) from error
        newest_ns = max(changed_ns for changed_ns, *_ in stamp)
        return (stamp if time.time_ns() - newest_ns > _SETTLED_NS else None), contents


def _stamp_of(paths: Sequence[Path]) -> _Stamp:
    states = [path.stat() for path in paths]
    return tuple((state.st_ctime_ns, state.st_size, state.st_ino, state.st_dev) for state in states)


def _digest_of(contents: Sequence[bytes]) -> list[bytes]:
    return [hashlib.sha256(content).digest() for content in contents]


def _content_of(path: Path) -> bytes:
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise ServeError(f"{echoed(path)} is not a file; give the path of one")
    if mode & stat.S_IWOTH:
        raise ServeError(f"every user may write {echoed(path)}; take that right away with: chmod o-w FILE")
    with path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ServeError(f"{echoed(path)} has more than {_MAX_BYTES:,} bytes; is it the right file?")
    return content


def warn_if_readable_by_all(path: Path) -> None:
    """For secrets. Only a warning, because a container's mounted secrets are readable by all unless told otherwise."""
    if path.stat().st_mode & stat.S_IROTH:
        logger.warning("every user may read the secret in %s; chmod 600 keeps it yours", echoed(path))
