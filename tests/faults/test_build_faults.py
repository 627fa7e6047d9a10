"""Builds whose processes are killed or stopped, or that run out of disk: each goes on, and ends as if nothing was."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.building.memory import processes_below
from retriever_service.building.config import BuildConfig
from retriever_service.datastore import Datastore, DatastoreError
from tests.support.building import ended_within, start_retriever, write_corpus
from tests.support.commands import retriever_command
from tests.support.in_process_jobs import build_here
from tests.support.interrupting import contents
from tests.support.models import save_tiny_model

_DIMS = ["--dims", "8", "--partitions", "2", "--fit-tokens", "4000"]
_SMALL_DISK, _LARGER_DISK = "750k", "64m"


@dataclass(frozen=True)
class Undisturbed:
    """A build that nothing happened to: its options, and what it made."""

    options: list[str | Path]
    contents: dict[str, object]

    def arguments(self, folder: Path) -> list[str | Path]:
        """The same build, of a datastore in `folder`."""
        return ["build", *self.options, "--out", folder / "store"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed")
    model = save_tiny_model("gpt2", folder / "gpt2")
    corpus = write_corpus(folder / "corpus.jsonl", times=400)
    store = folder / "store"
    build_here(BuildConfig(model=str(model), corpus=(corpus,), out=store, dims=8, partitions=2, fit_tokens=4000))
    return Undisturbed(["--model", model, "--corpus", corpus, *_DIMS], contents(store))


def embedded(folder: Path) -> list[Path]:
    return list(folder.glob(".store.building/*/embedded/*.block"))


def wait_for(process: subprocess.Popen[str], happened: Callable[[], bool]) -> None:
    while not happened():
        if ended_within(process, 0.01):
            pytest.fail(f"the build ended early: {process.communicate()[1]}")


def assert_goes_on_to_the_same_end(undisturbed: Undisturbed, folder: Path) -> None:
    again = start_retriever(*undisturbed.arguments(folder))
    _, errors = again.communicate()
    assert again.returncode == 0, errors
    assert "Going on with the work of an interrupted build" in errors
    assert contents(folder / "store") == undisturbed.contents
    assert [path.name for path in folder.iterdir()] == ["store"]


def test_a_killed_build_leaves_no_datastore_and_goes_on(undisturbed: Undisturbed, tmp_path: Path) -> None:
    process = start_retriever(*undisturbed.arguments(tmp_path))
    wait_for(process, lambda: len(embedded(tmp_path)) > 3)
    process.kill()
    process.wait()
    assert not (tmp_path / "store").exists()
    for folder in (tmp_path / ".store.building").rglob("*"):
        if folder.is_dir():
            with pytest.raises(DatastoreError, match="manifest"):
                Datastore.open(folder)
    assert_goes_on_to_the_same_end(undisturbed, tmp_path)


@pytest.mark.parametrize(
    ("title", "sign"),
    [("ray::_BlockActor.work", "embedded/*1.block"), ("ray::attempt", "records")],
)
def test_a_build_outlives_the_death_of_a_worker(
    title: str, sign: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    process = start_retriever(*undisturbed.arguments(tmp_path))
    wait_for(process, lambda: any(tmp_path.glob(f".store.building/*/{sign}")))

    def killed_one() -> bool:
        for number, name in processes_below(process.pid):
            if name.startswith(title):
                os.kill(number, signal.SIGKILL)
                return True
        return False

    wait_for(process, killed_one)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert contents(tmp_path / "store") == undisturbed.contents
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_build_that_loses_ray_says_how_to_go_on(undisturbed: Undisturbed, tmp_path: Path) -> None:
    process = start_retriever(*undisturbed.arguments(tmp_path))
    wait_for(process, lambda: len(embedded(tmp_path)) > 3)
    store_of_names = [number for number, name in processes_below(process.pid) if "gcs_server" in name]
    os.kill(*store_of_names, signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == 1, errors
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert re.search(r"Run the same command again: it goes on with \w+, [\d,]+ of [\d,]+ \w+ done", lines[0])
    assert "Traceback" not in errors
    assert_goes_on_to_the_same_end(undisturbed, tmp_path)


def test_a_stopped_build_says_what_it_keeps(undisturbed: Undisturbed, tmp_path: Path) -> None:
    process = start_retriever(*undisturbed.arguments(tmp_path))
    wait_for(process, lambda: bool(embedded(tmp_path)))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert "Traceback" not in errors
    assert "What was done is kept in " in errors
    assert [path.name for path in tmp_path.iterdir()] == [".store.building"]


def test_a_full_disk_is_one_sentence_and_with_more_space_the_build_goes_on(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """On a file system of its own, too small for the build; skipped where one may not be mounted."""
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    unshare = ["unshare", "--map-root-user", "--mount"]
    mount = f'mount -t tmpfs -o size={_SMALL_DISK} small "$0"'
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "sh", "-c", mount, disk], capture_output=True, check=False).returncode
    ):
        pytest.skip("this machine lets nobody mount a small file system")
    command = retriever_command(*undisturbed.arguments(disk))
    # The mount is gone with the process, so what is on it is looked at from inside.
    larger = f'mount -o remount,size={_LARGER_DISK} "$0"'
    copied = f"cp -r {kept.parent / 'disk' / 'store'} {kept}"
    script = f'{mount} && {{ "$@"; echo $?; ls -A "$0"; {larger}; "$@"; echo $?; ls -A "$0"; {copied}; }}'
    ended = subprocess.run([*unshare, "sh", "-c", script, disk, *command], capture_output=True, text=True, check=False)
    outcomes = [line for line in ended.stdout.splitlines() if not line.startswith(str(disk))]
    assert outcomes == ["1", ".store.building", "0", "store"], ended.stderr
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].startswith("error: No space left on the disk")
    assert "Traceback" not in ended.stderr
    assert contents(kept) == undisturbed.contents
