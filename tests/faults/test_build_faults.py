"""Builds that are interrupted, killed, or run out of disk: nothing half-written is ever taken for a datastore."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from retriever_service.datastore import Datastore, DatastoreError
from tests.support.building import ended_within, retriever_command, start_retriever, write_corpus
from tests.support.models import save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("gpt2", tmp_path_factory.mktemp("models") / "gpt2")


def arguments(model: Path, folder: Path, *, times: int = 50) -> list[str | Path]:
    corpus = write_corpus(folder / "corpus.jsonl", times=times)
    return ["build", "--model", model, "--corpus", corpus, "--out", folder / "store", "--dims", "8"]


def hidden(folder: Path) -> list[Path]:
    return list(folder.glob(".store.building-*"))


def wait_until_embedding(process: subprocess.Popen[str], folder: Path) -> None:
    """Returns in the middle of the build, when the first block has been embedded."""
    while not ended_within(process, 0.1):
        if any(folder.glob(".store.building-*/embedded/*.safetensors")):
            return
    pytest.fail(f"the build ended early: {process.communicate()[1]}")


def test_a_killed_build_leaves_no_datastore_and_the_next_build_cleans_up(model: Path, tmp_path: Path) -> None:
    process = start_retriever(*arguments(model, tmp_path))
    wait_until_embedding(process, tmp_path)
    process.kill()
    process.wait()
    assert not (tmp_path / "store").exists()
    (left_over,) = hidden(tmp_path)
    for folder in (left_over, left_over / "datastore"):
        with pytest.raises(DatastoreError, match="manifest"):
            Datastore.open(folder)
    again = start_retriever(*arguments(model, tmp_path))
    assert again.wait() == 0, again.communicate()[1]
    assert Datastore.open(tmp_path / "store").num_entries > 0
    assert hidden(tmp_path) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_stopped_build_leaves_nothing(number: signal.Signals, code: int, model: Path, tmp_path: Path) -> None:
    # Enough that much is left to do after the first block, even when this process is slow to see it.
    process = start_retriever(*arguments(model, tmp_path, times=400))
    wait_until_embedding(process, tmp_path)
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_a_full_disk_is_one_sentence_and_leaves_nothing(model: Path, tmp_path: Path) -> None:
    """On a file system of its own, too small for the build; skipped where one may not be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    unshare = ["unshare", "--map-root-user", "--mount"]
    mount = 'mount -t tmpfs -o size=600k small "$0"'
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "sh", "-c", mount, disk], capture_output=True, check=False).returncode
    ):
        pytest.skip("this machine lets nobody mount a small file system")
    corpus = write_corpus(tmp_path / "corpus.jsonl", times=300)
    command = retriever_command("build", "--model", model, "--corpus", corpus, "--out", disk / "store", "--dims", "8")
    # The mount is gone with the process, so the folder is listed from inside.
    script = mount + ' && { "$@"; code=$?; ls -A "$0"; exit $code; }'
    ended = subprocess.run([*unshare, "sh", "-c", script, disk, *command], capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout == ""
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].startswith("error: No space left on the disk")
    assert "Traceback" not in ended.stderr
