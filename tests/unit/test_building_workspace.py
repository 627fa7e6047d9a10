"""The hidden folder a build works in: published whole, or gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from retriever_service.building.errors import BuildError
from retriever_service.building.workspace import open_workspace


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_what_is_published_appears_and_nothing_else_stays(tmp_path: Path) -> None:
    with open_workspace(tmp_path / "deep" / "store") as workspace:
        (workspace.datastore / "file").write_text("content")
        (workspace.scratch / "spool").mkdir()
        assert not (tmp_path / "deep" / "store").exists()
        workspace.publish()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["store"]
    assert (tmp_path / "deep" / "store" / "file").read_text() == "content"


def test_an_empty_folder_may_be_there_already(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with open_workspace(tmp_path / "store") as workspace:
        (workspace.datastore / "file").write_text("content")
        workspace.publish()
    assert (tmp_path / "store" / "file").exists()


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with open_workspace(tmp_path / "store") as workspace:
            (workspace.datastore / "file").write_text("content")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_something_already_there_is_kept(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "store"
    kept = out if kind == "file" else out / "kept"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("precious")
    with pytest.raises(BuildError, match="already there"), open_workspace(out):
        pass
    assert kept.read_text() == "precious"
    assert hidden(tmp_path) == []


def test_something_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "store"
    with open_workspace(out) as workspace:
        out.mkdir()
        (out / "kept").write_text("precious")
        with pytest.raises(BuildError, match="already there"):
            workspace.publish()
    assert (out / "kept").read_text() == "precious"
    assert hidden(tmp_path) == []


def test_left_overs_of_a_killed_build_of_the_same_datastore_are_removed(tmp_path: Path) -> None:
    for name in (".store.building-dead", ".other.building-dead"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    with open_workspace(tmp_path / "store"):
        assert ".store.building-dead" not in hidden(tmp_path)
    assert hidden(tmp_path) == [".other.building-dead"]


def test_a_second_build_of_the_same_datastore_is_refused(tmp_path: Path) -> None:
    with open_workspace(tmp_path / "store") as first:
        with pytest.raises(BuildError, match="Another build"), open_workspace(tmp_path / "store"):
            pass
        assert first.datastore.is_dir()
