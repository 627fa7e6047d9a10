"""Documents on disk between the stages of a build: shards written once, then read by many processes by number.

A shard's sections: what is told of it (JSON), the sizes of its documents, their tokens, and their texts if any. The
number of a document counts those of the shards before it, duplicates included.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever_service.building import blocks
from retriever_service.building.document import Document

_ABOUT, _SIZES, _TOKENS, _TEXTS = range(4)
_HASH_BYTES = 16
_SHARDS_HELD = 16


@dataclass(slots=True)
class ShardWriter:
    """Collects the documents of one shard in memory, then commits it.

    Attributes:
        tokens: in all documents so far.
    """

    tokens: int = 0
    _documents: list[Document] = field(default_factory=list)
    _hashes: list[bytes] = field(default_factory=list)
    _texts: list[str] = field(default_factory=list)

    def add(self, document: Document, *, identity: bytes, text: str = "") -> None:
        """Appends a document; one with the identity of an earlier one is a duplicate."""
        self._documents.append(document)
        self._hashes.append(identity)
        self._texts.append(text)
        self.tokens += len(document.tokens)

    def commit(self, path: Path, about: Mapping[str, object]) -> None:
        """Writes the shard, with what is to be told of it; raises OSError."""
        empty = Document(np.zeros(0, np.int32), np.zeros(0, np.bool_))
        whole = [*self._documents, empty]
        sizes: dict[str, NDArray[Any]] = {
            "lengths": np.array([len(document.tokens) for document in self._documents], np.int64),
            "entries": np.array([int(document.stored.sum()) for document in self._documents], np.int64),
            "hashes": np.frombuffer(b"".join(self._hashes), np.uint8).reshape(-1, _HASH_BYTES),
        }
        tokens: dict[str, NDArray[Any]] = {
            "tokens": np.concatenate([document.tokens for document in whole]),
            "stored": np.concatenate([document.stored for document in whole]).astype(np.uint8),
        }
        texts = json.dumps(self._texts).encode() if any(self._texts) else b""
        blocks.commit(path, json.dumps(about).encode(), blocks.pack(sizes), blocks.pack(tokens), texts)


def content_hash(document: Document) -> bytes:
    """The identity of a document: its tokens, and which of them are stored."""
    stored = document.stored.tobytes()
    return hashlib.sha256(document.tokens.astype("<i4").tobytes() + stored).digest()[:_HASH_BYTES]


def about_shard(path: Path) -> dict[str, Any]:
    """What was told of a shard when it was committed."""
    told: dict[str, Any] = json.loads(blocks.load(path, _ABOUT))
    return told


@dataclass(frozen=True, slots=True)
class ShardSizes:
    """Of a shard's n documents: int64 [n] tokens and stored tokens, uint8 [n, 16] identities."""

    lengths: NDArray[np.int64]
    entries: NDArray[np.int64]
    hashes: NDArray[np.uint8]

    @classmethod
    def load(cls, path: Path) -> ShardSizes:
        """Reads them without the documents."""
        return cls(**blocks.unpack(blocks.load(path, _SIZES)))


@dataclass(frozen=True, slots=True)
class Shard:
    """The documents of one shard in memory."""

    tokens: NDArray[np.int32]
    stored: NDArray[np.bool_]
    ends: NDArray[np.int64]
    texts: Sequence[str]

    @classmethod
    def load(cls, path: Path) -> Shard:
        """Reads a shard; raises DamagedBlockError."""
        arrays = blocks.unpack(blocks.load(path, _TOKENS))
        texts = blocks.load(path, _TEXTS)
        return cls(
            arrays["tokens"],
            arrays["stored"].astype(np.bool_),
            np.cumsum(ShardSizes.load(path).lengths),
            json.loads(texts) if texts else [],
        )

    def document(self, number: int) -> Document:
        """One of them, counted from 0 in this shard."""
        part = slice(int(self.ends[number - 1]) if number else 0, int(self.ends[number]))
        return Document(self.tokens[part], self.stored[part])

    def rows_of(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool [tokens]: those of the documents `numbers`."""
        wanted = np.zeros(len(self.ends), np.bool_)
        wanted[numbers] = True
        return np.repeat(wanted, np.diff(self.ends, prepend=0))


class Documents:
    """Reads documents by number; holds a few shards in memory."""

    def __init__(self, shards: Sequence[Path], offsets: NDArray[np.int64]) -> None:
        """Args:
        shards: in order.
        offsets: int64 [shards + 1], the number of each shard's first document.
        """
        self._paths = shards
        self._offsets = offsets
        self._held: OrderedDict[int, Shard] = OrderedDict()

    def __getitem__(self, number: int) -> Document:
        shard, place = self._find(number)
        return shard.document(place)

    def text(self, number: int) -> str:
        """What was given as a document's text."""
        shard, place = self._find(number)
        return shard.texts[place]

    def _find(self, number: int) -> tuple[Shard, int]:
        at = int(np.searchsorted(self._offsets, number, side="right")) - 1
        if at not in self._held:
            if len(self._held) >= _SHARDS_HELD:
                self._held.popitem(last=False)
            self._held[at] = Shard.load(self._paths[at])
        self._held.move_to_end(at)
        return self._held[at], number - int(self._offsets[at])
