"""Pruned datastores: as many entries as asked for, near-duplicates gone first, and the loss told as it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retriever_service.cli import main
from retriever_service.datastore import Datastore, EntryBatch, entries_at, verify
from retriever_service.evolving import Pruned, prune
from tests.support.datastore import BuiltDatastore, build_datastore, random_entries

N = 6
PAD = -1


def pruned(built: BuiltDatastore, out: Path, max_entries: int, **options: object) -> tuple[Pruned, EntryBatch]:
    out.mkdir()
    result = prune(built.path, out, max_entries, **options)
    store = Datastore.open(out)
    return result, entries_at(store, np.arange(store.num_entries))


def key_set(entries: EntryBatch) -> set[tuple[int, bytes, bytes]]:
    rows = zip(entries.next_tokens, np.round(entries.keys, 4), entries.continuations, strict=True)
    return {(int(token), key.tobytes(), path.tobytes()) for token, key, path in rows}


def with_duplicates(originals: int, copies: int) -> EntryBatch:
    """Entries far from each other; the first `copies` of them once more, nearly."""
    random = np.random.default_rng(0)
    keys = np.eye(originals, dtype=np.float32)
    near = keys[:copies] + 0.05 * np.roll(keys[:copies], 1, axis=1)
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    paths = random.integers(0, 40, (originals, N)).astype(np.int32)
    contexts = random.integers(0, 40, (originals + copies, 5)).astype(np.int32)
    both = np.concatenate([np.arange(originals), np.arange(copies)])
    return EntryBatch(np.concatenate([keys, near]), both % 3, paths[both], contexts)


def test_near_duplicates_go_first_and_one_of_each_stays(tmp_path):
    entries = with_duplicates(30, 10)
    built = build_datastore(tmp_path / "store", entries)
    result, left = pruned(built, tmp_path / "pruned", 30, measured=0)
    assert (result.near_duplicates, result.others) == (10, 0)
    # What is left drafts everything that there was.
    paths = {(int(token), path.tobytes()) for token, path in zip(left.next_tokens, left.continuations, strict=True)}
    wanted = zip(entries.next_tokens, entries.continuations, strict=True)
    assert paths == {(int(token), path.tobytes()) for token, path in wanted}


@pytest.mark.parametrize(("similarity", "duplicates"), [(0.999, 0), (0.99, 10)])
def test_the_threshold_is_the_cosine(tmp_path, similarity, duplicates):
    built = build_datastore(tmp_path / "store", with_duplicates(30, 10))
    result, _ = pruned(built, tmp_path / "pruned", 30, similarity=similarity, measured=0)
    assert result.near_duplicates == duplicates
    assert result.near_duplicates + result.others == 10


def test_equal_keys_with_other_continuations_are_no_duplicates(tmp_path):
    entries = with_duplicates(30, 10)
    entries.continuations[30:, -1] = (entries.continuations[30:, -1] + 1) % 40
    result, _ = pruned(build_datastore(tmp_path / "store", entries), tmp_path / "pruned", 30)
    assert result.near_duplicates == 0


@settings(max_examples=20, deadline=None)
@given(
    size=st.integers(1, 300),
    share=st.floats(0.01, 1.2),
    parts=st.integers(1, 3),
    codec=st.sampled_from(["flat", "sq8"]),
    seed=st.integers(0, 99),
)
def test_so_many_entries_are_left_and_none_is_new(tmp_path_factory, size, share, parts, codec, seed):
    folder = tmp_path_factory.mktemp("prune")
    built = build_datastore(folder / "store", random_entries(size, seed=seed), num_partitions=parts, codec=codec)
    wanted = max(1, int(size * share))
    result, left = pruned(built, folder / "pruned", wanted)
    assert result.manifest.num_entries == len(left) == min(size, wanted)
    assert result.near_duplicates + result.others == size - len(left)
    assert verify(folder / "pruned").entries == len(left)
    if codec == "flat":
        assert key_set(left) <= key_set(built.entries)
    assert Datastore.open(folder / "pruned").routing.tokens.tolist() == built.open().routing.tokens.tolist()


def test_pruning_is_deterministic(tmp_path):
    built = build_datastore(tmp_path / "store")
    first, second = (pruned(built, tmp_path / name, 100)[0] for name in ("one", "two"))
    assert first == second.__class__(**{**fields_of(second), "manifest": first.manifest})
    assert first.manifest.build_id == second.manifest.build_id


def fields_of(one: Pruned) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__slots__}


def test_leaving_out_what_others_stand_in_for_beats_leaving_out_at_random(tmp_path):
    """Clusters of like entries of very different sizes: a random half loses small ones whole."""
    random = np.random.default_rng(1)
    sizes = random.zipf(1.5, 120).clip(1, 30)
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    centers = random.normal(size=(len(sizes), 16))
    keys = centers[cluster] + 0.1 * random.normal(size=(len(cluster), 16))
    keys = (keys / np.linalg.norm(keys, axis=1, keepdims=True)).astype(np.float32)
    paths = random.integers(0, 40, (len(sizes), N)).astype(np.int32)[cluster]
    paths[:, -1] = random.integers(0, 40, len(paths))
    contexts = random.integers(0, 40, (len(paths), 5)).astype(np.int32)
    built = build_datastore(tmp_path / "store", EntryBatch(keys, cluster % 5, paths, contexts))
    result, left = pruned(built, tmp_path / "pruned", len(cluster) // 2)
    kept = {path.tobytes() for path in left.continuations[:, : N - 1]}
    everything = {path.tobytes() for path in paths[:, : N - 1]}
    at_random = random.choice(len(paths), len(cluster) // 2, replace=False)
    assert len(kept) > len({path.tobytes() for path in paths[at_random, : N - 1]})
    assert len(kept) > 0.95 * len(everything)
    assert 1.0 <= result.tokens_per_pass <= result.tokens_per_pass_before <= N + 1


def test_what_it_costs_is_measured_without_the_entry_itself(tmp_path):
    # Nobody stands in for anybody, and so no draft of others helps, before or after.
    lonely = build_datastore(tmp_path / "lonely", with_duplicates(30, 0))
    result, _ = pruned(lonely, tmp_path / "one", 15)
    assert result.tokens_per_pass_before < 1.5
    # Two of each, with other tokens before them: all of a continuation is drafted, until one of two is gone.
    pairs = build_datastore(tmp_path / "pairs", with_duplicates(30, 30))
    result, _ = pruned(pairs, tmp_path / "two", 30)
    assert result.tokens_per_pass_before == N + 1
    assert result.tokens_per_pass < N + 1


def test_the_command_says_what_it_costs(tmp_path, capsys):
    built = build_datastore(tmp_path / "store", with_duplicates(30, 10))
    command = ["prune", str(built.path), "--max-entries", "30", "--out"]
    assert main([*command, str(tmp_path / "one"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["entries_before"], summary["entries"]) == (40, 30)
    # Two of the forty have no part in the choice.
    assert 8 <= summary["near_duplicates"] <= summary["near_duplicates"] + summary["others"] == 10
    assert summary["bytes"] < summary["bytes_before"]
    assert main([*command, str(tmp_path / "two")]) == 0
    assert f"30 of 40 entries; left out {summary['near_duplicates']} near-dup" in capsys.readouterr().out
    assert main([*command, str(tmp_path / "two")]) == 1
    assert "already there" in capsys.readouterr().err
