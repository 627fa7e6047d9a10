"""Roots: what `CURRENT` may say, and how a build is published."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retriever_service.cli import main
from retriever_service.datastore import (
    CURRENT_FILE,
    MANIFEST_FILE,
    DatastoreError,
    current_build,
    current_mark,
    publish,
    read_manifest,
)
from tests.support.serving import IDENTITY, servable_datastore


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    servable_datastore(root / "one", build_id="build-1")
    servable_datastore(root / "two", build_id="build-2", seed=1)
    servable_datastore(root / "other", build_id="build-3", model=replace(IDENTITY, tokenizer_hash="88" * 32))
    return root


def test_a_builds_folder_is_the_one_to_serve(root: Path):
    assert current_build(root / "one") == root / "one"
    assert current_mark(root / "one") is None


def test_what_is_published_is_current_until_something_else_is(root: Path):
    marks = set()
    for name in ("one", "two", "one"):
        manifest = publish(root, root / name)
        assert current_build(root) == root / name
        assert read_manifest(root / name) == manifest
        assert (root / CURRENT_FILE).read_text() == f"{name}\n"
        marks.add(current_mark(root))
    assert len(marks) == 3


def test_a_current_that_is_written_by_hand_needs_no_line_end(root: Path):
    (root / CURRENT_FILE).write_bytes(b"two")
    assert current_build(root) == root / "two"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no name of a folder"),
        (b"\n", "no name of a folder"),
        (b"three", "no such folder"),
        (b"two\n\n", "no name of a folder"),
        (b"two\none", "no name of a folder"),
        (b"..", "no name of a folder"),
        (b".", "no name of a folder"),
        (b"../root/two", "no name of a folder"),
        (b"two/", "no name of a folder"),
        (b"/", "no name of a folder"),
        (b"two\0", "no name of a folder"),
        (b"\xff\xfe", "no name of a folder"),
        (b"\x1b[2Jtwo", "no name of a folder"),
        (b"x" * 255, "no such folder"),
        (b"x" * 256, "no name of a folder"),
        (b"x" * 10_000_000, "no name of a folder"),
        (MANIFEST_FILE.encode(), "no such folder"),
        (CURRENT_FILE.encode(), "no such folder"),
    ],
)
def test_a_current_that_names_no_build_is_refused_in_one_short_sentence(tmp_path: Path, content: bytes, says: str):
    (tmp_path / CURRENT_FILE).write_bytes(content)
    with pytest.raises(DatastoreError, match=says) as refused:
        current_build(tmp_path)
    assert len(str(refused.value)) < 1000
    assert str(refused.value).isprintable()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.binary(max_size=300))
def test_whatever_it_says_leads_into_the_root_or_nowhere(tmp_path: Path, content: bytes):
    (tmp_path / CURRENT_FILE).write_bytes(content)
    (tmp_path / "a").mkdir(exist_ok=True)
    with contextlib.suppress(DatastoreError):
        assert current_build(tmp_path).parent == tmp_path


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), os.mkfifo])
def test_a_current_that_is_no_file_is_refused_without_waiting(tmp_path: Path, make: Callable[[Path], None]):
    make(tmp_path / CURRENT_FILE)
    with pytest.raises(DatastoreError, match="is not a file"):
        current_build(tmp_path)


def test_a_folder_with_neither_is_no_datastore(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", str(tmp_path)]) == 1
    assert MANIFEST_FILE in capsys.readouterr().err


def test_inspect_and_verify_look_at_the_current_build(root: Path, capsys: pytest.CaptureFixture[str]):
    publish(root, root / "two")
    assert main(["inspect", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(root / "two")
    assert main(["verify", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(root / "two")


def spoil(build: Path) -> None:
    victim = max((path for path in build.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 0xFF
    victim.write_bytes(content)


def refused_by_publish(root: Path, build: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The one sentence of a publishing that changes nothing."""
    before = (root / CURRENT_FILE).read_bytes() if (root / CURRENT_FILE).exists() else None
    assert main(["publish", str(root), str(build), *options]) == 1
    output, errors = capsys.readouterr()
    assert output == ""
    assert len(errors.splitlines()) == 1
    assert errors.startswith("error: ")
    assert ((root / CURRENT_FILE).read_bytes() if before is not None else None) == before
    assert before is not None or not (root / CURRENT_FILE).exists()
    return errors


def test_a_spoilt_build_is_not_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    servable_datastore(tmp_path / "good")
    servable_datastore(tmp_path / "bad")
    spoil(tmp_path / "bad")
    publish(tmp_path, tmp_path / "good")
    assert "is corrupt" in refused_by_publish(tmp_path, tmp_path / "bad", capsys)


def test_a_build_elsewhere_is_not_published(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert "does not lie in" in refused_by_publish(tmp_path, root / "one", capsys)
    assert "does not lie in" in refused_by_publish(root, root, capsys)
    assert "does not lie in" in refused_by_publish(root, root / "one" / "..", capsys)
    assert "is a build itself" in refused_by_publish(root / "one", root / "one" / "x", capsys)
    assert "cannot be read" in refused_by_publish(tmp_path / "nowhere", tmp_path / "nowhere" / "x", capsys)
    assert "is not a folder" in refused_by_publish(tmp_path, tmp_path / "x", capsys)


def test_a_name_that_current_cannot_hold_is_not_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a\nb").mkdir()
    assert "Rename" in refused_by_publish(tmp_path, tmp_path / "a\nb", capsys)


def test_a_build_of_another_model_is_published_only_when_asked(root: Path, capsys: pytest.CaptureFixture[str]):
    publish(root, root / "one")
    said = refused_by_publish(root, root / "other", capsys)
    assert "tokenizer_hash" in said
    assert "88" * 32 in said
    assert main(["publish", str(root), str(root / "other"), "--allow-other-model"]) == 0
    assert "build-3" in capsys.readouterr().out
    assert current_build(root) == root / "other"
    publish(root, root / "one", allow_other_model=True)


def test_a_current_that_leads_nowhere_does_not_stop_the_next_publishing(root: Path):
    (root / CURRENT_FILE).write_bytes(b"\xff")
    publish(root, root / "one")
    assert current_build(root) == root / "one"
