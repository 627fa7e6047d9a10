"""Datastores of several segments a partition: shared files, and searches that equal an exact one over everything."""

from __future__ import annotations

import errno
import os
import shutil
from itertools import pairwise
from pathlib import Path

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dresd.draft_tree import PAD
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.datastore import (
    CODECS,
    Datastore,
    DatastoreError,
    EntryBatch,
    entries_at,
    inspect,
    publish,
    read_manifest,
    tune,
    verify,
)
from retriever_service.evolving import extend, merge, prune, sharing
from tests.support.datastore import build_datastore, random_entries
from tests.support.serving import eventually, local_config, request_for, serving
from tests.support.swapping import SOON_S


def chain(folder: Path, batches: list[EntryBatch], *, parts: int = 1, **options: object) -> Path:
    """The folder of a datastore of the first batch to which the others were added one after the other."""
    path = build_datastore(folder / "base", batches[0], num_partitions=parts, **options).path
    for at, batch in enumerate(batches[1:]):
        more = build_datastore(folder / f"more-{at}", batch, vocab_size=int(options.get("vocab_size", 50))).path
        out = folder / f"extended-{at}"
        out.mkdir()
        extend(path, more, out)
        path = out
    return path


def exact(entries: EntryBatch, key: np.ndarray, next_token: int, neighbors: int) -> np.ndarray:
    return np.sort(entries.keys[entries.next_tokens == next_token] @ key)[::-1][:neighbors]


def longest(entries: EntryBatch, context: np.ndarray, next_token: int, neighbors: int) -> list[int]:
    """How many tokens the best matches of a left context share with it, falling."""
    stored = entries.left_contexts[entries.next_tokens == next_token]
    agrees = np.logical_and.accumulate((stored == context) & (context != PAD), axis=1).sum(axis=1)
    return [length for length in np.sort(agrees)[::-1][:neighbors].tolist() if length > 0]


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 150), min_size=2, max_size=4),
    parts=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_several_segments_are_searched_like_one(tmp_path_factory, sizes, parts, seed):
    batches = [random_entries(size, seed=seed + at) for at, size in enumerate(sizes)]
    path = chain(tmp_path_factory.mktemp("chain"), batches, parts=parts)
    store, together = Datastore.open(path), EntryBatch.concatenate(batches)
    assert store.num_entries == len(together)
    assert verify(path).entries == len(together)
    near = store.search(together.keys, together.next_tokens, neighbors=9)
    drafts = store.draft(
        together.keys, together.next_tokens, neighbors=0, max_nodes=5,
        left_contexts=together.left_contexts, sparse_neighbors=4,
    )  # fmt: skip
    for query in range(len(together)):
        key, token, context = (getattr(together, name)[query] for name in ("keys", "next_tokens", "left_contexts"))
        expected = exact(together, key, token, 9)
        assert near.counts[query] == len(expected)
        assert near.similarities[query][: len(expected)] == pytest.approx(expected, abs=1e-5)
        lengths = longest(together, context, token, 4)
        assert drafts.neighbor_counts[query, 1] == len(lengths)
        assert drafts.longest_matches[query] == max(lengths, default=0)
        weights = np.exp((np.array(lengths) - together.left_contexts.shape[1]) / 3.3)
        assert drafts.total_masses[query, 1] == pytest.approx(weights.sum(), rel=1e-6)
    # Every neighbour's text is its own.
    found = entries_at(store, np.arange(store.num_entries))
    rows, places = np.nonzero(near.ids >= 0)
    ids = near.ids[rows, places]
    assert (found.keys[ids] * together.keys[rows]).sum(axis=1) == pytest.approx(
        near.similarities[rows, places], abs=1e-5
    )
    stored = store.entries(ids)
    assert np.array_equal(stored.next_tokens, together.next_tokens[rows])
    assert np.array_equal(stored.continuations, found.continuations[ids])
    assert np.array_equal(stored.left_contexts, found.left_contexts[ids])


