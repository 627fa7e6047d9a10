"""One finished answer as it is kept: its tokens and the keys of some of its positions.

Everything else that an entry has follows from these, for any width of continuation. Knows arrays and bytes; not where
they lie, nor who made them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dresd.draft_tree import PAD
from retriever_service.datastore import EntryBatch

MAGIC = b"ANS1"
ID_BYTES = 16
MAX_TOKENS = 1 << 16
_HEAD = struct.Struct("<4s16sQIII")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, or of an answer that several servers share the part of one.

    Attributes:
        id: 16 bytes that no other answer has; the same however often it is sent.
        created_us: microseconds since 1970.
        tokens: int32 [t], t at least 2, as they stood in the text.
        positions: int64 [m], ascending, in 0..t-2: those whose keys are here.
        keys: float16 [m, dims], of length 1; the key at a position predicted the token after it.

    Raises:
        ValueError: on construction, when the arrays do not fit together.
    """

    id: bytes
    created_us: int
    tokens: NDArray[np.int32]
    positions: NDArray[np.int64]
    keys: NDArray[np.float16]

    def __post_init__(self) -> None:
        if len(self.id) != ID_BYTES:
            raise ValueError(f"id must have {ID_BYTES} bytes, not {len(self.id)}")
        if not 2 <= len(self.tokens) <= MAX_TOKENS or self.tokens.min() < 0:
            raise ValueError(f"tokens must be 2 to {MAX_TOKENS}, none below 0")
        places = self.positions
        if len(places) and (places[0] < 0 or places[-1] > len(self.tokens) - 2 or (np.diff(places) <= 0).any()):
            raise ValueError("positions must ascend and lie before the last token")
        if self.keys.ndim != 2 or len(self.keys) != len(places):
            raise ValueError("there must be a key for each position")

    @property
    def next_tokens(self) -> NDArray[np.int64]:
        """int64 [m]: the token after each position."""
        return self.tokens[self.positions + 1].astype(np.int64)

    def select(self, wanted: NDArray[np.bool_]) -> Answer:
        """The part of it that has these of its keys; bool [m]."""
        return Answer(self.id, self.created_us, self.tokens, self.positions[wanted], self.keys[wanted])

    def entries(self, continuation_length: int, left_context_length: int) -> EntryBatch:
        """One a position."""
        count, width = len(self.tokens), max(continuation_length, left_context_length)
        padded = np.full(count + 2 * width + 2, PAD, np.int32)
        padded[width : width + count] = self.tokens
        at = self.positions[:, None] + width
        return EntryBatch(
            self.keys.astype(np.float32),
            self.next_tokens,
            padded[at + 2 + np.arange(continuation_length)],
            padded[at - np.arange(left_context_length)],
        )

    def encoded(self) -> bytes:
        """As stored; `decoded` reads it back."""
        sizes = len(self.tokens), len(self.positions), self.keys.shape[1]
        arrays = self.tokens.astype("<i4"), self.positions.astype("<u4"), self.keys.astype("<f2")
        return _HEAD.pack(MAGIC, self.id, self.created_us, *sizes) + b"".join(array.tobytes() for array in arrays)

    @staticmethod
    def decoded(content: bytes) -> Answer:
        """What was stored.

        Raises:
            ValueError: it is not an answer.
        """
        if len(content) < _HEAD.size:
            raise ValueError("shorter than an answer's head")
        magic, identifier, created_us, count, places, dims = _HEAD.unpack_from(content)
        if magic != MAGIC or len(content) != _HEAD.size + 4 * count + 4 * places + 2 * places * dims:
            raise ValueError("not as long as an answer of its head")
        tokens = np.frombuffer(content, "<i4", count, _HEAD.size)
        positions = np.frombuffer(content, "<u4", places, _HEAD.size + 4 * count)
        keys = np.frombuffer(content, "<f2", places * dims, _HEAD.size + 4 * (count + places))
        return Answer(
            identifier,
            created_us,
            tokens.astype(np.int32),
            positions.astype(np.int64),
            keys.astype(np.float16).reshape(places, dims),
        )
