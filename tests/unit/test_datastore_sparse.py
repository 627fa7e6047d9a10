"""Longest matching left contexts against the definition, row by row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dresd.draft_tree import PAD
from retriever_service.datastore.matching import longest_matches
from retriever_service.datastore.tokens import TokenDtype, pack

WIDTH = 4
NO_TOKENS = [-7, 65_535, 70_000, 2**31 - 1]


@dataclass(frozen=True)
class Group:
    """Rows of several next tokens as a segment stores them."""

    next_tokens: NDArray[np.int64]
    left_contexts: NDArray[np.int32]

    @property
    def suffix_order(self) -> NDArray[np.uint32]:
        stored = pack(self.left_contexts, "uint16")
        return np.lexsort((*stored.T[::-1], self.next_tokens)).astype(np.uint32)

    def range_of(self, token: int) -> tuple[int, int]:
        ordered = np.sort(self.next_tokens)
        return int(np.searchsorted(ordered, token)), int(np.searchsorted(ordered, token, side="right"))

    def match(self, tokens: list[int], contexts: NDArray[np.int32], neighbors: int, dtype: TokenDtype = "uint16"):
        lengths = np.zeros((len(tokens), neighbors), np.int64)
        rows = np.full((len(tokens), neighbors), -1, np.int64)
        for query, token in enumerate(tokens):
            stored = pack(self.left_contexts, dtype)
            begin, end = self.range_of(token)
            longest_matches(self.suffix_order, stored, begin, end, contexts[query], lengths[query], rows[query])
        return lengths, rows


def common_prefix(stored: list[int], query: list[int]) -> int:
    length = 0
    for one, other in zip(stored, query, strict=False):
        if one != other or one == PAD:
            break
        length += 1
    return length


def contexts_of(rows: list[list[int]], width: int = WIDTH) -> NDArray[np.int32]:
    padded = np.full((len(rows), width), PAD, np.int32)
    for row, context in zip(padded, rows, strict=True):
        row[: len(context)] = context
    return padded


@st.composite
def groups(draw: st.DrawFn) -> Group:
    alphabet = st.integers(0, draw(st.integers(1, 2)))
    rows = draw(st.lists(st.tuples(st.integers(0, 2), st.lists(alphabet, max_size=WIDTH)), min_size=1, max_size=60))
    return Group(np.array([token for token, _ in rows], np.int64), contexts_of([context for _, context in rows]))


@st.composite
def queries(draw: st.DrawFn) -> tuple[list[int], NDArray[np.int32]]:
    width = draw(st.integers(1, WIDTH))
    token = st.integers(0, 3) | st.just(PAD) | st.sampled_from(NO_TOKENS)
    contexts = draw(st.lists(st.lists(token, min_size=width, max_size=width), max_size=4))
    # Next token 3 has no rows.
    tokens = draw(st.lists(st.integers(0, 3), min_size=len(contexts), max_size=len(contexts)))
    return tokens, np.array(contexts, np.int32).reshape(-1, width)


@given(groups(), queries(), st.integers(1, 80), st.sampled_from(["uint16", "uint32"]))
def test_the_longest_matches_are_found(group: Group, asked, neighbors: int, dtype: TokenDtype):
    tokens, contexts = asked
    lengths, rows = group.match(tokens, contexts, neighbors, dtype)
    assert rows.shape == lengths.shape
    assert rows.shape[1] <= neighbors
    for query, token in enumerate(tokens):
        mine = np.flatnonzero(group.next_tokens == token).tolist()
        by_row = {row: common_prefix(group.left_contexts[row].tolist(), contexts[query].tolist()) for row in mine}
        wanted = sorted((length for length in by_row.values() if length > 0), reverse=True)[:neighbors]
        found = [row for row in rows[query].tolist() if row >= 0]
        assert [by_row[row] for row in found] == lengths[query, : len(found)].tolist() == wanted
        assert len(set(found)) == len(found)
        assert (rows[query, len(found) :] == -1).all()
        assert (lengths[query, len(found) :] == 0).all()


def test_of_equal_matches_the_nearest_in_the_order_come_first():
    # In order: 1 1, 1 3, 1 5, 1 7; the query 1 4 stands in the middle.
    group = Group(np.zeros(4, np.int64), contexts_of([[1, 7], [1, 3], [1, 5], [1, 1]]))
    lengths, rows = group.match([0], contexts_of([[1, 4]]), 3)
    assert rows.tolist() == [[1, 2, 3]]
    assert lengths.tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 255, 256, 257, 5000])
def test_every_row_of_a_group_finds_itself(size: int):
    random = np.random.default_rng(size)
    group = Group(np.zeros(size, np.int64), random.permutation(size)[:, None].astype(np.int32))
    lengths, rows = group.match([0] * size, group.left_contexts, 1)
    assert rows[:, 0].tolist() == list(range(size))
    assert (lengths == 1).all()


def test_padding_matches_nothing():
    group = Group(np.zeros(3, np.int64), contexts_of([[2], [], [2, 2]]))
    lengths, rows = group.match([0, 0], contexts_of([[2], []]), 5)
    assert [sorted(row for row in found if row >= 0) for found in rows.tolist()] == [[0, 2], []]
    assert lengths.max(axis=1).tolist() == [1, 0]


def test_an_order_beyond_the_rows_is_an_error():
    stored, one = pack(contexts_of([[1], [2]]), "uint16"), np.zeros(2, np.int64)
    with pytest.raises(IndexError):
        longest_matches(np.array([0, 9], np.uint32), stored, 0, 2, contexts_of([[2]])[0], one, one.copy())
