"""Which partitions a token's entries go to, and are found in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresd.routing import RoutingTable
from retriever_service.datastore import DatastoreError, assign_tokens, save_routing, split_entries
from retriever_service.datastore.routing import load_routing

COUNTS = st.lists(st.integers(0, 50), min_size=1, max_size=40)


@given(COUNTS, st.integers(1, 6))
def test_every_token_with_entries_has_partitions_and_no_other_has(counts, num_partitions):
    table = assign_tokens(np.array(counts), num_partitions)
    share = sum(counts) / num_partitions
    for token, count in enumerate(counts):
        partitions = table.partitions_of(token).tolist()
        assert partitions == sorted(set(partitions))
        assert all(0 <= partition < num_partitions for partition in partitions)
        # A token is split only where it is heavier than a fair share, and then no piece is.
        assert (len(partitions) > 0) == (count > 0)
        assert (len(partitions) > 1) == (count > share)
        assert count <= len(partitions) * share + 1e-9


@given(COUNTS, st.integers(1, 6))
def test_partitions_are_about_equal(counts, num_partitions):
    table = assign_tokens(np.array(counts), num_partitions)
    loads = np.zeros(num_partitions)
    for token, count in enumerate(counts):
        partitions = table.partitions_of(token)
        loads[partitions] += count / max(len(partitions), 1)
    # Largest first, each to the emptiest: never more than one piece above the fair share.
    assert loads.max() <= 2 * sum(counts) / num_partitions + 1e-9


def test_the_emptiest_partition_is_the_one_with_the_fewest_entries():
    table = assign_tokens(np.array([8, 4, 2, 2]), 2)
    assert [table.partitions_of(token).tolist() for token in range(4)] == [[0], [1], [1], [1]]


def test_a_heavy_token_spreads_evenly_and_the_same_way_every_time():
    table = assign_tokens(np.array([9000, 500, 500]), 4)
    assert table.partitions_of(0).tolist() == [0, 1, 2, 3]
    tokens, ordinals = np.zeros(9000, np.int64), np.arange(0, 18000, 2)
    owners = split_entries(table, tokens, ordinals)
    assert np.bincount(owners, minlength=4).min() > 2000
    shuffled = np.random.default_rng(0).permutation(9000)
    assert np.array_equal(split_entries(table, tokens, ordinals[shuffled]), owners[shuffled])


@given(COUNTS, st.integers(1, 6), st.lists(st.integers(-1, 60), max_size=20))
def test_a_batch_is_looked_up_like_its_tokens(counts, num_partitions, tokens):
    table = assign_tokens(np.array(counts), num_partitions)
    queries, partitions = table.lookup(np.array(tokens, np.int64))
    expected = [(query, int(p)) for query, token in enumerate(tokens) for p in table.partitions_of(token)]
    assert list(zip(queries.tolist(), partitions.tolist(), strict=True)) == expected


def test_entries_go_where_queries_look():
    counts = np.random.default_rng(1).integers(0, 100, 50)
    counts[7] = 3000
    table = assign_tokens(counts, 3)
    tokens = np.repeat(np.arange(50), counts)
    owners = split_entries(table, tokens, np.arange(len(tokens)))
    for token in range(50):
        assert set(owners[tokens == token].tolist()) <= set(table.partitions_of(token).tolist())


def test_a_token_the_table_was_not_made_for_cannot_be_split():
    table = assign_tokens(np.array([1, 0, 1]), 2)
    with pytest.raises(ValueError, match="routing table"):
        split_entries(table, np.array([1]), np.array([0]))


def test_a_saved_table_is_read_back(tmp_path):
    table = assign_tokens(np.array([5, 0, 90, 5]), 3)
    save_routing(table, tmp_path / "routing.safetensors")
    again = load_routing(tmp_path / "routing.safetensors")
    assert again.num_partitions == 3
    for field in ("tokens", "offsets", "partitions"):
        assert np.array_equal(getattr(again, field), getattr(table, field))
    assert [file.name for file in tmp_path.iterdir()] == ["routing.safetensors"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("tokens", [2, 0]), ("offsets", [0, 2, 1]), ("partitions", [0, 7]), ("num_partitions", 0)],
)
def test_a_table_that_contradicts_itself_is_refused(tmp_path, field, value):
    fields = {"num_partitions": 2, "tokens": [0, 2], "offsets": [0, 1, 2], "partitions": [0, 1]}
    fields[field] = value
    number = fields.pop("num_partitions")
    table = RoutingTable(number, **{name: np.array(array) for name, array in fields.items()})
    save_routing(table, tmp_path / "routing")
    with pytest.raises(DatastoreError, match="routing"):
        load_routing(tmp_path / "routing")
