"""Bytes that claim to be a token table: read whole, or refused before anything is looked up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save

from dresd.token_table import PAIR_ARRAYS, UNIGRAM_ARRAYS, WIDTH, TokenTable, TokenTableError

PAD = -1
VOCAB = 20
Arrays = dict[str, NDArray]


def good_arrays() -> Arrays:
    next_tokens = np.full((2, WIDTH), PAD, np.int32)
    next_tokens[:, 0] = [VOCAB - 1, 3]
    probabilities = np.zeros((2, WIDTH), np.float16)
    probabilities[:, 0] = 1.0
    return {
        "unigram_tokens": np.array([0, VOCAB - 1], np.int32),
        "unigram_next_tokens": next_tokens,
        "unigram_probabilities": probabilities,
        "pair_tokens": np.array([[0, 1], [0, 2]], np.int32),
        "pair_next_tokens": next_tokens.copy(),
        "pair_probabilities": probabilities.copy(),
    }


def test_a_table_is_read_as_it_was_written():
    arrays = good_arrays()
    table = TokenTable.from_bytes(save(arrays), VOCAB)
    for name in (*UNIGRAM_ARRAYS, *PAIR_ARRAYS):
        np.testing.assert_array_equal(getattr(table, name), arrays[name])
    next_tokens, probabilities, _ = table.lookup(np.array([0, PAD, 5]), np.array([2, VOCAB - 1, 5]))
    assert next_tokens[:, 0].tolist() == [3, 3, PAD]
    assert probabilities[:, 0].tolist() == [1.0, 1.0, 0.0]


def put(name: str, value: float) -> Callable[[Arrays], object]:
    return lambda arrays: arrays[name].__setitem__((1, 0) if arrays[name].ndim == 2 else 1, value)


def replace(name: str, change: Callable[[NDArray], NDArray]) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.__setitem__(name, np.ascontiguousarray(change(arrays[name])))


@pytest.mark.parametrize("name", [*UNIGRAM_ARRAYS, *PAIR_ARRAYS])
@pytest.mark.parametrize("kind", ["missing", "longer", "another type", "flat", "one number", "too great", "too small"])
def test_a_malformed_array_is_refused_by_name(name: str, kind: str):
    spoil = {
        "missing": lambda arrays: arrays.pop(name),
        "longer": replace(name, lambda array: np.concatenate([array, array])),
        "another type": replace(name, lambda array: array.astype(np.float32)),
        "flat": replace(name, lambda array: array[None]),
        "one number": lambda arrays: arrays.__setitem__(name, np.array(arrays[name].ravel()[0])),
        "too great": put(name, VOCAB),
        "too small": put(name, -2),
    }[kind]
    arrays = good_arrays()
    spoil(arrays)
    with pytest.raises(TokenTableError, match="token table"):
        TokenTable.from_bytes(save(arrays), VOCAB)


@pytest.mark.parametrize("names", [UNIGRAM_ARRAYS, PAIR_ARRAYS])
def test_a_table_without_rows_to_count_is_refused(names: tuple[str, ...]):
    arrays = good_arrays()
    for name in names:
        arrays[name] = np.ascontiguousarray(arrays[name][0])
    arrays[names[0]] = np.array(arrays[names[0]].ravel()[0])
    with pytest.raises(TokenTableError, match="malformed"):
        TokenTable.from_bytes(save(arrays), VOCAB)


def test_what_is_no_number_is_no_probability():
    arrays = good_arrays()
    arrays["pair_probabilities"][0, 1] = np.nan
    with pytest.raises(TokenTableError, match="pair_probabilities"):
        TokenTable.from_bytes(save(arrays), VOCAB)


@given(st.binary(max_size=100) | st.integers(0, 400).map(lambda end: save(good_arrays())[:end]))
def test_other_bytes_are_refused(content: bytes):
    with pytest.raises(TokenTableError):
        TokenTable.from_bytes(content, VOCAB)
