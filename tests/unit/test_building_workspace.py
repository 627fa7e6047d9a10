"""The hidden folder a build works in: published whole, or gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
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


@pytest.mark.parametrize("name", ["store", "s[ab]*?", "store.building-x"])
def test_left_overs_of_a_killed_build_of_the_same_datastore_are_removed(name: str, tmp_path: Path) -> None:
    others = {".other.building-dead", ".sa.building-dead", f".{name}.building-x.building-dead"}
    for left_over in {f".{name}.building-dead", *others}:
        (tmp_path / left_over).mkdir()
        (tmp_path / left_over / "lock").touch()
    with open_workspace(tmp_path / name):
        assert f".{name}.building-dead" not in hidden(tmp_path)
    assert set(hidden(tmp_path)) == others


def half_removed(folder: Path) -> None:
    """As an older version left it when its removal was killed."""
    (folder / "documents").mkdir()


def made_and_forgotten(folder: Path) -> None:
    os.utime(folder, (0, 0))


@pytest.mark.parametrize("leave", [half_removed, made_and_forgotten])
def test_left_overs_without_a_lock_are_removed(leave: Callable[[Path], None], tmp_path: Path) -> None:
    left_over = tmp_path / ".store.building-dead"
    left_over.mkdir()
    leave(left_over)
    with open_workspace(tmp_path / "store"):
        assert not left_over.exists()


def test_a_folder_that_another_build_is_just_making_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".store.building-new").mkdir()
    with open_workspace(tmp_path / "store"):
        assert ".store.building-new" in hidden(tmp_path)


def test_a_second_build_of_the_same_datastore_is_refused(tmp_path: Path) -> None:
    with open_workspace(tmp_path / "store") as first:
        with pytest.raises(BuildError, match="Another build"), open_workspace(tmp_path / "store"):
            pass
        assert first.datastore.is_dir()


def make_link(out: Path) -> None:
    (out.parent / "elsewhere").mkdir()
    out.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (make_link, "symbolic link"),
        (lambda out: out.symlink_to("nowhere"), "symbolic link"),
        (lambda out: out.symlink_to(out.name), "symbolic link"),
        (os.mkfifo, "already there"),
    ],
)
def test_what_a_datastore_cannot_replace_is_refused_at_the_start(
    make: Callable[[Path], None], complaint: str, tmp_path: Path
) -> None:
    make(tmp_path / "store")
    before = {path: path.lstat() for path in tmp_path.iterdir()}
    with pytest.raises(BuildError, match=complaint), open_workspace(tmp_path / "store"):
        pass
    assert {path: path.lstat() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["file/store", "a" * 250, "a" * 300])
def test_a_name_that_cannot_be_made_is_refused_at_the_start(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(BuildError, match="cannot be made"), open_workspace(tmp_path / name):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


OPEN = "import sys; from tests.support.building import open_and_tell; open_and_tell(sys.argv[1])"


@pytest.mark.parametrize("out", [".", "", "./x/..", "../here"])
def test_the_folder_one_is_in_is_refused_at_the_start(out: str, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    assert "the folder you are in" in told([sys.executable, "-c", OPEN, out], cwd=tmp_path / "here")
    assert list((tmp_path / "here").iterdir()) == []


def test_a_mount_point_is_refused_at_the_start(tmp_path: Path) -> None:
    mount = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs small "$0" && exec "$@"', tmp_path]
    if shutil.which("unshare") is None or subprocess.run([*mount, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small file system")
    assert "where a disk is mounted" in told([*map(str, mount), sys.executable, "-c", OPEN, str(tmp_path)])


def told(command: list[str], cwd: Path | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=True).stdout
