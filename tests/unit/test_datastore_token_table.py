"""The table of likely next tokens against plain dictionaries."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresd.token_table import TokenTable
from retriever_service.datastore import TokenTableBuilder, save_token_table

PAD = -1
ARRAYS = (
    "unigram_tokens", "unigram_next_tokens", "unigram_probabilities",
    "pair_tokens", "pair_next_tokens", "pair_probabilities",
)  # fmt: skip


def observations(seed: int, number: int = 300, vocab_size: int = 6, width: int = 3):
    random = np.random.default_rng(seed)
    previous = random.integers(-1, vocab_size, number)
    current = random.integers(0, vocab_size, number)
    next_tokens = np.argsort(random.random((number, 12)), axis=1)[:, :width]
    next_tokens[random.random((number, width)) < 0.1] = PAD
    return previous, current, next_tokens, random.dirichlet(np.ones(width), number).astype(np.float32)


def expected(rows, key_of, min_count):
    sums, counts = defaultdict(lambda: defaultdict(float)), defaultdict(int)
    for previous, current, next_tokens, probabilities in zip(*rows, strict=True):
        key = key_of(int(previous), int(current))
        if key is None:
            continue
        counts[key] += 1
        for token, probability in zip(next_tokens.tolist(), probabilities.tolist(), strict=True):
            if token != PAD:
                sums[key][token] += probability
    return {
        key: sorted(((total / counts[key], token) for token, total in following.items()), reverse=True)[:8]
        for key, following in sums.items()
        if counts[key] >= min_count
    }


def check_row(tokens, probabilities, best):
    assert (tokens != PAD).sum() == len(best)
    assert probabilities[: len(best)] == pytest.approx([probability for probability, _ in best], rel=2e-3, abs=1e-4)
    assert (np.diff(probabilities) <= 0).all()
    by_token = {token: probability for probability, token in best}
    for token, probability in zip(tokens[: len(best)].tolist(), probabilities.tolist(), strict=False):
        assert by_token[token] == pytest.approx(probability, rel=2e-3, abs=1e-4)


def test_the_table_holds_mean_probabilities():
    rows = observations(0)
    builder = TokenTableBuilder()
    builder.add(*rows)
    table = builder.build(min_pair_count=3)

    unigrams = expected(rows, lambda _, current: current, 1)
    assert table.unigram_tokens.tolist() == sorted(unigrams)
    for row, token in enumerate(table.unigram_tokens.tolist()):
        check_row(table.unigram_next_tokens[row], table.unigram_probabilities[row], unigrams[token])

    pairs = expected(rows, lambda previous, current: None if previous == PAD else (previous, current), 3)
    assert [tuple(pair) for pair in table.pair_tokens.tolist()] == sorted(pairs)
    for row, pair in enumerate(table.pair_tokens.tolist()):
        check_row(table.pair_next_tokens[row], table.pair_probabilities[row], pairs[tuple(pair)])


@given(st.lists(st.integers(0, 299), max_size=6), st.randoms(use_true_random=False))
def test_neither_order_nor_grouping_matters(cuts, random):
    rows = observations(1)
    whole = TokenTableBuilder()
    whole.add(*rows)
    parts = np.split(np.random.default_rng(len(cuts)).permutation(300), sorted(cuts))
    random.shuffle(parts)
    merged = TokenTableBuilder()
    for number, part in enumerate(parts):
        builder = TokenTableBuilder() if number % 2 else merged
        builder.add(*(array[part] for array in rows))
        if builder is not merged:
            merged.merge(builder)
    one, other = whole.build(), merged.build()
    for name in ARRAYS:
        assert np.array_equal(getattr(one, name), getattr(other, name))


def test_the_most_frequent_pairs_are_kept():
    builder = TokenTableBuilder()
    current = np.array([1] * 2 + [2] * 5 + [3] * 4 + [4])
    builder.add(np.zeros_like(current), current, current[:, None] + 1, np.ones((len(current), 1), np.float32))
    assert builder.build(min_pair_count=2, max_pairs=2).pair_tokens.tolist() == [[0, 2], [0, 3]]
    assert builder.build(min_pair_count=2).pair_tokens.tolist() == [[0, 1], [0, 2], [0, 3]]


def test_an_unknown_pair_falls_back_to_its_last_token_and_an_unknown_token_to_nothing():
    builder = TokenTableBuilder()
    builder.add(np.array([5, 5, PAD]), np.array([6, 6, 6]), np.array([[7], [7], [8]]), np.full((3, 1), 0.9, np.float32))
    next_tokens, probabilities, _ = builder.build().lookup(np.array([5, 4, PAD, 5]), np.array([6, 6, 6, 9]))
    assert next_tokens[:, 0].tolist() == [7, 7, 7, PAD]
    assert probabilities[:, 0].tolist() == pytest.approx([0.9, 0.6, 0.6, 0.0], abs=1e-3)


def read(path: Path, vocab_size: int) -> TokenTable:
    return TokenTable.from_bytes(path.read_bytes(), vocab_size)


def test_large_token_ids_survive_saving(tmp_path):
    builder = TokenTableBuilder()
    top = 262_143
    builder.add(np.array([top, top]), np.array([top, top]), np.array([[top], [top]]), np.ones((2, 1), np.float32))
    save_token_table(tmp_path / "table", builder.build())
    table = read(tmp_path / "table", top + 1)
    assert table.pair_tokens.tolist() == [[top, top]]
    assert table.lookup(np.array([top]), np.array([top]))[0][0, 0] == top


@pytest.mark.parametrize("table", [TokenTable.empty(), TokenTableBuilder().build()])
def test_an_empty_table_knows_nothing_and_can_be_saved(tmp_path, table):
    save_token_table(tmp_path / "table", table)
    next_tokens, probabilities, _ = read(tmp_path / "table", 3).lookup(np.array([1]), np.array([2]))
    assert (next_tokens == PAD).all()
    assert (probabilities == 0).all()


def test_a_probability_rounded_above_one_is_one(tmp_path):
    builder = TokenTableBuilder()
    builder.add(np.array([PAD]), np.array([1]), np.array([[2]]), np.array([[1.0009]], np.float32))
    save_token_table(tmp_path / "table", builder.build())
    assert read(tmp_path / "table", 3).unigram_probabilities[0, 0] == 1.0


@pytest.mark.parametrize("probability", [-0.1, 1.5, np.nan])
def test_what_is_no_probability_is_refused(probability):
    with pytest.raises(ValueError, match="probabilities"):
        TokenTableBuilder().add(
            np.array([1]), np.array([1]), np.array([[1]]), np.array([[probability]], dtype=np.float32)
        )