def test_a_partition_alone_answers_with_the_same_ids(tmp_path):
    path = chain(tmp_path, [random_entries(200, seed=at) for at in range(3)], parts=2)
    whole, entries = Datastore.open(path), random_entries(60, seed=9)
    expected = whole.search(entries.keys, entries.next_tokens, neighbors=5)
    found = np.full_like(expected.ids, -1)
    for partition in (0, 1):
        near = Datastore.open(path, partitions=[partition]).search(entries.keys, entries.next_tokens, neighbors=5)
        found = np.where(near.counts[:, None] > 0, near.ids, found)
    of_one = np.array([len(whole.routing.partitions_of(int(token))) == 1 for token in entries.next_tokens])
    assert np.array_equal(found[of_one], expected.ids[of_one])


def test_files_are_shared_and_the_old_build_stays(tmp_path):
    base = build_datastore(tmp_path / "base", num_partitions=2)
    before = {file: file.read_bytes() for file in base.path.rglob("*") if file.is_file()}
    more = build_datastore(tmp_path / "more", random_entries(100, seed=1))
    (tmp_path / "out").mkdir()
    result = extend(base.path, more.path, tmp_path / "out")
    assert (result.added, result.verbatim, result.copied_bytes) == (100, 0, 0)
    assert {file: file.read_bytes() for file in before} == before
    for file in before:
        twin = tmp_path / "out" / file.relative_to(base.path)
        if "partition" in str(file) or file.name == "reducer.safetensors":
            assert twin.samefile(file)
    # Whatever becomes of the one, the other is whole.
    tune(tmp_path / "out")
    shutil.rmtree(base.path)
    assert verify(tmp_path / "out").entries == 600
    assert [part["segments"] for part in map(vars_of, inspect(tmp_path / "out").partitions)] == [2, 2]


def vars_of(one: object) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__slots__}


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_where_nothing_can_be_linked_files_are_copied(tmp_path, number):
    source = build_datastore(tmp_path / "store").path / "partition-00000-segment-000"

    def refuse(_source: Path, _target: Path) -> None:
        raise OSError(number, os.strerror(number))

    names = sorted(file.name for file in source.iterdir())
    copied = sharing.share_files(source, tmp_path / "copy", names, link=refuse)
    assert copied == sum(file.stat().st_size for file in source.iterdir())
    assert all((tmp_path / "copy" / name).read_bytes() == (source / name).read_bytes() for name in names)
    with pytest.raises(FileExistsError):
        sharing.share_files(source, tmp_path / "copy", names)


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_there_verbatim_is_not_added_again(tmp_path, codec):
    entries, fresh = random_entries(400, dims=16), random_entries(50, dims=16, seed=3)
    base = build_datastore(tmp_path / "base", entries, codec=codec)
    again = EntryBatch.concatenate([entries.select(np.arange(100, 200)), fresh])
    more = build_datastore(tmp_path / "more", again, codec="flat")
    (tmp_path / "out").mkdir()
    result = extend(base.path, more.path, tmp_path / "out")
    assert result.added + result.verbatim == 150
    # A codec may move keys too far to be known again; then an entry is there twice, which harms nobody.
    assert result.added >= 50
    assert result.verbatim >= {"flat": 100, "sq8": 90, "pq": 60, "sq4": 0}[codec]
    (tmp_path / "nothing").mkdir()
    assert extend(tmp_path / "out", more.path, tmp_path / "nothing").added <= result.added
    assert read_manifest(tmp_path / "out").codec == codec


def test_tokens_stay_in_their_partition_and_new_ones_go_where_there_is_room(tmp_path):
    path = chain(tmp_path, [random_entries(300, vocab_size=12), random_entries(900, vocab_size=40, seed=1)], parts=3)
    old, new = Datastore.open(tmp_path / "base").routing, Datastore.open(path).routing
    for token in old.tokens.tolist():
        assert new.partitions_of(token).tolist() == old.partitions_of(token).tolist()
    assert set(new.tokens.tolist()) > set(old.tokens.tolist())
    assert new.is_consistent()


