"""Datastores that are broken, incomplete or of another time: refused by name, never crashed on."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys

import faiss
import numpy as np
import pytest

from retriever_service.datastore import (
    CODECS,
    Datastore,
    DatastoreError,
    FileRecord,
    assign_tokens,
    save_routing,
    verify,
)
from tests.support.datastore import build_datastore, edit_manifest

FILES = [
    "reducer.safetensors",
    "routing.safetensors",
    "token_table.safetensors",
    *(
        f"partition-00001-segment-000/{name}"
        for name in (
            "index.faiss", "directory.safetensors", "centroids.npy", "continuations.npy", "left_contexts.npy",
            "suffix_order.npy", "held_out.safetensors",
        )
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    return build_datastore(
        tmp_path_factory.mktemp("intact") / "store", num_partitions=2, codec="sq8", num_entries_total=100_000
    )


@pytest.fixture
def copy(intact, tmp_path):
    return shutil.copytree(intact.path, tmp_path / "copy")


def truncate(file):
    file.write_bytes(file.read_bytes()[:-1])


def grow(file):
    file.write_bytes(file.read_bytes() + b"\0")


def flip_first(file):
    content = bytearray(file.read_bytes())
    content[0] ^= 0x40
    file.write_bytes(content)


def flip_last(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x01
    file.write_bytes(content)


def empty(file):
    file.write_bytes(b"")


def remove(file):
    file.unlink()


def replace_by_folder(file):
    file.unlink()
    file.mkdir()


DAMAGES = [truncate, grow, flip_first, flip_last, empty, remove, replace_by_folder]


def test_the_list_of_files_is_complete(intact):
    found = {
        str(file.relative_to(intact.path))
        for file in intact.path.rglob("*")
        if file.is_file() and "00000" not in str(file.relative_to(intact.path))
    }
    assert found == {*FILES, "manifest.json"}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_on_opening(copy, file, damage):
    damage(copy / file)
    with pytest.raises(DatastoreError) as caught:
        Datastore.open(copy)
    assert str(copy / file) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", [truncate, grow, empty, remove])
def test_sizes_are_compared_even_without_checksums(copy, file, damage):
    damage(copy / file)
    with pytest.raises(DatastoreError) as caught:
        Datastore.open(copy, verify_checksums=False)
    assert str(copy / file) in caught.value.message


def test_a_partition_that_is_not_served_may_be_absent(copy):
    shutil.rmtree(copy / "partition-00001-segment-000")
    assert Datastore.open(copy, partitions=[0]).served_partitions == (0,)
    with pytest.raises(DatastoreError, match="partition-00001-segment-000"):
        Datastore.open(copy, partitions=[0, 1])


def test_verify_names_every_damaged_file(copy):
    for file in FILES:
        flip_last(copy / file)
    with pytest.raises(DatastoreError) as caught:
        verify(copy)
    assert all(str(copy / file) in caught.value.message for file in FILES)
    assert "partition-00000" not in caught.value.message


@pytest.mark.parametrize("partitions", [[], [2], [-1], [0, 5]])
def test_partitions_that_are_not_there_are_refused(intact, partitions):
    with pytest.raises(DatastoreError, match="partitions 0 to 1"):
        Datastore.open(intact.path, partitions=partitions)


@pytest.mark.parametrize("change", ["replaced", "deleted", "renamed"])
def test_what_becomes_of_an_open_datastores_names_does_not_matter(copy, change):
    keys, next_tokens = np.eye(8, dtype=np.float32), np.arange(8)
    store = Datastore.open(copy)
    expected = Datastore.open(copy).draft(keys, next_tokens, neighbors=20, max_nodes=20)
    if change == "renamed":
        copy.rename(copy.with_name("other"))
    for file in copy.rglob("*"):
        if file.is_file() and change == "replaced":
            beside = file.with_name("new")
            beside.write_bytes(b"x")
            beside.replace(file)
        elif file.is_file():
            file.unlink()
    drafts = store.draft(keys, next_tokens, neighbors=20, max_nodes=20)
    assert [tree.tokens.tolist() for tree in drafts.trees] == [tree.tokens.tolist() for tree in expected.trees]


# Flipped bits in whatever steers reading, with checksums off: any outcome but a crash. In a process of its own, for
# a crash would take the tests with it.
FUZZ = """
import sys
from pathlib import Path
import numpy as np
from retriever_service.datastore import Datastore, DatastoreError

folder, refused = Path(sys.argv[1]), 0
random = np.random.default_rng(0)
file = folder / sys.argv[2]
content = file.read_bytes()
for turn in range(150):
    broken = bytearray(content)
    # Half the flips in the first bytes, where FAISS keeps its sizes.
    at = int(random.integers(min(len(broken), 400) if turn % 2 else len(broken)))
    broken[at] ^= 1 << int(random.integers(8))
    file.write_bytes(broken)
    try:
        store = Datastore.open(folder, verify_checksums=False)
        store.draft(np.eye(8, dtype=np.float32), np.arange(8), neighbors=20, max_nodes=20)
    except DatastoreError as error:
        refused += 1
        assert str(file) in error.message or "segment" in error.message, error
