"""Drafts of dense and sparse neighbours, each alone and both together, against sums over what was put in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dresd.draft_tree import DraftTree
from dresd.path_merging import merge_paths
from retriever_service.datastore import Datastore, DatastoreError, EntryBatch
from tests.support.datastore import BuiltDatastore, build_datastore, random_entries

PAD = -1
ALL = 1000
OPTIONS = {"max_nodes": 10_000, "temperature": 0.3, "match_temperature": 2.0}
DENSE = {"neighbors": ALL}
SPARSE = {"neighbors": 0, "sparse_neighbors": ALL}
BOTH = {"neighbors": ALL, "sparse_neighbors": ALL}


@pytest.fixture(scope="module")
def entries() -> EntryBatch:
    return random_entries(300, vocab_size=20)


@pytest.fixture(scope="module")
def built(entries: EntryBatch, tmp_path_factory: pytest.TempPathFactory) -> BuiltDatastore:
    return build_datastore(tmp_path_factory.mktemp("one") / "store", entries, vocab_size=20)


@pytest.fixture(scope="module")
def parted(entries: EntryBatch, tmp_path_factory: pytest.TempPathFactory) -> BuiltDatastore:
    built = build_datastore(tmp_path_factory.mktemp("six") / "store", entries, vocab_size=20, num_partitions=6)
    assert len(built.open().routing.partitions_of(0)) > 1
    return built


def queries_of(entries: EntryBatch, number: int = 30):
    random = np.random.default_rng(3)
    rows = random.integers(len(entries), size=number)
    contexts = entries.left_contexts[rows].copy()
    # Some agree to the end, most only to a point.
    ends = random.integers(0, 2 * contexts.shape[1], size=number)
    contexts[(np.arange(contexts.shape[1]) == ends[:, None])] = 2
    return entries.keys[random.permutation(rows)], entries.next_tokens[rows], contexts


def match_lengths(entries: EntryBatch, rows: NDArray[np.int64], context: NDArray[np.int32]) -> NDArray[np.int64]:
    stored = entries.left_contexts[rows]
    return np.logical_and.accumulate((stored == context) & (context != PAD), axis=1).sum(axis=1)


def by_hand(entries: EntryBatch, key, next_token, context, *, dense: bool, sparse: bool) -> tuple[DraftTree, list]:
    rows = np.flatnonzero(entries.next_tokens == next_token)
    lengths = match_lengths(entries, rows, context)
    similarities = entries.keys[rows].astype(np.float64) @ key
    weights = np.zeros((len(rows), 2))
    if dense:
        weights[:, 0] = np.exp((similarities - 1) / OPTIONS["temperature"])
    if sparse:
        full = np.exp((lengths - entries.left_contexts.shape[1]) / OPTIONS["match_temperature"])
        weights[:, 1] = np.where(lengths > 0, full, 0.0)
    found = weights.any(axis=1)
    (tree,) = merge_paths(
        np.zeros(found.sum(), np.int64),
        entries.continuations[rows[found]],
        weights[found],
        num_queries=1,
        max_nodes=ALL,
    )
    return tree, [weights.sum(axis=0), (weights > 0).sum(axis=0), lengths.max(initial=0) if sparse else 0]


def masses_by_path(tree: DraftTree) -> dict[tuple[int, ...], list[float]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return dict(zip(paths, tree.masses.tolist(), strict=True))


def assert_same(one: DraftTree, other: DraftTree) -> None:
    ours, theirs = masses_by_path(one), masses_by_path(other)
    assert set(ours) == set(theirs)
    for path, masses in ours.items():
        assert masses == pytest.approx(theirs[path], rel=1e-4, abs=1e-12)


@pytest.mark.parametrize("store", ["built", "parted"])
@pytest.mark.parametrize("kinds", [DENSE, SPARSE, BOTH])
def test_drafts_are_sums_over_the_neighbours_of_each_kind(store, kinds, entries, request):
    opened: Datastore = request.getfixturevalue(store).open()
    keys, next_tokens, contexts = queries_of(entries)
    batch = opened.draft(keys, next_tokens, left_contexts=contexts, **OPTIONS, **kinds)
    for query in range(len(keys)):
        tree, (totals, counts, longest) = by_hand(
            entries,
            keys[query],
            next_tokens[query],
            contexts[query],
            dense=kinds["neighbors"] > 0,
            sparse=kinds.get("sparse_neighbors", 0) > 0,
        )
        assert_same(batch.trees[query], tree)
        assert batch.total_masses[query].tolist() == pytest.approx(totals.tolist(), rel=1e-4)
        assert batch.neighbor_counts[query].tolist() == counts.tolist()
        assert batch.longest_matches[query] == longest
    assert (batch.best_similarities > 0).all() == (kinds["neighbors"] > 0)


@pytest.mark.parametrize("store", ["built", "parted"])
@pytest.mark.parametrize("neighbors", [1, 3, 10])
def test_the_longest_matches_are_taken_over_all_partitions(store, neighbors, entries, request):
    keys, next_tokens, contexts = queries_of(entries)
    batch = (
        request.getfixturevalue(store)
        .open()
        .draft(keys, next_tokens, left_contexts=contexts, neighbors=0, sparse_neighbors=neighbors, **OPTIONS)
    )
    for query in range(len(keys)):
        rows = np.flatnonzero(entries.next_tokens == next_tokens[query])
        lengths = np.sort(match_lengths(entries, rows, contexts[query]))[::-1][:neighbors]
        lengths = lengths[lengths > 0]
        assert batch.neighbor_counts[query].tolist() == [0, len(lengths)]
        assert batch.longest_matches[query] == lengths.max(initial=0)
        expected = np.exp((lengths - contexts.shape[1]) / OPTIONS["match_temperature"]).sum()
        assert batch.total_masses[query, 1] == pytest.approx(expected)


def test_an_entry_that_agrees_to_the_end_weighs_one_however_it_is_found(tmp_path: Path):
    entries = EntryBatch(
        np.eye(2, 4, dtype=np.float32),
        np.array([7, 7]),
        np.array([[1, 2], [1, 3]], np.int32),
        np.array([[4, 5, 6], [4, 8, 6]], np.int32),
    )
    store = build_datastore(tmp_path / "store", entries).open()
    batch = store.draft(
        entries.keys[:1],
        np.array([7]),
        left_contexts=entries.left_contexts[:1],
        neighbors=1,
        sparse_neighbors=2,
        max_nodes=9,
        match_temperature=2.0,
    )
    partial = np.exp(-2 / 2.0)
    expected = {(1,): [1.0, 1.0 + partial], (1, 2): [1.0, 1.0], (1, 3): [0.0, partial]}
    found = masses_by_path(batch.trees[0])
    assert {path: pytest.approx(masses) for path, masses in expected.items()} == found
    assert batch.total_masses.tolist() == [pytest.approx([1.0, 1.0 + partial])]


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_shorter_context_matches_less_and_weighs_less(built, entries, width):
    keys, next_tokens, contexts = queries_of(entries)
    short = contexts[:, :width]
    padded = np.where(np.arange(contexts.shape[1]) < width, contexts, PAD).astype(np.int32)
    store = built.open()
    one, other = (store.draft(keys, next_tokens, left_contexts=each, **OPTIONS, **SPARSE) for each in (short, padded))
    assert one.longest_matches.max() == width
    np.testing.assert_allclose(one.total_masses, other.total_masses)
    for tree, same in zip(one.trees, other.trees, strict=True):
        assert_same(tree, same)


def test_contexts_of_tokens_nobody_stored_match_nothing(built, entries):
    keys, next_tokens, _ = queries_of(entries, 4)
    nobody = np.array([[19], [65_535], [2**31 - 1], [PAD]], np.int32)
    nobody[0] = 10  # in the vocabulary, in no left context
    batch = built.open().draft(keys, next_tokens, left_contexts=nobody, **OPTIONS, **SPARSE)
    assert [len(tree) for tree in batch.trees] == [0] * 4
    assert not batch.total_masses.any()
    assert not batch.longest_matches.any()


def test_partitions_that_are_not_served_are_missing_from_the_sum(parted, entries):
    keys, next_tokens, contexts = queries_of(entries)
    whole = parted.open().draft(keys, next_tokens, left_contexts=contexts, **OPTIONS, **SPARSE)
    parts = [
        parted.open(partitions=[number]).draft(keys, next_tokens, left_contexts=contexts, **OPTIONS, **SPARSE)
        for number in range(6)
    ]
    assert all(part.partitions_answered < whole.partitions_answered == whole.partitions_asked for part in parts)
    np.testing.assert_allclose(sum(part.total_masses for part in parts), whole.total_masses)


def test_a_batch_of_nothing_has_no_drafts(built):
    nothing = built.open().draft(
        np.zeros((0, 8), np.float32),
        np.zeros(0, np.int64),
        left_contexts=np.zeros((0, 5), np.int32),
        **OPTIONS,
        **BOTH,
    )
    assert (nothing.trees, nothing.total_masses.shape, nothing.neighbor_counts.shape) == ([], (0, 2), (0, 2))


@pytest.mark.parametrize(
    "changes",
    [
        {"neighbors": 0, "sparse_neighbors": 0},
        {"neighbors": -1},
        {"sparse_neighbors": -1},
        {"left_contexts": None},
        {"left_contexts": np.zeros((2, 6), np.int32)},
        {"left_contexts": np.zeros((2, 0), np.int32)},
        {"left_contexts": np.zeros((1, 5), np.int32)},
        {"left_contexts": np.zeros(2, np.int32)},
        {"match_temperature": 0.0},
        {"match_temperature": float("nan")},
        {"temperature": 0.0},
    ],
)
def test_impossible_sparse_queries_are_refused(built, entries, changes):
    good = {"left_contexts": np.zeros((2, 5), np.int32), "neighbors": 3, "sparse_neighbors": 3, **OPTIONS}
    built.open().draft(entries.keys[:2], entries.next_tokens[:2], **good)
    with pytest.raises(ValueError):
        built.open().draft(entries.keys[:2], entries.next_tokens[:2], **{**good, **changes})


def test_a_temperature_nobody_needs_is_not_looked_at(built, entries):
    keys, next_tokens, contexts = queries_of(entries, 2)
    store = built.open()
    assert len(store.draft(keys, next_tokens, neighbors=1, max_nodes=1, match_temperature=0.0).trees) == 2
    only_sparse = {"neighbors": 0, "sparse_neighbors": 1, "temperature": 0.0}
    assert len(store.draft(keys, next_tokens, left_contexts=contexts, max_nodes=1, **only_sparse).trees) == 2


def test_a_suffix_order_that_leads_beyond_the_rows_is_an_error_of_the_datastore(tmp_path: Path, entries):
    built = build_datastore(tmp_path / "store", entries, vocab_size=20)
    path = next(built.path.glob("*/suffix_order.npy"))
    order = np.load(path)
    np.save(path, np.full_like(order, len(order)))
    keys, next_tokens, contexts = queries_of(entries)
    with pytest.raises(DatastoreError, match="suffix order"):
        built.open(verify_checksums=False).draft(keys, next_tokens, left_contexts=contexts, **OPTIONS, **SPARSE)
