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
    """The tokens of m entries.

    Attributes:
        next_tokens: int32 [m].
        continuations: int32 [m, N], what follows the next token up to the end of the stored run, `PAD` beyond.
        left_contexts: int32 [m, LEFT_CONTEXT_LENGTH], from the key's own token backwards, `PAD` before the document.
    """

    next_tokens: NDArray[np.int32]
    continuations: NDArray[np.int32]
    left_contexts: NDArray[np.int32]


def entry_tokens(documents: Sequence[Document], continuation_length: int) -> EntryTokens:
    """The entries of some documents, one at least, in order of position, one document after the other."""
    # All at once, with room between them for the longest window; what reaches into it is padding.
    room = max(continuation_length, LEFT_CONTEXT_LENGTH) + 1
    nothing = np.full(room, PAD, np.int32)
    tokens = np.concatenate([nothing, *(part for each in documents for part in (each.tokens, nothing))])
    unstored = np.zeros(room, np.bool_)
    stored = np.concatenate([unstored, *(part for each in documents for part in (each.stored, unstored))])
    next_at = np.flatnonzero(stored)
    # A continuation ends with the answer it is in: what a user writes next is never generated.
    run_ends = np.flatnonzero(stored[:-1] & ~stored[1:])
    left = run_ends[np.searchsorted(run_ends, next_at)] - next_at
    continuations = sliding_window_view(tokens, continuation_length)[next_at + 1]
    short = np.flatnonzero(left < continuation_length)
    continuations[short] = np.where(np.arange(continuation_length) < left[short, None], continuations[short], PAD)
    left_contexts = sliding_window_view(tokens[::-1], LEFT_CONTEXT_LENGTH)[len(tokens) - next_at]
    return EntryTokens(tokens[next_at], continuations, left_contexts)
