"""Documents on disk between the stages of a build: appended once, then read by many processes by number.

Three flat files (tokens, marks, offsets): reading one document touches its own bytes only.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from retriever_service.building.document import Document

_CHUNK = 1 << 22


class DocumentWriter:
    """Appends documents to a new folder; the folder is readable once the writer is closed."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        self._tokens: BinaryIO = (directory / "tokens.bin").open("wb")
        self._stored: BinaryIO = (directory / "stored.bin").open("wb")
        self._lengths: list[int] = []
        self._entries: list[int] = []

    def add(self, document: Document) -> None:
        """Appends one document; its number is the count of those before it."""
        self._tokens.write(document.tokens.astype("<i4").tobytes())
        self._stored.write(document.stored.astype(np.uint8).tobytes())
        self._lengths.append(len(document.tokens))
        self._entries.append(int(document.stored.sum()))

    def __enter__(self) -> DocumentWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._tokens, self._stored:
            pass
        if kind is None:
            np.save(self._directory / "lengths.npy", np.array(self._lengths, np.int64))
            np.save(self._directory / "entries.npy", np.array(self._entries, np.int64))


class DocumentSpool:
    """Reads what a `DocumentWriter` wrote.

    Attributes:
        lengths: int64 [documents], tokens of each.
        entries: int64 [documents], stored tokens of each.
    """

    def __init__(self, directory: Path) -> None:
        self.lengths: NDArray[np.int64] = np.load(directory / "lengths.npy", allow_pickle=False)
        self.entries: NDArray[np.int64] = np.load(directory / "entries.npy", allow_pickle=False)
        self._offsets = np.concatenate([[0], np.cumsum(self.lengths)])
        self._tokens = _map(directory / "tokens.bin", np.dtype("<i4"), int(self._offsets[-1]))
        self._stored = _map(directory / "stored.bin", np.dtype(np.bool_), int(self._offsets[-1]))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> Document:
        begin, end = self._offsets[number], self._offsets[number + 1]
        return Document(np.array(self._tokens[begin:end], np.int32), np.array(self._stored[begin:end]))

    def token_counts(self, vocab_size: int) -> NDArray[np.int64]:
        """int64 [vocab_size]: how often each token is stored."""
        counts = np.zeros(vocab_size, np.int64)
        for begin in range(0, len(self._tokens), _CHUNK):
            chunk = slice(begin, begin + _CHUNK)
            counts += np.bincount(self._tokens[chunk][self._stored[chunk]], minlength=vocab_size)
        return counts


def _map(path: Path, dtype: np.dtype, count: int) -> NDArray:  # type: ignore[type-arg]
    return np.memmap(path, dtype, "r", shape=(count,)) if count else np.zeros(0, dtype)