def test_other_keys_are_refused(tmp_path):
    base, other = build_datastore(tmp_path / "base"), build_datastore(tmp_path / "other", seed=1)
    (tmp_path / "out").mkdir()
    with pytest.raises(DatastoreError, match="reducer_hash"):
        extend(base.path, other.path, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_clustered_segment_beside_one_that_is_not_can_be_tuned(tmp_path):
    entries = [random_entries(size, dims=16, vocab_size=3, seed=size) for size in (6000, 500)]
    path = chain(tmp_path, entries, vocab_size=3, num_entries_total=100_000)
    store, together = Datastore.open(path), EntryBatch.concatenate(entries)
    manifest = tune(path, recall=0.9)
    assert store.manifest.nprobe > 1  # the lists of the old segment were measured when the new one came
    assert manifest.tuning.target_recall == 0.9
    chosen = np.random.default_rng(0).choice(len(together), 200)
    keys, tokens = together.keys[chosen], together.next_tokens[chosen]
    found = Datastore.open(path).search(keys, tokens, neighbors=10).similarities
    hits = [found[q] >= exact(together, keys[q], tokens[q], 10)[-1] - 1e-5 for q in range(200)]
    assert np.mean(hits) > 0.85


def test_merging_makes_one_segment_of_many_and_pruning_works_on_them(tmp_path):
    batches = [random_entries(200, seed=at) for at in range(4)]
    path = chain(tmp_path, batches, parts=2)
    for name in ("merged", "pruned"):
        (tmp_path / name).mkdir()
    assert merge([path], tmp_path / "merged").num_entries == 800
    assert [len(part.segments) for part in read_manifest(tmp_path / "merged").partitions] == [1, 1]
    assert verify(tmp_path / "merged").entries == 800
    assert prune(path, tmp_path / "pruned", 500).manifest.num_entries == 500
    assert verify(tmp_path / "pruned").entries == 500
    many, one = Datastore.open(path), Datastore.open(tmp_path / "merged")
    for batch in batches:
        near = [store.search(batch.keys, batch.next_tokens, neighbors=6) for store in (many, one)]
        assert near[0].similarities == pytest.approx(near[1].similarities, abs=1e-5)


@pytest.mark.parametrize("file", ["index.faiss", "continuations.npy", "directory.safetensors"])
def test_a_damaged_later_segment_is_named(tmp_path, file):
    path = chain(tmp_path, [random_entries(100, seed=at) for at in range(2)])
    damaged = path / "partition-00000-segment-001" / file
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x7f")
    for read in (verify, Datastore.open):
        with pytest.raises(DatastoreError, match=str(damaged)):
            read(path)


def test_a_server_swaps_from_one_segment_to_many(tmp_path):
    """While requests go on: each is answered by a build that had all of its entries."""
    batches = [random_entries(300, seed=at) for at in range(3)]
    path = chain(tmp_path / "work", batches)
    root = tmp_path / "root"
    root.mkdir()
    for name, source in (("old", tmp_path / "work" / "base"), ("new", path)):
        shutil.copytree(source, root / name)
    publish(root, root / "old")
    together = EntryBatch.concatenate(batches)
    key, token = together.keys[-1:], int(together.next_tokens[-1])
    counts = [int((entries.next_tokens == token).sum()) for entries in (batches[0], together)]
    assert counts[0] < counts[1]
    with (
        serving(local_config(root, reload_interval_s=SOON_S)) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        stub, seen = pb_grpc.RetrieverStub(channel), []

        def answered() -> int:
            response = stub.Retrieve(request_for(key, [token], neighbors=1000))
            seen.append(response.trees[0].neighbors)
            return seen[-1]

        assert answered() == counts[0]
        publish(root, root / "new")
        eventually(lambda: answered() == counts[1])
        assert all(before <= after for before, after in pairwise(seen))
        assert set(seen) == set(counts)
