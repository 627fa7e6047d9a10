"""The file of answers: its place is tried before there are answers, and nothing else is ever replaced."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from retriever_service.building.answers import reserved
from retriever_service.building.errors import BuildError

LINES = ['{"prompt": "a?"}', '{"prompt": "grüß?"}']


def written(path: Path, folder: Path) -> None:
    with reserved(path, corpus=[], datastore=folder / "store") as answers:
        answers.write(LINES)


def test_every_answer_is_a_line(tmp_path: Path) -> None:
    written(tmp_path / "answers.jsonl", tmp_path)
    assert (tmp_path / "answers.jsonl").read_text("utf-8").splitlines() == LINES
    assert [path.name for path in tmp_path.iterdir()] == ["answers.jsonl"]


def test_an_older_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text("older")

    def fail() -> None:
        with reserved(path, corpus=[], datastore=tmp_path / "store"):
            assert path.read_text() == "older"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "older"
    assert [path.name for path in tmp_path.iterdir()] == ["answers.jsonl"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_a_link(there: bool, tmp_path: Path) -> None:
    if there:
        (tmp_path / "real.jsonl").write_text("older")
    (tmp_path / "link.jsonl").symlink_to("real.jsonl")
    written(tmp_path / "link.jsonl", tmp_path)
    assert (tmp_path / "link.jsonl").is_symlink()
    assert len((tmp_path / "real.jsonl").read_text("utf-8").splitlines()) == 2


def make_device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")


def make_link_to_device(path: Path) -> None:
    make_device(path.with_name("device"))
    path.symlink_to("device")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (make_device, "a device or a pipe"),
        (make_link_to_device, "a device or a pipe"),
        (os.mkfifo, "a device or a pipe"),
        (Path.mkdir, "is a folder"),
        (lambda path: path.symlink_to(path.name), "leads in a circle"),
    ],
)
def test_what_is_no_file_is_neither_replaced_nor_waited_for(
    make: Callable[[Path], None], complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "answers"
    make(path)
    before = {each: each.lstat() for each in tmp_path.iterdir()}
    with pytest.raises(BuildError, match=complaint):
        written(path, tmp_path)
    assert {each: each.lstat() for each in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nowhere/answers", "nowhere' is no folder"),
        ("file/answers", "file' is no folder"),
        ("corpus.jsonl", "corpus.jsonl' is in the corpus"),
        ("store/x", "where --out makes the datastore"),
        ("a" * 300, "File name too long"),
    ],
)
def test_a_place_that_cannot_be_written_or_must_not_be_is_refused(name: str, complaint: str, tmp_path: Path) -> None:
    for file in ("file", "corpus.jsonl"):
        (tmp_path / file).write_text("precious")
    (tmp_path / "store").mkdir()
    with (
        pytest.raises(BuildError, match=complaint),
        reserved(tmp_path / name, corpus=[tmp_path / "corpus.jsonl"], datastore=tmp_path / "store"),
    ):
        pass
    assert (tmp_path / "corpus.jsonl").read_text() == "precious"
    assert list((tmp_path / "store").iterdir()) == []
