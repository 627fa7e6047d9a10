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
from retriever_service.building.workspace import Job, Workspace, open_workspace


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


JOB = {"corpus": [["a.jsonl", 3, "0" * 64]], "--dims": 8}
OTHERS = [
    ({**JOB, "--dims": 16}, "its --dims was 8, and is 16 now"),
    ({**JOB, "corpus": [["a.jsonl", 3, "1" * 64]]}, "its corpus was another .'a.jsonl'"),
    ({**JOB, "corpus": [["b.jsonl", 3, "0" * 64]]}, "its corpus was another .'b.jsonl' is there now, where 'a.jsonl'"),
    ({**JOB, "corpus": [*JOB["corpus"], ["b.jsonl", 1, "0" * 64]]}, "of 1 files, and has 2 now"),
]


def costly(_folder: Path) -> bool:
    return True


def cheap(_folder: Path) -> bool:
    return False


def opened(workspace: Workspace, job: Job = JOB, *, restart: bool = False) -> Path:
    return workspace.open_job(job, restart=restart, is_costly=costly)[0]


def commit_something(folder: Path) -> Path:
    (folder / "ingest").mkdir(exist_ok=True)
    path = folder / "ingest" / "0.block"
    path.write_text("work")
    return path


def interrupted(out: Path, job: Job = JOB) -> Path:
    """What a build leaves that was stopped: a block, as it is there still."""

    def stop() -> None:
        with open_workspace(out) as workspace:
            paths.append(commit_something(opened(workspace, job)))
            raise KeyboardInterrupt

    paths: list[Path] = []
    with pytest.raises(KeyboardInterrupt):
        stop()
    return paths[0]


def test_what_is_published_appears_and_nothing_else_stays(tmp_path: Path) -> None:
    with open_workspace(tmp_path / "deep" / "store") as workspace:
        folder = opened(workspace)
        commit_something(folder)
        (folder / "datastore").mkdir()
        (folder / "datastore" / "file").write_text("content")
        assert not (tmp_path / "deep" / "store").exists()
        workspace.publish(folder / "datastore")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["store"]
    assert (tmp_path / "deep" / "store" / "file").read_text() == "content"


def test_an_empty_folder_may_be_there_already(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with open_workspace(tmp_path / "store") as workspace:
        made = opened(workspace) / "datastore"
        made.mkdir()
        (made / "file").write_text("content")
        workspace.publish(made)
    assert (tmp_path / "store" / "file").exists()


def test_a_failed_build_without_work_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with open_workspace(tmp_path / "store") as workspace:
            opened(workspace)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_the_same_job_goes_on_with_its_work(tmp_path: Path) -> None:
    block = interrupted(tmp_path / "store")
    with open_workspace(tmp_path / "store") as workspace:
        folder, goes_on = workspace.open_job(dict(reversed(JOB.items())), restart=False, is_costly=cheap)
        assert goes_on
        assert block.read_text() == "work"
        assert block.is_relative_to(folder)
        workspace.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("other", "difference"), OTHERS)
def test_another_job_is_told_what_differs_and_destroys_no_costly_work(
    other: Job, difference: str, tmp_path: Path
) -> None:
    block = interrupted(tmp_path / "store")
    with (
        pytest.raises(BuildError, match=rf"{difference}.*--restart"),
        open_workspace(tmp_path / "store") as workspace,
    ):
        opened(workspace, other)
    assert block.read_text() == "work"


@pytest.mark.parametrize("restart", [False, True])
def test_another_job_begins_anew_where_little_is_lost_or_when_it_is_told_to(restart: bool, tmp_path: Path) -> None:
    block = interrupted(tmp_path / "store")
    with open_workspace(tmp_path / "store") as workspace:
        is_costly = costly if restart else cheap
        folder, goes_on = workspace.open_job({**JOB, "--dims": 16}, restart=restart, is_costly=is_costly)
        assert not goes_on
        assert not block.exists()
        assert [path.name for path in folder.iterdir()] == ["job.json"]


def test_the_same_job_begins_anew_when_it_is_told_to(tmp_path: Path) -> None:
    block = interrupted(tmp_path / "store")
    with open_workspace(tmp_path / "store") as workspace:
        opened(workspace, restart=True)
        assert not block.exists()


def test_what_is_made_in_one_go_destroys_no_work(tmp_path: Path) -> None:
    block = interrupted(tmp_path / "store")
    with (
        pytest.raises(BuildError, match=r"holds the work of an interrupted build. Go on"),
        open_workspace(tmp_path / "store") as workspace,
    ):
        workspace.empty_folder()
    assert block.read_text() == "work"


def test_what_was_made_in_one_go_and_killed_is_made_again(tmp_path: Path) -> None:
    left_over = tmp_path / ".store.building" / "datastore" / "half"
    left_over.mkdir(parents=True)
    with open_workspace(tmp_path / "store") as workspace:
        folder = workspace.empty_folder()
        assert list(folder.iterdir()) == []
        (folder / "file").write_text("content")
        workspace.publish(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


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
        made = opened(workspace) / "datastore"
        made.mkdir()
        out.mkdir()
        (out / "kept").write_text("precious")
        with pytest.raises(BuildError, match="already there"):
            workspace.publish(made)
    assert (out / "kept").read_text() == "precious"
    assert hidden(tmp_path) == []


def test_what_a_build_left_that_was_killed_behind_its_last_step_is_removed(tmp_path: Path) -> None:
    interrupted(tmp_path / "store")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "manifest.json").write_text("published")
    with pytest.raises(BuildError, match="already there"), open_workspace(tmp_path / "store"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("name", ["store", "s[ab]*?", "store.building"])
def test_work_of_other_datastores_stays(name: str, tmp_path: Path) -> None:
    blocks = [interrupted(tmp_path / other) for other in ("other", "sa", f"{name}.building", f"x{name}")]
    with open_workspace(tmp_path / name) as workspace:
        opened(workspace, restart=True)
    assert all(block.read_text() == "work" for block in blocks)


def test_a_second_build_of_the_same_datastore_is_refused(tmp_path: Path) -> None:
    with open_workspace(tmp_path / "store") as first:
        folder = opened(first)
        with pytest.raises(BuildError, match="Another build"), open_workspace(tmp_path / "store"):
            pass
        assert folder.is_dir()


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
