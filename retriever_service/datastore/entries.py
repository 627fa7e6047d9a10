"""What a datastore is made of: entries, many at a time. It must not know how they are computed or stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dresd.draft_tree import PAD


@dataclass(frozen=True, slots=True)
class EntryBatch:
    """n entries.

    Attributes:
        keys: float32 [n, dims], L2-normalised (a key of zeros stays zero).
        next_tokens: int64 [n], the token that followed the key's position.
        continuations: int32 [n, N], the tokens after that, `PAD` beyond the document's end.
        left_contexts: int32 [n, C], the key's own token and those before it, most recent first, then `PAD`.

    Raises:
        ValueError: on construction, when shapes or types differ from these.
    """

    keys: NDArray[np.float32]
    next_tokens: NDArray[np.int64]
    continuations: NDArray[np.int32]
    left_contexts: NDArray[np.int32]

    def __post_init__(self) -> None:
        expected = (
            ("keys", self.keys, np.float32, 2),
            ("next_tokens", self.next_tokens, np.int64, 1),
            ("continuations", self.continuations, np.int32, 2),
            ("left_contexts", self.left_contexts, np.int32, 2),
        )
        for name, array, dtype, axes in expected:
            if array.dtype != dtype or array.ndim != axes or len(array) != len(self.keys):
                raise ValueError(
                    f"{name} must be {np.dtype(dtype)} with {axes} axes and {len(self.keys)} rows, "
                    f"not {array.dtype} {array.shape}"
                )

    def __len__(self) -> int:
        return len(self.next_tokens)

    def select(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> EntryBatch:
        """The entries at `rows`, in that order (or where a mask is true)."""
        return EntryBatch(self.keys[rows], self.next_tokens[rows], self.continuations[rows], self.left_contexts[rows])

    @staticmethod
    def concatenate(batches: Sequence[EntryBatch]) -> EntryBatch:
        """One batch after the other; at least one, all of the same widths."""
        return EntryBatch(
            np.concatenate([batch.keys for batch in batches]),
            np.concatenate([batch.next_tokens for batch in batches]),
            np.concatenate([batch.continuations for batch in batches]),
            np.concatenate([batch.left_contexts for batch in batches]),
        )

    def check_values(self, vocab_size: int) -> None:
        """Refuses entries that would poison a datastore.

        Raises:
            ValueError: for tokens outside the vocabulary, tokens after padding, or keys that are not finite or longer
                than 1.
        """
        if len(self) == 0:
            return
        if self.next_tokens.min() < 0 or self.next_tokens.max() >= vocab_size:
            raise ValueError(f"next_tokens must lie in 0..{vocab_size - 1}")
        for name, tokens in (("continuations", self.continuations), ("left_contexts", self.left_contexts)):
            if tokens.min(initial=0) < PAD or tokens.max(initial=0) >= vocab_size:
                raise ValueError(f"{name} must lie in 0..{vocab_size - 1} or be {PAD}")
            if ((tokens[:, :-1] == PAD) & (tokens[:, 1:] != PAD)).any():
                raise ValueError(f"{name} must be padded at the end only")
        lengths = np.linalg.norm(self.keys, axis=1)
        if not np.isfinite(lengths).all():
            raise ValueError("keys must be finite")
        if ((np.abs(lengths - 1.0) > 1e-2) & (lengths > 1e-6)).any():
            raise ValueError("keys must be L2-normalised")