print(refused)
"""


@pytest.mark.parametrize("file", FILES)
def test_flipped_bits_never_crash_even_without_checksums(copy, file):
    result = subprocess.run([sys.executable, "-c", FUZZ, str(copy), file], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-2000:]


def test_the_fuzz_meets_files_that_are_refused(copy):
    file = "partition-00001-segment-000/directory.safetensors"
    result = subprocess.run([sys.executable, "-c", FUZZ, str(copy), file], capture_output=True, text=True, timeout=120)
    assert int(result.stdout) > 50


# VmHWM, because the peak that getrusage gives includes that of the process that started this one.
MEASURED = """
import sys
from pathlib import Path
from retriever_service.datastore import Datastore, DatastoreError

try:
    Datastore.open(sys.argv[1], verify_checksums=False)
except DatastoreError:
    pass
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(status["VmHWM"].split()[0])
"""


def test_a_damaged_size_in_the_index_does_not_take_all_memory(intact, copy):
    file = copy / "partition-00001-segment-000/index.faiss"
    content = file.read_bytes()
    lists = int(intact.open(partitions=[1]).segments[1][0].segment.token_lists.offsets[-1])
    number, huge = struct.pack("<Q", lists), struct.pack("<Q", 2**27)
    places = [at for at in range(300) if content[at : at + 8] == number]
    assert len(places) >= 2  # once for the index, once for its lists
    for at in places:
        file.write_bytes(content[:at] + huge + content[at + 8 :])
        command = [sys.executable, "-c", MEASURED, str(copy)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert int(result.stdout) < 1_000_000, result.stderr  # kilobytes


def test_lists_of_other_sizes_than_the_directory_says_are_refused(intact, copy):
    """Two lists with their sizes exchanged: the file is as long as before, but rows would belong to other tokens."""
    file = copy / "partition-00001-segment-000/index.faiss"
    content = file.read_bytes()
    sizes = np.diff(intact.open(partitions=[1]).segments[1][0].segment.entry_offsets)
    other = int(np.flatnonzero(sizes != sizes[0])[0])
    exchanged = sizes.copy()
    exchanged[[0, other]] = exchanged[[other, 0]]
    assert content.count(sizes.tobytes()) == 1
    file.write_bytes(content.replace(sizes.tobytes(), exchanged.tobytes()))
    with pytest.raises(DatastoreError, match=r"index\.faiss does not hold the entries"):
        Datastore.open(copy, verify_checksums=False)


@pytest.mark.parametrize("codec", CODECS)
def test_an_index_that_says_it_is_untrained_is_refused(tmp_path, codec):
    built = build_datastore(tmp_path / "store", codec=codec)
    file = built.path / "partition-00000-segment-000/index.faiss"
    index = faiss.read_index(str(file))
    index.is_trained = False
    faiss.write_index(index, str(file))
    with pytest.raises(DatastoreError, match=r"index\.faiss is not (a readable index|an index as)"):
        Datastore.open(built.path, verify_checksums=False)


def test_verify_counts_what_is_there(intact):
    report = verify(intact.path, sample=100)
    assert (report.partitions, report.entries, report.sampled) == (2, 500, 100)
    assert report.files == 3 + 2 * 7
    assert report.self_recall == 1.0
    assert verify(intact.path, sample=0).self_recall is None


@pytest.mark.parametrize(
    ("file", "break_rows"),
    [
        ("continuations.npy", lambda rows: np.full_like(rows, 60)),
        ("continuations.npy", lambda rows: rows[:, ::-1].copy()),
        ("left_contexts.npy", lambda rows: np.full_like(rows, 50)),
        ("suffix_order.npy", lambda rows: rows[::-1].copy()),
        ("suffix_order.npy", lambda rows: np.zeros_like(rows)),
        ("suffix_order.npy", lambda rows: rows + 1),
        ("suffix_order.npy", lambda rows: np.arange(len(rows), dtype=rows.dtype)),
    ],
)
def test_verify_finds_content_that_no_build_writes(copy, file, break_rows):
    """A file that is as it was written may still have been written wrong."""
    path = copy / "partition-00001-segment-000" / file
    np.save(path, break_rows(np.load(path)))
    record = FileRecord.of(path).model_dump()
    edit_manifest(copy, lambda manifest: manifest["partitions"][1]["segments"][0]["files"].update({file: record}))
    with pytest.raises(DatastoreError) as caught:
        verify(copy)
    assert str(path) in caught.value.message


def test_verify_finds_entries_that_queries_are_led_away_from(copy):
    save_routing(assign_tokens(np.array([1] * 50), 2), copy / "routing.safetensors")
    record = FileRecord.of(copy / "routing.safetensors").model_dump()
    edit_manifest(copy, lambda manifest: manifest["files"].update({"routing.safetensors": record}))
    with pytest.raises(DatastoreError, match="routing table"):
        verify(copy)
