"""Whatever is done to a datastore's folder, `verify` tells: a byte, a file, a name; what means nothing, as such."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retriever_service.cli import main
from retriever_service.datastore import DatastoreError, read_manifest, verify
from tests.support.datastore import build_datastore, random_entries


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """Two partitions, every file there can be."""
    path = tmp_path_factory.mktemp("intact") / "store"
    return build_datastore(path, random_entries(60), num_partitions=2, codec="sq8", num_entries_total=100_000).path


@pytest.fixture
def copy(intact, tmp_path):
    return shutil.copytree(intact, tmp_path / "copy")


def told(path: Path) -> tuple[str, list[str]]:
    """Why `verify` refuses, "" if it does not, and what it notes."""
    try:
        return "", verify(path, sample=0).notes
    except DatastoreError as error:
        return str(error), []


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


@settings(max_examples=400, deadline=None)
@given(chosen=st.floats(0, 1, exclude_max=True), at=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
@example(chosen=0.0, at=0.0, mask=1)
@example(chosen=0.999, at=0.999, mask=128)
def test_a_byte_of_any_file_that_is_another_is_told(intact, chosen, at, mask):
    files = files_of(intact)
    file = files[int(chosen * len(files))]
    content = file.read_bytes()
    place = int(at * len(content))
    try:
        file.write_bytes(content[:place] + bytes([content[place] ^ mask]) + content[place + 1 :])
        refused, notes = told(intact)
        if refused:
            assert str(file) in refused
        else:
            # Only the manifest has bytes without meaning: it says the same, and that it is laid out otherwise is told.
            assert file.name == "manifest.json"
            assert len(notes) == 1
            assert json.loads(file.read_bytes()) == json.loads(content)
    finally:
        file.write_bytes(content)
    assert verify(intact, sample=0).notes == []


@settings(max_examples=60, deadline=None)
@given(chosen=st.floats(0, 1, exclude_max=True), share=st.floats(0, 1, exclude_max=True), more=st.binary(max_size=3))
def test_a_file_that_is_cut_or_grown_is_told(intact, chosen, share, more):
    files = files_of(intact)
    file = files[int(chosen * len(files))]
    content = file.read_bytes()
    changed = content + more if more else content[: int(share * len(content))]
    try:
        file.write_bytes(changed)
        refused, notes = told(intact)
        if refused:
            assert str(file) in refused
        elif changed != content:
            assert notes
            assert json.loads(changed) == json.loads(content)
    finally:
        file.write_bytes(content)


def test_every_missing_file_is_told(intact, tmp_path):
    for at, file in enumerate(files_of(intact)):
        copy = shutil.copytree(intact, tmp_path / str(at))
        gone = copy / file.relative_to(intact)
        gone.unlink()
        with pytest.raises(DatastoreError) as caught:
            verify(copy)
        assert gone.name in str(caught.value)


def test_files_in_each_others_place_are_told(intact, tmp_path):
    copy = shutil.copytree(intact, tmp_path / "copy")
    aside = tmp_path / "aside"
    for one, other in combinations(files_of(copy), 2):
        if one.read_bytes() == other.read_bytes():
            continue
        for pair in ((one, aside), (other, one), (aside, other)):
            pair[0].rename(pair[1])
        with pytest.raises(DatastoreError):
            verify(copy, sample=0)
        for pair in ((one, aside), (other, one), (aside, other)):
            pair[0].rename(pair[1])
    assert verify(copy).entries == 60


def test_another_builds_manifest_is_told(copy, tmp_path):
    other = build_datastore(tmp_path / "other", random_entries(60, seed=1), num_partitions=2, codec="sq8").path
    shutil.copy(other / "manifest.json", copy / "manifest.json")
    with pytest.raises(DatastoreError, match=r"sha256|bytes instead"):
        verify(copy)


def a_folder_with_a_file(path: Path) -> None:
    path.mkdir()
    (path / "file").touch()


MORE: dict[str, Callable[[Path], object]] = {
    "file": Path.touch,
    "folder": a_folder_with_a_file,
    "link": lambda path: path.symlink_to(path.parent / "manifest.json"),
    "link to a folder": lambda path: path.symlink_to(path.parent, target_is_directory=True),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("kind", MORE)
@pytest.mark.parametrize("folder", [".", "partition-00001-segment-000"])
@pytest.mark.parametrize("name", ["more.bin", ".manifest.json.partial", "partition-00009-segment-000", "a\nname"])
def test_what_does_not_belong_is_told(copy, kind, folder, name, capsys):
    MORE[kind](copy / folder / name)
    assert main(["verify", str(copy)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "does not belong to the datastore" in line
    assert name.replace("\n", "\\n") in line
    assert "move it out" in line


def test_empty_folders_and_a_linked_segment_are_no_fault(copy, tmp_path):
    # A partition without entries leaves the one; whoever spreads a datastore over disks makes the other.
    (copy / "partition-00007-segment-000").mkdir()
    (copy / "partition-00001-segment-000").rename(tmp_path / "elsewhere")
    (copy / "partition-00001-segment-000").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert verify(copy).notes == []


def test_a_manifest_written_by_another_hand_is_noted(copy, capsys):
    file = copy / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text())))
    assert read_manifest(copy)
    assert main(["verify", str(copy)]) == 0
    assert "note: manifest.json says what was written" in capsys.readouterr().out
    assert main(["verify", str(copy), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["notes"]) == 1
