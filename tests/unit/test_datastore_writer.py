"""What is written: the same bytes for the same entries, small, and nothing that could poison a datastore."""

from __future__ import annotations

import errno
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from retriever_service.datastore import CODECS, EntryBatch, inspect, write_partition
from tests.support.datastore import build_datastore, random_entries

OPTIONS = {"codec": "flat", "vocab_size": 50, "num_entries_total": 500, "seed": 0}


def content(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("codec", CODECS)
def test_equal_entries_give_equal_bytes(tmp_path, codec):
    entries = random_entries(4000, vocab_size=5)
    options = {"vocab_size": 5, "codec": codec, "num_partitions": 2, "num_entries_total": 100_000}
    one = build_datastore(tmp_path / "one", entries, **options)
    other = build_datastore(tmp_path / "a folder with spaces", entries, **options)
    assert content(one.path) == content(other.path)
    assert one.open().segments[0][0].segment.token_lists.offsets[-1] > 5


def test_only_whole_files_are_left(tmp_path):
    built = build_datastore(tmp_path / "store")
    listed = {*built.manifest.files, "manifest.json"}
    for partition in built.manifest.partitions:
        for segment in partition.segments:
            listed |= {f"{segment.directory}/{name}" for name in segment.files}
    assert set(content(built.path)) == listed


def test_an_entry_costs_at_most_144_bytes(tmp_path):
    entries = random_entries(20_000, dims=64, vocab_size=49_152, continuation_length=16, left_context_length=16)
    built = build_datastore(tmp_path / "store", entries, vocab_size=49_152, codec="sq8")
    assert inspect(built.path).bytes_per_entry <= 144


def test_the_recall_of_a_codec_is_measured(tmp_path):
    entries = random_entries(6000, vocab_size=3, dims=16)
    flat, sq8, pq, sq4 = (
        write_partition(tmp_path / codec, [entries], codec=codec, vocab_size=3, num_entries_total=6000, seed=0).recall
        for codec in ("flat", "sq8", "pq", "sq4")
    )
    assert flat == 1.0
    assert 0.9 < sq8 < 1.0
    assert sq4 < pq < sq8


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("number", [1, 2, 200])
def test_a_codec_of_few_entries_is_trained_on_those_there_are(tmp_path, codec, number):
    entries = random_entries(number, vocab_size=2)
    built = build_datastore(tmp_path / "store", entries, vocab_size=2, codec=codec)
    found = built.open().search(entries.keys, entries.next_tokens, neighbors=1)
    assert found.similarities[:, 0] == pytest.approx(np.ones(number), abs=0.2 if codec == "sq4" else 0.02)


@pytest.mark.parametrize("num_entries_total", [500, 100_000])
def test_however_entries_are_batched_the_bytes_are_the_same(tmp_path, num_entries_total):
    entries = random_entries(5000, vocab_size=5)
    cuts = [0, 0, 1, 700, 4999, 5000]
    batches = (entries.select(np.arange(*pair)) for pair in pairwise(cuts))
    options = {"codec": "sq8", "vocab_size": 5, "num_entries_total": num_entries_total, "seed": 0}
    one = write_partition(tmp_path / "one" / "segment", [entries], **options)
    many = write_partition(tmp_path / "many" / "segment", batches, **options)
    assert one == many
    assert content(tmp_path / "one") == content(tmp_path / "many")


def test_batches_of_other_widths_are_refused_and_leave_nothing(tmp_path):
    batches = [random_entries(5), random_entries(5, continuation_length=7)]
    with pytest.raises(ValueError, match="same widths"):
        write_partition(tmp_path / "segment", batches, **OPTIONS)
    assert not (tmp_path / "segment").exists()


def test_tokens_are_clustered_only_where_both_are_large(tmp_path):
    def lists(entries, total):
        path = tmp_path / f"{len(entries)}-{total}"
        built = build_datastore(path, entries, vocab_size=2, num_entries_total=total)
        return np.diff(built.open().segments[0][0].segment.token_lists.offsets).tolist()

    entries = random_entries(4000, vocab_size=2)
    heavy, light = entries.select(entries.next_tokens == 0), entries.select(entries.next_tokens == 1)
    entries = EntryBatch.concatenate([heavy.select(np.arange(1000)), light.select(np.arange(400))])
    assert lists(entries, 99_999) == [1, 1]
    assert lists(entries, 100_000) == [32, 1]
    assert lists(entries.select(np.arange(1, 1400)), 100_000) == [1, 1]


def test_rows_of_a_token_are_ordered_by_left_context_too(tmp_path):
    built = build_datastore(tmp_path / "store")
    segment = built.open().segments[0][0].segment
    entries = built.open().entries(segment.suffix_order.astype(np.int64))
    assert np.array_equal(entries.next_tokens, np.sort(built.entries.next_tokens))
    contexts = np.where(entries.left_contexts == -1, 10**6, entries.left_contexts).tolist()
    for begin, end in zip(segment.entry_offsets[:-1].tolist(), segment.entry_offsets[1:].tolist(), strict=True):
        assert contexts[begin:end] == sorted(contexts[begin:end])
        assert sorted(segment.suffix_order[begin:end].tolist()) == list(range(begin, end))


def test_a_partition_may_be_empty(tmp_path):
    entries = random_entries(50, vocab_size=2)
    built = build_datastore(tmp_path / "store", entries.select(entries.next_tokens == 0), vocab_size=2)
    none = entries.select(np.zeros(50, np.bool_))
    record = write_partition(tmp_path / "empty", [none], **OPTIONS)
    assert (record.num_entries, record.files) == (0, {})
    assert built.open().num_entries > 0
    nothing = build_datastore(tmp_path / "nothing", none, vocab_size=2, num_partitions=3).open()
    batch = nothing.draft(entries.keys[:1], np.array([0]), neighbors=3, max_nodes=3)
    assert len(batch.trees[0]) == 0
    assert inspect(tmp_path / "nothing").num_entries == 0


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("next_tokens", lambda tokens: tokens + 49, "next_tokens"),
        ("next_tokens", lambda tokens: tokens - 1, "next_tokens"),
        ("continuations", lambda tokens: tokens + 1, "continuations"),
        ("continuations", lambda tokens: tokens[:, ::-1].copy(), "padded at the end"),
        ("left_contexts", lambda tokens: tokens - 1, "left_contexts"),
        ("keys", lambda keys: keys * 2, "normalised"),
        ("keys", lambda keys: np.where(keys == keys.max(), np.float32(np.nan), keys), "finite"),
    ],
)
def test_entries_that_would_poison_a_datastore_are_refused(tmp_path, field, change, message):
    entries = random_entries()
    broken = replace(entries, **{field: change(getattr(entries, field))})
    with pytest.raises(ValueError, match=message):
        write_partition(tmp_path / "segment", [broken], **OPTIONS)
    assert not (tmp_path / "segment").exists()


