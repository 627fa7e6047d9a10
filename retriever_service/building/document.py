"""A document: the token ids the target reads from its first position on, and which of them are stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Document:
    """One sequence the target reads from its first position.

    Attributes:
        tokens: int32 [n].
        stored: bool [n]: token i is the next token of an entry; never true at 0, which nothing precedes.
    """

    tokens: NDArray[np.int32]
    stored: NDArray[np.bool_]

    @classmethod
    def of(cls, prompt: Sequence[int], answer: Sequence[int], *, prompt_keys: bool = False) -> Document:
        """A prompt and its answer; the answer is stored, and the prompt if `prompt_keys`."""
        tokens = np.array([*prompt, *answer], np.int32)
        stored = np.ones(len(tokens), np.bool_)
        stored[: 1 if prompt_keys else max(len(prompt), 1)] = False
        return cls(tokens, stored)

    def windows(self, length: int) -> Iterator[Document]:
        """The document itself if it has at most `length` tokens; else overlapping windows of that length.

        Every stored token is stored in exactly one window. The overlap, an eighth (or a token), gives the entries
        after a cut some context.
        """
        overlap = max(length // 8, 1)
        start = 0
        while True:
            stored = self.stored[start : start + length]
            if start:
                stored = stored.copy()
                stored[:overlap] = False
            yield Document(self.tokens[start : start + length], stored)
            if start + length >= len(self.tokens):
                return
            start += length - overlap
