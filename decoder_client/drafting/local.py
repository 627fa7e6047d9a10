"""Drafts from the text itself: what followed the newest token wherever it stood before in this sequence.

Places are found by hash maps of runs that grow with the text; the text is never scanned again. A place is weighed by
how many tokens before it match (prompt lookup, Saxena 2023) and, where keys are known, by how alike the target's
states are there (dense retrieval in the sequence's own states). Knows one sequence's tokens and keys, no service.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dresd.draft_tree import PAD

_RUNS = (8, 4, 2, 1)
"""Lengths of the runs that are indexed; the exact match is measured afterwards."""

MAX_MATCH = 16
"""Tokens before a place that are compared."""


@dataclass(frozen=True, slots=True)
class LocalPlaces:
    """Earlier places of the newest token and what followed there.

    Attributes:
        paths: int32 [m, depth], `PAD` from the end on.
        matches: int64 [m], tokens before the place that equal those before the newest token, at most `MAX_MATCH`.
        ages: int64 [m], tokens since.
        similarities: float32 [m], cosines of the keys, or None where keys are unknown.
    """

    paths: NDArray[np.int32]
    matches: NDArray[np.int64]
    ages: NDArray[np.int64]
    similarities: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class FinishedText:
    """An answer with the end of its prompt, and the keys of the answer's tokens.

    Attributes:
        tokens: int32 [t].
        answer_begin: where the answer begins.
        positions: int64 [m], ascending: those whose keys are known, each of which predicted a token of the answer.
        keys: float32 [m, dims].
    """

    tokens: NDArray[np.int32]
    answer_begin: int
    positions: NDArray[np.int64]
    keys: NDArray[np.float32]

    def without_prompt(self) -> FinishedText:
        """The answer alone: without the key at the prompt's last token, too."""
        mine = self.positions >= self.answer_begin
        begin = self.answer_begin
        return FinishedText(self.tokens[begin:], 0, self.positions[mine] - begin, self.keys[mine])

    def cut(self, length: int) -> FinishedText:
        """With the first `length` tokens of the answer."""
        end = self.answer_begin + length
        mine = self.positions < end - 1
        return FinishedText(self.tokens[:end], self.answer_begin, self.positions[mine], self.keys[mine])


class LocalIndex:
    """The places of one sequence's runs of tokens, and its keys."""

    def __init__(self) -> None:
        self._text = np.full(1024, PAD, np.int32)
        self._length = 0
        self._keys: NDArray[np.float32] | None = None
        # ends[i][run of _RUNS[i] tokens] -> positions of its last token, ascending.
        self._ends: tuple[dict[tuple[int, ...], list[int]], ...] = tuple({} for _ in _RUNS)

    def extend(self, tokens: Sequence[int], keys: NDArray[np.float32] | None) -> None:
        """Adds the text's next tokens.

        Args:
            tokens: to add.
            keys: float32 [rows, dims], those of the positions before the last `rows` added tokens (the key at a
                position predicted the token after it); None if unknown.
        """
        begin, end = self._length, self._length + len(tokens)
        # Padding in front, so that every position has `MAX_MATCH` tokens before it.
        if end + MAX_MATCH > len(self._text):
            self._text = np.concatenate([self._text, np.full(max(len(self._text), end), PAD, np.int32)])
        self._text[MAX_MATCH + begin : MAX_MATCH + end] = tokens
        recent = self._text[max(0, MAX_MATCH + begin - _RUNS[0]) : MAX_MATCH + end].tolist()
        shift = MAX_MATCH + end - len(recent)
        for position in range(begin, end):
            at = position + MAX_MATCH - shift + 1
            for run, ends in zip(_RUNS, self._ends, strict=True):
                if run <= position + 1:
                    ends.setdefault(tuple(recent[at - run : at]), []).append(position)
        self._length = end
        if keys is not None and len(keys):
            self._add_keys(keys)

    def _add_keys(self, keys: NDArray[np.float32]) -> None:
        if self._keys is None or self._keys.shape[1] != keys.shape[1] or len(self._keys) < self._length:
            larger = np.zeros((2 * self._length + 256, keys.shape[1]), np.float32)
            if self._keys is not None and self._keys.shape[1] == keys.shape[1]:
                larger[: len(self._keys)] = self._keys
            self._keys = larger
        self._keys[self._length - 1 - len(keys) : self._length - 1] = keys

    @property
    def length(self) -> int:
        """Tokens so far."""
        return self._length

    @property
    def last_two(self) -> tuple[int, int]:
        """The token before the newest one (-1 for none) and the newest one."""
        return int(self._text[MAX_MATCH + self._length - 2]), int(self._text[MAX_MATCH + self._length - 1])

    def forget_keys(self) -> None:
        """Keys of another kind will follow; those so far do not compare with them."""
        self._keys = None

    @property
    def key(self) -> NDArray[np.float32] | None:
        """float32 [dims]: the key that predicted the newest token."""
        return None if self._keys is None or self._length < 2 else self._keys[self._length - 2]

    def finished(self, prompt_length: int) -> FinishedText:
        """The answer behind a prompt, with as many of the prompt's last tokens as a left context has."""
        begin = max(0, prompt_length - MAX_MATCH)
        tokens = self._text[MAX_MATCH + begin : MAX_MATCH + self._length].copy()
        positions = np.arange(prompt_length - 1, self._length - 1)
        keys = np.zeros((len(positions), 0), np.float32) if self._keys is None else self._keys[positions]
        known = keys.any(axis=1)  # a place whose key was never made has zeros
        return FinishedText(tokens, prompt_length - begin, positions[known] - begin, keys[known])

    def left_context(self, width: int) -> NDArray[np.int32]:
        """int32 [width]: the tokens before the newest one, most recent first, `PAD` where there is none."""
        end = MAX_MATCH + self._length - 1
        context = np.full(width, PAD, np.int32)
        known = self._text[max(MAX_MATCH, end - width) : end][::-1]
        context[: len(known)] = known
        return context

    def places(self, *, max_places: int, depth: int) -> LocalPlaces | None:
        """The best earlier places, those of longer indexed runs first, then the latest; None if there are none.

        A place so near that the text ends before `depth` tokens have followed is continued as if the text repeated
        itself from there, as it does in lists, tables and loops.
        """
        newest = self._length - 1
        recent = self._text[MAX_MATCH + newest + 1 - min(_RUNS[0], newest + 1) : MAX_MATCH + newest + 1].tolist()
        found: dict[int, None] = {}
        for run, ends in zip(_RUNS, self._ends, strict=True):
            if run > len(recent):
                continue
            for position in reversed(ends.get(tuple(recent[-run:]), ())):
                if position != newest:
                    found.setdefault(position)
                    if len(found) == max_places:
                        break
            if len(found) == max_places:
                break
        if not found:
            return None
        positions = np.fromiter(found, np.int64, len(found))
        back = np.arange(MAX_MATCH)
        # text[MAX_MATCH + p - 1 - back]: the tokens before position p, most recent first.
        before = self._text[MAX_MATCH - 1 + positions[:, None] - back]
        same = (before == self._text[MAX_MATCH - 1 + newest - back]) & (before != PAD)
        matches = np.logical_and.accumulate(same, axis=1).sum(axis=1)
        ages = newest - positions
        paths = self._text[MAX_MATCH + positions[:, None] + 1 + np.arange(depth) % ages[:, None]]
        similarities = None
        if self._keys is not None and newest > 0:
            similarities = self._keys[np.maximum(positions - 1, 0)] @ self._keys[newest - 1]
            similarities[positions == 0] = 0.0
        return LocalPlaces(paths, matches, ages, similarities)
