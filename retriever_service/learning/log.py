"""A log of records: appended, synced and read back; what a crash tore off is found and cut.

A file is a head and frames: length (uint32), CRC-32C of the length and the record (uint32), the record. Little-endian.
Whatever the machine or a disk does, a record comes out as it was put in, or not at all. Knows bytes; not what a record
means, but for the four bytes that each begins with.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retriever_service.datastore.files import replacing, sync_directory
from retriever_service.echo import echoed
from retriever_service.learning.crc32c import crc32c
from retriever_service.learning.errors import LearningError

HEAD = b"DRESDLOG\x01\x00\x00\x00\x00\x00\x00\x00"
MAX_RECORD = 1 << 26
_FRAME = struct.Struct("<II")
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class LogContent:
    """What a log holds.

    Attributes:
        records: in order.
        end: bytes up to the last of them; what is behind is torn.
        torn: bytes behind.
        damaged: bytes between records that belong to none: the disk's doing, no crash's.
    """

    records: list[bytes]
    end: int
    torn: int
    damaged: int


def create_log(path: Path) -> None:
    """An empty log, which is there wholly or not at all; raises OSError."""
    with replacing(path) as beside:
        beside.write_bytes(HEAD)
    sync_directory(path.parent)


def read_log(path: Path, magic: bytes) -> LogContent:
    """Reads a log whose records begin with `magic` (4 bytes).

    Raises:
        LearningError: it is no log, or cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LearningError(f"{echoed(path)} cannot be read: {error.strerror}.", "Is it yours to read?") from error
    if content[: len(HEAD)] != HEAD:
        raise LearningError(f"{echoed(path)} is no log of this version.", "Move it away; nothing was changed.")
    records: list[bytes] = []
    at = end = len(HEAD)
    damaged = 0
    while at < len(content):
        record = _record_at(content, at, magic)
        if record is None:
            # Of two frames side by side the second may be whole: then this is no crash's doing.
            begin = content.find(magic, at + _FRAME.size + 1)
            at = len(content) if begin < 0 else begin - _FRAME.size
            continue
        damaged += at - end
        records.append(record)
        at = end = at + _FRAME.size + len(record)
    return LogContent(records, end, len(content) - end, damaged)


def _record_at(content: bytes, at: int, magic: bytes) -> bytes | None:
    if len(content) - at < _FRAME.size + len(magic):
        return None
    length, checksum = _FRAME.unpack_from(content, at)
    begin = at + _FRAME.size
    if not len(magic) <= length <= min(MAX_RECORD, len(content) - begin):
        return None
    record = content[begin : begin + length]
    if record[: len(magic)] != magic or crc32c(content[at : at + _LENGTH.size] + record) != checksum:
        return None
    return record


class LogWriter:
    """Appends to a log that `read_log` has read. For one thread at a time.

    Args:
        path: of it.
        end: bytes that are kept; what is behind them is cut.

    Raises:
        OSError: it cannot be opened or cut.
    """

    def __init__(self, path: Path, end: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._end = end
        self._is_clean = False
        self._make_clean()

    @property
    def size(self) -> int:
        """Bytes that are on the disk."""
        return self._end

    def append(self, records: Sequence[bytes]) -> None:
        """Returns when all records are on the disk; else none of them is, now or after a crash.

        Args:
            records: each begins with the log's magic and has at most `MAX_RECORD` bytes.

        Raises:
            OSError: the disk is full, or fails.
        """
        if not self._is_clean:
            self._make_clean()
        frames = []
        for record in records:
            length = _LENGTH.pack(len(record))
            frames += [length, _LENGTH.pack(crc32c(length + record)), record]
        content = memoryview(b"".join(frames))
        self._is_clean = False
        try:
            written = 0
            while written < len(content):
                written += os.pwrite(self._file, content[written:], self._end + written)
            os.fdatasync(self._file)
        except OSError:
            self._make_clean()
            raise
        self._is_clean = True
        self._end += len(content)

    def _make_clean(self) -> None:
        """Nothing is behind the end, on the disk neither: what failed to be acknowledged must not come back."""
        os.ftruncate(self._file, self._end)
        os.fsync(self._file)
        self._is_clean = True

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)
