"""The entries of one segment while it is written: on disk, so that memory does not grow with their number.

Batches come once, in any sizes; afterwards the rows are read in any order by memory map. The files are scratch: they
are gone when the block ends, however it ends. It must not know what order a segment wants, nor of FAISS.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever_service.datastore.entries import EntryBatch
from retriever_service.datastore.files import Array
from retriever_service.datastore.tokens import pack, token_dtype


@dataclass(frozen=True, slots=True)
class EntrySpool:
    """n entries in the order they came.

    Attributes:
        next_tokens: int64 [n], in memory.
        keys: float32 [n, dims], memory-mapped, as those below.
        continuations: uint16 or uint32 [n, N], as stored.
        left_contexts: uint16 or uint32 [n, C], as stored.
    """

    next_tokens: NDArray[np.int64]
    keys: NDArray[np.float32]
    continuations: NDArray[Any]
    left_contexts: NDArray[Any]

    def __len__(self) -> int:
        return len(self.next_tokens)


@contextmanager
def spooled(batches: Iterable[EntryBatch], directory: Path, vocab_size: int) -> Iterator[EntrySpool]:
    """Writes the batches into a hidden folder within `directory` and maps them until the block ends.

    Raises:
        ValueError: for entries that `EntryBatch.check_values` refuses, or batches of different widths.
        OSError: a file cannot be written.
    """
    with tempfile.TemporaryDirectory(dir=directory, prefix=".entries-") as folder:
        yield _spool(batches, Path(folder), vocab_size)


def _spool(batches: Iterable[EntryBatch], folder: Path, vocab_size: int) -> EntrySpool:
    dtype = token_dtype(vocab_size)
    next_tokens: list[NDArray[np.int64]] = []
    widths: tuple[int, ...] | None = None
    paths = [folder / name for name in ("keys", "continuations", "left_contexts")]
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for batch in batches:
            batch.check_values(vocab_size)
            arrays = (batch.keys, pack(batch.continuations, dtype), pack(batch.left_contexts, dtype))
            found = tuple(array.shape[1] for array in arrays)
            if found != (widths or found):
                raise ValueError(f"all entries must have the same widths; these have {found}, those before {widths}")
            widths = found
            next_tokens.append(batch.next_tokens)
            for file, array in zip(files, arrays, strict=True):
                file.write(np.ascontiguousarray(array).data)
    number = sum(map(len, next_tokens))
    types = (np.dtype(np.float32), np.dtype(dtype), np.dtype(dtype))
    shapes = [(number, width) for width in widths or (0, 0, 0)]
    mapped = [_map(path, kind, shape) for path, kind, shape in zip(paths, types, shapes, strict=True)]
    return EntrySpool(np.concatenate([*next_tokens, np.zeros(0, np.int64)]), *mapped)


def _map(path: Path, dtype: np.dtype[Any], shape: tuple[int, int]) -> Array:
    if 0 in shape:  # nothing cannot be mapped
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, mode="r", shape=shape).view(np.ndarray)
