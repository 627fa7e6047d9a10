"""Joined datastores: what is found in one is what an exact search over the entries of all finds."""

from __future__ import annotations

import gc
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dresd.draft_tree import PAD
from dresd.identity import ModelIdentity
from retriever_service.cli import main
from retriever_service.datastore import (
    CODECS,
    Datastore,
    DatastoreError,
    EntryBatch,
    TokenTableBuilder,
    entries_at,
    read_manifest,
    tune,
    verify,
)
from retriever_service.evolving import merge
from tests.support.datastore import BuiltDatastore, build_datastore, edit_manifest, random_entries


def merged(folder: Path, *sources: BuiltDatastore, **options: object) -> Datastore:
    folder.mkdir()
    merge([source.path for source in sources], folder, **options)
    return Datastore.open(folder)


def similarities(entries: EntryBatch, key: np.ndarray, next_token: int, neighbors: int) -> np.ndarray:
    mine = entries.keys[entries.next_tokens == next_token]
    return np.sort(mine @ key)[::-1][:neighbors]


def lines(entries: EntryBatch) -> list[tuple[object, ...]]:
    """Entries as values that can be sorted and compared."""
    rows = zip(entries.next_tokens, entries.continuations, entries.left_contexts, entries.keys, strict=True)
    return sorted((int(t), c.tolist(), x.tolist(), np.round(k, 3).tolist()) for t, c, x, k in rows)


def all_entries(store: Datastore) -> EntryBatch:
    return entries_at(store, np.arange(store.num_entries))


def test_one_datastore_of_one_partition_comes_out_as_it_went_in(tmp_path):
    built = build_datastore(tmp_path / "one")
    again = merged(tmp_path / "again", built)
    assert again.manifest.made_from[0].build_id == "test-build"
    for name, record in built.manifest.partitions[0].segments[0].files.items():
        assert again.manifest.partitions[0].segments[0].files[name] == record
    assert again.token_table_bytes == built.open().token_table_bytes
    assert again.manifest.corpus == built.manifest.corpus


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 120), min_size=1, max_size=3),
    parts=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    wanted=st.none() | st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_every_entry_is_in_the_merged_one_once_and_is_found(tmp_path_factory, sizes, parts, wanted, seed):
    folder = tmp_path_factory.mktemp("merge")
    same = build_datastore(folder / "reducer").manifest  # all have one reducer, of seed 0
    sources = [
        build_datastore(
            folder / str(at), random_entries(size, seed=seed + at), num_partitions=part, build_id=f"source-{at}"
        )
        for at, (size, part) in enumerate(zip(sizes, parts, strict=False))
    ]
    assert all(source.manifest.key_recipe == same.key_recipe for source in sources)
    store = merged(folder / "merged", *sources, partitions=wanted)
    together = EntryBatch.concatenate([source.entries for source in sources])
    assert lines(all_entries(store)) == lines(together)
    assert len(store.manifest.partitions) == (wanted or max(parts[: len(sizes)]))
    assert verify(folder / "merged").entries == sum(sizes)
    near = store.search(together.keys, together.next_tokens, neighbors=7)
    for query in range(len(together)):
        expected = similarities(together, together.keys[query], together.next_tokens[query], 7)
        assert near.similarities[query][: len(expected)] == pytest.approx(expected, abs=1e-5)
        assert near.counts[query] == len(expected)


def test_merging_is_deterministic_and_knows_its_sources(tmp_path):
    sources = [build_datastore(tmp_path / name, seed=0, build_id=name) for name in ("one", "two")]
    first, second = (merged(tmp_path / name, *sources, codec="sq8") for name in ("first", "second"))
    assert first.manifest.build_id == second.manifest.build_id
    assert [(source.build_id, source.num_entries) for source in first.manifest.made_from] == [
        ("one", 500),
        ("two", 500),
    ]
    assert first.manifest.corpus.documents == 2


@pytest.mark.parametrize("codec", CODECS)
def test_keys_of_zeros_and_of_every_codec_survive(tmp_path, codec):
    entries = random_entries(400, dims=16)
    entries.keys[:5] = 0
    store = merged(tmp_path / "merged", build_datastore(tmp_path / "one", entries, codec=codec))
    keys = all_entries(store).keys
    lengths = np.linalg.norm(keys, axis=1)
    assert np.all((np.abs(lengths - 1) < 1e-3) | (lengths == 0))
    # A quantiser may have no code near zero; those that have one keep such a key.
    if codec in ("flat", "sq8", "pq"):
        assert int((lengths == 0).sum()) == 5
    near = store.search(entries.keys[5:], entries.next_tokens[5:], neighbors=1)
    assert np.median(near.similarities) > 0.95


