"""What is stored around each key: next token, continuation and left context, cut from a document's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from dresd.draft_tree import PAD
from retriever_service.building.document import Document

LEFT_CONTEXT_LENGTH = 16
"""Tokens kept with an entry up to its key's own."""


@dataclass(frozen=True, slots=True)
class EntryTokens:
    """The tokens of a document's m entries.

    Attributes:
        next_tokens: int64 [m].
        continuations: int32 [m, N], what follows the next token up to the end of the stored run, `PAD` beyond.
        left_contexts: int32 [m, LEFT_CONTEXT_LENGTH], from the key's own token backwards, `PAD` before the document.
    """

    next_tokens: NDArray[np.int64]
    continuations: NDArray[np.int32]
    left_contexts: NDArray[np.int32]

    @staticmethod
    def concatenate(parts: Sequence[EntryTokens]) -> EntryTokens:
        """One document after the other."""
        return EntryTokens(
            np.concatenate([part.next_tokens for part in parts]),
            np.concatenate([part.continuations for part in parts]),
            np.concatenate([part.left_contexts for part in parts]),
        )


def entry_tokens(document: Document, continuation_length: int) -> EntryTokens:
    """The entries of one document, in order of position."""
    tokens, stored = document.tokens, document.stored
    next_at = np.flatnonzero(stored)
    # A continuation ends with the answer it is in: what a user writes next is never generated.
    run_ends = np.flatnonzero(stored & ~np.append(stored[1:], False))
    ends = run_ends[np.searchsorted(run_ends, next_at)]
    ahead = np.append(tokens, np.full(continuation_length + 1, PAD, np.int32))
    continuations = sliding_window_view(ahead, continuation_length)[next_at + 1].copy()
    continuations[next_at[:, None] + 1 + np.arange(continuation_length) > ends[:, None]] = PAD
    behind = np.append(np.full(LEFT_CONTEXT_LENGTH - 1, PAD, np.int32), tokens)
    left_contexts = sliding_window_view(behind, LEFT_CONTEXT_LENGTH)[next_at - 1][:, ::-1].copy()
    return EntryTokens(tokens[next_at].astype(np.int64), continuations, left_contexts)