def test_keys_of_zeros_are_entries_like_others(tmp_path):
    entries = random_entries(100, vocab_size=2)
    zeros = replace(entries, keys=np.zeros_like(entries.keys))
    found = (
        build_datastore(tmp_path / "store", zeros, vocab_size=2)
        .open()
        .search(entries.keys[:1], np.array([0]), neighbors=5)
    )
    assert found.similarities[0].tolist() == [0.0] * 5


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("keys", lambda keys: keys.astype(np.float64)),
        ("keys", lambda keys: keys[1:]),
        ("next_tokens", lambda tokens: tokens.astype(np.int32)),
        ("continuations", lambda tokens: tokens[:, 0]),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(field, change):
    entries = random_entries(20)
    with pytest.raises(ValueError, match="must be"):
        replace(entries, **{field: change(getattr(entries, field))})


def test_an_unknown_codec_is_refused(tmp_path):
    with pytest.raises(ValueError, match="flat, sq8, sq4"):
        write_partition(tmp_path / "segment", [random_entries()], **{**OPTIONS, "codec": "zip"})


def test_a_folder_that_is_there_is_not_written_into(tmp_path):
    (tmp_path / "segment").mkdir()
    with pytest.raises(FileExistsError):
        write_partition(tmp_path / "segment", [random_entries()], **OPTIONS)


# The index is the one file that FAISS writes itself, and FAISS knows no OSError. A limit on file sizes is the nearest
# thing to a full disk that needs no rights; it holds for a process, so in one of its own.
LIMITED = """
import resource, signal, sys
from pathlib import Path
from retriever_service.datastore import write_partition
from tests.support.datastore import random_entries

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_partition(
        Path(sys.argv[1]), [random_entries()], codec="flat", vocab_size=50, num_entries_total=500, seed=0
    )
except OSError as error:
    print(error.errno)
"""


def test_an_index_that_cannot_be_written_is_an_os_error_and_leaves_nothing(tmp_path):
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "segment")]
    root = Path(__file__).parents[2]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=root)
    assert result.stdout.strip() == str(errno.EFBIG), result.stderr
    assert not (tmp_path / "segment").exists()