def test_large_datastores_are_clustered_and_tuned_again(tmp_path):
    entries = random_entries(6000, dims=16, vocab_size=3)
    source = build_datastore(tmp_path / "one", entries, vocab_size=3, codec="flat", num_entries_total=100_000)
    store = merged(tmp_path / "merged", source)
    # Under 100,000 entries search is exact, whatever its sources were.
    assert store.manifest.nprobe == 0
    assert store.manifest.tuning is None
    assert tune(tmp_path / "merged") == store.manifest


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"reducer": None, "seed": 1}, "reducer_hash: "),
        ({"model": ModelIdentity("tiny", "", "00" * 32, "cd" * 32, 12, 50)}, f"{'ab' * 32!r} against {'00' * 32!r}"),
        ({"model": ModelIdentity("tiny", "", "ab" * 32, "00" * 32, 12, 50)}, "tokenizer_hash"),
        ({"entries": random_entries(dims=4)}, "dims: 8 against 4"),
        ({"entries": random_entries(continuation_length=7)}, "continuation_length: 6 against 7"),
        ({"entries": random_entries(left_context_length=9)}, "left_context_length: 5 against 9"),
        ({"vocab_size": 60}, "vocab_size: 50 against 60"),
    ],
)
def test_datastores_of_other_keys_are_refused_with_both_values(tmp_path, change, named, capsys):
    one = build_datastore(tmp_path / "one")
    other = build_datastore(tmp_path / "other", **change)
    assert main(["merge", str(one.path), str(other.path), "--out", str(tmp_path / "merged")]) == 1
    captured = capsys.readouterr()
    assert named in captured.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]


def test_other_codecs_need_a_choice(tmp_path):
    one, other = build_datastore(tmp_path / "one"), build_datastore(tmp_path / "other", codec="sq8")
    with pytest.raises(DatastoreError, match=r"codecs flat and sq8.*--codec"):
        merged(tmp_path / "none", one, other)
    assert merged(tmp_path / "merged", one, other, codec="sq8").manifest.codec == "sq8"


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_damaged_source_is_refused_and_nothing_is_written(tmp_path, damage, capsys):
    one, other = (build_datastore(tmp_path / name) for name in ("one", "other"))
    file = other.path / "partition-00000-segment-000" / "continuations.npy"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1] + b"\0")
    assert main(["merge", str(one.path), str(other.path), "--out", str(tmp_path / "merged")]) == 1
    assert str(file) in capsys.readouterr().err
    assert not (tmp_path / "merged").exists()


def test_the_command_merges_the_current_build_of_a_root_and_names_no_folders(tmp_path, capsys, monkeypatch):
    root = tmp_path / "root"
    build_datastore(root / "a", build_id="old")
    shutil.copytree(root / "a", root / "b")
    edit_manifest(root / "b", lambda manifest: manifest.update(build_id="new"))
    assert main(["publish", str(root), str(root / "b")]) == 0
    other = build_datastore(tmp_path / "other", build_id="other")
    command = ["merge", str(root), str(other.path), "--out", str(tmp_path / "merged"), "--json"]
    monkeypatch.setattr(sys, "argv", ["dresd-retriever", *command])
    capsys.readouterr()
    assert main(command) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [source["build_id"] for source in summary["sources"]] == ["new", "other"]
    assert summary["entries"] == 1000
    manifest = read_manifest(tmp_path / "merged")
    assert manifest.command == "dresd-retriever merge root other --out merged --json"
    assert main(["inspect", str(tmp_path / "merged")]) == 0
    assert "made from  new: 500 entries" in capsys.readouterr().out


def test_the_token_tables_are_averaged_by_what_they_were_seen_in(tmp_path):
    """Against a table that is built of all positions at once, where eight tokens are enough for each."""
    random = np.random.default_rng(0)
    built, together = [], TokenTableBuilder()
    for at, size in enumerate((40, 400)):
        entries = random_entries(size, seed=at)
        source = build_datastore(tmp_path / str(at), entries)
        tables = TokenTableBuilder()
        previous, current = entries.left_contexts[:, 1].astype(np.int64), entries.left_contexts[:, 0].astype(np.int64)
        probabilities = random.dirichlet(np.ones(4), size).astype(np.float32)
        next_tokens = np.tile(np.arange(4), (size, 1))
        for builder in (tables, together):
            builder.add(previous, current, next_tokens, probabilities)
        replace_table(source.path, tables)
        built.append(source)
    store = merged(tmp_path / "merged", *built)
    expected = together.build()
    found, chances, _ = store.token_table.lookup(np.full(4, PAD), np.arange(4))
    wanted, likely, _ = expected.lookup(np.full(4, PAD), np.arange(4))
    for row in range(4):
        mine = dict(zip(found[row].tolist(), chances[row].tolist(), strict=True))
        for token, chance in zip(wanted[row].tolist(), likely[row].tolist(), strict=True):
            assert mine.get(token, 0.0) == pytest.approx(chance, abs=2e-3)
    # A pair seen once in each of two datastores is in neither table, and so not in the merged one.
    assert set(store.token_table.pairs.tolist()) <= set(expected.pairs.tolist())
    assert len(store.token_table.pairs) > 0.8 * len(expected.pairs)


def replace_table(path: Path, builder: TokenTableBuilder) -> None:
    from retriever_service.datastore import TOKEN_TABLE_FILE, FileRecord, save_token_table

    save_token_table(path / TOKEN_TABLE_FILE, builder.build())
    record = FileRecord.of(path / TOKEN_TABLE_FILE).model_dump()
    edit_manifest(path, lambda manifest: manifest["files"].update({TOKEN_TABLE_FILE: record}))


def test_entries_are_held_a_batch_at_a_time(tmp_path):
    sources = [build_datastore(tmp_path / str(at), random_entries(60, seed=at)) for at in range(6)]
    held: list[int] = []

    def count(_more: int) -> None:
        held.append(sum(type(one) is EntryBatch for one in gc.get_objects()))

    before = sum(type(one) is EntryBatch for one in gc.get_objects())
    (tmp_path / "merged").mkdir()
    merge([source.path for source in sources], tmp_path / "merged", on_entries=count)
    assert len(held) == 6
    assert max(held) <= before + 1
