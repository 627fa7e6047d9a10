"""Search and drafts of an open datastore against brute force over what was put into it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dresd.draft_tree import PAD
from dresd.path_merging import merge_paths, merge_trees
from retriever_service.datastore import CODECS, EntryBatch, codecs
from tests.support.datastore import build_datastore, random_entries


def exact(entries: EntryBatch, key, next_token, neighbors):
    """Rows of `entries` nearest to a key within a next token, with their similarities."""
    rows = np.flatnonzero(entries.next_tokens == next_token)
    similarities = entries.keys[rows].astype(np.float64) @ key.astype(np.float64)
    nearest = np.argsort(-similarities, kind="stable")[:neighbors]
    return rows[nearest], similarities[nearest]


def queries_for(entries: EntryBatch, number: int, seed: int = 0):
    random = np.random.default_rng(seed)
    keys = random.normal(size=(number, entries.keys.shape[1]))
    keys = (keys / np.linalg.norm(keys, axis=1, keepdims=True)).astype(np.float32)
    return keys, entries.next_tokens[random.integers(len(entries), size=number)]


def draft_by_hand(entries, key, next_token, *, neighbors, max_nodes, max_depth, temperature):
    rows, similarities = exact(entries, key, next_token, neighbors)
    weights = np.exp((similarities - 1) / temperature)
    (tree,) = merge_paths(
        np.zeros(len(rows), np.int64),
        entries.continuations[rows, :max_depth],
        weights[:, None],
        num_queries=1,
        max_nodes=max_nodes,
    )
    return tree, weights.sum()


def same_trees(one, other):
    """Equal up to rounding: masses of equal nodes may be ordered differently where they tie."""
    assert len(one) == len(other)
    assert one.masses[:, 0] == pytest.approx(other.masses[:, 0], rel=1e-4)


@pytest.fixture(scope="module")
def one_partition(tmp_path_factory):
    return build_datastore(tmp_path_factory.mktemp("one") / "store")


@pytest.fixture(scope="module")
def split_tokens(tmp_path_factory):
    built = build_datastore(tmp_path_factory.mktemp("split") / "store", num_partitions=8)
    assert len(built.open().routing.partitions_of(0)) > 1
    return built


@pytest.mark.parametrize("store", ["one_partition", "split_tokens"])
@pytest.mark.parametrize("neighbors", [1, 7, 400])
def test_flat_search_is_exact(store, neighbors, request):
    built = request.getfixturevalue(store)
    keys, next_tokens = queries_for(built.entries, 40)
    found = built.open().search(keys, next_tokens, neighbors=neighbors)
    for query in range(40):
        _, similarities = exact(built.entries, keys[query], next_tokens[query], neighbors)
        count = int(found.counts[query])
        assert count == len(similarities)
        assert found.similarities[query, :count] == pytest.approx(similarities, abs=1e-5)
        assert (found.ids[query, count:] == -1).all()
        assert np.isneginf(found.similarities[query, count:]).all()


@pytest.mark.parametrize("store", ["one_partition", "split_tokens"])
def test_ids_lead_to_the_entries_that_were_stored(store, request):
    built = request.getfixturevalue(store)
    entries = built.entries
    opened = built.open()
    found = opened.search(entries.keys, entries.next_tokens, neighbors=1)
    stored = opened.entries(found.ids[:, 0])
    # Keys are distinct, so each entry's nearest is itself.
    assert np.array_equal(stored.next_tokens, entries.next_tokens)
    assert np.array_equal(stored.continuations, entries.continuations)
    assert np.array_equal(stored.left_contexts, entries.left_contexts)
    assert sorted(found.ids[:, 0].tolist()) == list(range(len(entries)))


@pytest.mark.parametrize("store", ["one_partition", "split_tokens"])
@pytest.mark.parametrize(("max_nodes", "max_depth"), [(1000, 6), (12, 6), (1000, 2)])
def test_drafts_merge_the_neighbours_continuations(store, max_nodes, max_depth, request):
    built = request.getfixturevalue(store)
    keys, next_tokens = queries_for(built.entries, 30, seed=1)
    options = {"neighbors": 20, "max_nodes": max_nodes, "max_depth": max_depth, "temperature": 0.3}
    batch = built.open().draft(keys, next_tokens, **options)
    for query in range(30):
        tree, total = draft_by_hand(built.entries, keys[query], next_tokens[query], **options)
        same_trees(batch.trees[query], tree)
        assert batch.total_masses[query].tolist() == pytest.approx([total, 0.0], rel=1e-4)
        assert batch.trees[query].masses.sum(axis=1).max(initial=0) <= batch.total_masses[query, 0] * (1 + 1e-9)
    # A depth of 0 is the whole continuation.
    if max_depth == 6:
        again = built.open().draft(keys, next_tokens, **{**options, "max_depth": 0})
        assert [tree.tokens.tolist() for tree in again.trees] == [tree.tokens.tolist() for tree in batch.trees]


def test_a_batch_equals_its_queries_one_by_one(split_tokens):
    store = split_tokens.open()
    keys, next_tokens = queries_for(split_tokens.entries, 25, seed=2)
    next_tokens[3] = 49_000
    options = {"neighbors": 15, "max_nodes": 20}
    together = store.draft(keys, next_tokens, **options)
    for query in range(25):
        alone = store.draft(keys[query : query + 1], next_tokens[query : query + 1], **options)
        assert alone.trees[0].tokens.tolist() == together.trees[query].tokens.tolist()
        assert alone.trees[0].parents.tolist() == together.trees[query].parents.tolist()
        assert alone.trees[0].masses == pytest.approx(together.trees[query].masses)
        assert alone.neighbor_counts[0].tolist() == together.neighbor_counts[query].tolist()
        assert alone.best_similarities[0] == pytest.approx(together.best_similarities[query])


def test_tokens_without_entries_get_empty_drafts(one_partition):
    absent = next(token for token in range(50) if token not in one_partition.entries.next_tokens)
    batch = one_partition.open().draft(
        one_partition.entries.keys[:4], np.array([absent, 50, 10**9, -1]), neighbors=5, max_nodes=5
    )
    assert [len(tree) for tree in batch.trees] == [0] * 4
    assert batch.total_masses.tolist() == [[0.0, 0.0]] * 4
    assert batch.best_similarities.tolist() == [0.0] * 4
    assert (batch.partitions_asked, batch.partitions_answered) == (0, 0)


def test_no_queries_give_no_drafts(one_partition):
    batch = one_partition.open().draft(np.zeros((0, 8), np.float32), np.zeros(0, np.int64), neighbors=5, max_nodes=5)
    assert batch.trees == []


def test_a_subset_of_partitions_answers_its_part(split_tokens):
    whole, part = split_tokens.open(), split_tokens.open(partitions=[1, 2])
    assert part.served_partitions == (1, 2)
    sizes = [partition.num_entries for partition in split_tokens.manifest.partitions]
    assert part.num_entries == sizes[1] + sizes[2]
    routing = whole.routing
    elsewhere = next(t for t in routing.tokens.tolist() if not set(routing.partitions_of(t).tolist()) & {1, 2})
    tokens = np.array([0, elsewhere])
    keys, _ = queries_for(split_tokens.entries, 2)
    found = part.search(keys, tokens, neighbors=400)
    everything = whole.search(keys, tokens, neighbors=400)
    concerned = set(routing.partitions_of(0).tolist()) | set(routing.partitions_of(elsewhere).tolist())
    assert found.partitions_asked == everything.partitions_asked == everything.partitions_answered == len(concerned)
    assert found.partitions_answered == len(concerned & {1, 2})
    assert found.counts[1] == 0
    assert 0 < found.counts[0] < everything.counts[0]
    # An entry has the same id whatever is served.
    assert set(found.ids[0, : found.counts[0]].tolist()) <= set(everything.ids[0].tolist())


def test_partitions_of_a_split_token_add_up(split_tokens):
    """What each partition alone answers, merged by adding, is what all of them answer together."""
    keys, _ = queries_for(split_tokens.entries, 1)
    options = {"neighbors": 1000, "max_nodes": 10_000}
    together = split_tokens.open().draft(keys, np.array([0]), **options)
    parts = [
        split_tokens.open(partitions=[number]).draft(keys, np.array([0]), **options)
        for number in split_tokens.open().routing.partitions_of(0).tolist()
    ]
    same_trees(merge_trees([part.trees[0] for part in parts], 10_000), together.trees[0])
    assert sum(part.total_masses[0, 0] for part in parts) == pytest.approx(together.total_masses[0, 0])


def test_only_the_partitions_asked_for_are_searched(split_tokens):
    """One open datastore told to search a partition answers like one that holds that partition alone."""
    whole = split_tokens.open()
    keys, _ = queries_for(split_tokens.entries, 1)
    for number in whole.routing.partitions_of(0).tolist():
        options = {"neighbors": 20, "max_nodes": 40}
        told = whole.draft(keys, np.array([0]), **options, partitions={number})
        alone = split_tokens.open(partitions=[number]).draft(keys, np.array([0]), **options)
        same_trees(told.trees[0], alone.trees[0])
        assert (told.partitions_asked, told.partitions_answered) == (1, 1)
        assert alone.partitions_asked > 1


@pytest.mark.parametrize("vocab_size", [65_535, 65_536, 262_144])
def test_every_id_of_a_vocabulary_can_be_drafted(tmp_path, vocab_size):
    top = vocab_size - 1
    entries = EntryBatch(
        np.eye(4, dtype=np.float32),
        np.array([top, top, 0, 1]),
        np.array([[top, 0], [top, PAD], [0, top], [PAD, PAD]], np.int32),
        np.full((4, 2), top, np.int32),
    )
    store = build_datastore(tmp_path / "store", entries, vocab_size=vocab_size).open()
    assert store.manifest.token_dtype == ("uint16" if vocab_size <= 65_535 else "uint32")
    batch = store.draft(entries.keys[[0, 2, 3]], np.array([top, 0, 1]), neighbors=5, max_nodes=5)
    assert [tree.tokens.tolist() for tree in batch.trees] == [[top, 0], [0, top], []]
    # A neighbour without a continuation still counts in the total.
    assert batch.total_masses[2].tolist() == pytest.approx([1.0, 0.0])
    assert batch.neighbor_counts.tolist() == [[2, 0], [1, 0], [1, 0]]


def test_threads_get_what_one_thread_gets(split_tokens):
    store = split_tokens.open()
    keys, next_tokens = queries_for(split_tokens.entries, 64, seed=3)
    expected = [store.search(keys[q : q + 4], next_tokens[q : q + 4], neighbors=9) for q in range(0, 64, 4)]

    def search(turn: int):
        at = turn % 16 * 4
        # Different numbers of lists at the same time: nothing of a call may live in the shared index.
        return store.search(keys[at : at + 4], next_tokens[at : at + 4], neighbors=9, nprobe=turn % 3)

    with ThreadPoolExecutor(8) as pool:
        for turn, found in enumerate(pool.map(search, range(320))):
            assert np.array_equal(found.ids, expected[turn % 16].ids)


@pytest.fixture(scope="module")
def clustered(tmp_path_factory):
    entries = random_entries(6000, vocab_size=4, seed=5)
    path = tmp_path_factory.mktemp("clustered") / "store"
    built = build_datastore(path, entries, vocab_size=4, num_entries_total=100_000)
    counts = np.diff(built.open().segments[0][0].segment.token_lists.offsets)
    assert counts.max() > 30  # about the square root of the entries
    return built


def recall(found, entries, keys, next_tokens, neighbors):
    hits = [
        found.similarities[query] >= exact(entries, keys[query], next_tokens[query], neighbors)[1][-1] - 1e-5
        for query in range(len(keys))
    ]
    return float(np.mean(hits))


def test_all_lists_of_a_clustered_token_are_exact_and_few_lists_nearly(clustered):
    entries, store = clustered.entries, clustered.open()
    wanted = np.flatnonzero(np.isin(entries.next_tokens, [0, 1]))[:100]
    keys, next_tokens = entries.keys[wanted], entries.next_tokens[wanted]
    recalls = [
        recall(store.search(keys, next_tokens, neighbors=10, nprobe=nprobe), entries, keys, next_tokens, 10)
        for nprobe in (0, 1, 8, 1000)
    ]
    assert recalls[0] == recalls[3] == 1.0
    assert 0.3 < recalls[1] < recalls[2] <= 1.0
    assert recalls[2] > 0.85


def test_nprobe_of_the_datastore_is_the_default(tmp_path, clustered):
    built = build_datastore(tmp_path / "store", clustered.entries, vocab_size=4, num_entries_total=100_000, nprobe=2)
    keys, next_tokens = clustered.entries.keys[:50], clustered.entries.next_tokens[:50]
    ids = built.open().search(keys, next_tokens, neighbors=10).ids
    assert np.array_equal(ids, clustered.open().search(keys, next_tokens, neighbors=10, nprobe=2).ids)
    assert not np.array_equal(ids, clustered.open().search(keys, next_tokens, neighbors=10).ids)


@pytest.mark.parametrize("codec", CODECS)
def test_codecs_find_nearly_what_is_exact(tmp_path, codec):
    built = build_datastore(tmp_path / "store", random_entries(2000, dims=16), codec=codec)
    keys, next_tokens = built.entries.keys[:200], built.entries.next_tokens[:200]
    found = built.open().search(keys, next_tokens, neighbors=1)
    _, cosines = zip(*(exact(built.entries, *query, 1) for query in zip(keys, next_tokens, strict=True)), strict=True)
    tolerance = {"flat": 1e-5, "sq8": 0.02, "sq4": 0.2, "pq": 0.3}[codec]
    assert found.similarities[:, 0] == pytest.approx(np.concatenate(cosines), abs=tolerance)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dims", [1, 7, 64])
def test_a_scan_finds_what_faiss_finds(tmp_path, codec, dims):
    entries = random_entries(3000, dims=dims)
    entries.keys[::5] = entries.keys[0]  # ties
    opened = build_datastore(tmp_path / "store", entries, codec=codec).open()
    ((one,),) = opened.segments.values()
    segment, most = one.segment, len(entries)
    for query in range(40):
        key, token = entries.keys[query : query + 1], entries.next_tokens[query : query + 1]
        lists = segment.token_lists.choose(key, np.searchsorted(segment.tokens, token), 0)
        similarities, rows = codecs.search_lists(segment.index, key, lists, most)
        by_row = dict(zip(rows[0].tolist(), similarities[0].tolist(), strict=True))
        for neighbors in (1, 10, most):
            found = opened.search(key, token, neighbors=neighbors)
            count = int(found.counts[0])
            assert count == min(neighbors, len(by_row) - (-1 in by_row))
            assert found.similarities[0, :count] == pytest.approx(similarities[0, :count], abs=1e-5)
            assert [by_row[row] for row in found.ids[0, :count].tolist()] == pytest.approx(
                found.similarities[0, :count], abs=1e-5
            )
            assert len(set(found.ids[0, :count].tolist())) == count


def test_no_neighbour_weighs_more_than_an_equal_key(tmp_path):
    # Decoded codes may be a little longer than 1; a weight of exp((1.01 - 1) / 0.001) would drown everything.
    built = build_datastore(tmp_path / "store", random_entries(500), codec="sq4")
    keys, next_tokens = built.entries.keys, built.entries.next_tokens
    store = built.open()
    assert store.search(keys, next_tokens, neighbors=1).similarities.max() > 1.0
    batch = store.draft(keys, next_tokens, neighbors=1, max_nodes=5, temperature=0.001)
    assert batch.total_masses.max() <= 1.0


@pytest.mark.parametrize(
    ("keys", "tokens", "options"),
    [
        (np.zeros((2, 7), np.float32), np.zeros(2, np.int64), {}),
        (np.zeros((2, 8), np.float32), np.zeros(3, np.int64), {}),
        (np.zeros(8, np.float32), np.zeros(1, np.int64), {}),
        (np.zeros((1, 8), np.float32), np.zeros(1, np.int64), {"neighbors": 0}),
        (np.zeros((1, 8), np.float32), np.zeros(1, np.int64), {"nprobe": -1}),
        (np.zeros((1, 8), np.float32), np.zeros(1, np.int64), {"max_nodes": -1}),
        (np.zeros((1, 8), np.float32), np.zeros(1, np.int64), {"temperature": 0.0}),
        (np.zeros((1, 8), np.float32), np.zeros(1, np.int64), {"temperature": float("nan")}),
    ],
)
def test_impossible_queries_are_refused(one_partition, keys, tokens, options):
    with pytest.raises(ValueError):
        one_partition.open().draft(keys, tokens, **{"neighbors": 5, "max_nodes": 5, **options})
