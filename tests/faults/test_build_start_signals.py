"""Builds that are told to stop while they start: no hang, no crash of Ray's, the exit code of the signal, no trace."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.building import ended_within, start_retriever, write_corpus
from tests.support.models import save_tiny_model

# Files that appear one after the other while Ray starts.
SESSION, STORE_LOG, NODE_LOG, NODE_SOCKET = (
    f"session_*{name}" for name in ("", "/logs/gcs_server.out", "/logs/raylet.out", "/sockets/raylet*")
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("gpt2", tmp_path_factory.mktemp("models") / "gpt2")


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """Where Ray works; short, because the names of its sockets are."""
    with TemporaryDirectory(prefix="r") as folder:
        yield Path(folder)


def started(model: Path, folder: Path, ray_folder: Path) -> subprocess.Popen[str]:
    corpus = write_corpus(folder / "corpus.jsonl", times=400)
    options = ["--corpus", corpus, "--out", folder / "store", "--dims", "8"]
    return start_retriever("build", "--model", model, *options, ray_folder=ray_folder)


def assert_stopped_by(process: subprocess.Popen[str], number: signal.Signals, folder: Path) -> None:
    _, errors = process.communicate()
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    assert "SIG" not in errors
    assert [path.name for path in folder.iterdir()] == ["corpus.jsonl"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopped_while_the_corpus_is_read(
    number: signal.Signals, model: Path, tmp_path: Path, ray_folder: Path
) -> None:
    process = started(model, tmp_path, ray_folder)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("Reading ")
    process.send_signal(number)
    assert_stopped_by(process, number, tmp_path)


@pytest.mark.parametrize(
    ("number", "sign"),
    [
        (signal.SIGINT, SESSION),
        (signal.SIGTERM, SESSION),
        (signal.SIGTERM, STORE_LOG),
        (signal.SIGINT, NODE_LOG),
        (signal.SIGTERM, NODE_SOCKET),
        (signal.SIGHUP, NODE_SOCKET),
    ],
)
def test_stopped_while_ray_starts(
    number: signal.Signals, sign: str, model: Path, tmp_path: Path, ray_folder: Path
) -> None:
    process = started(model, tmp_path, ray_folder)
    while not any(ray_folder.glob(f"ray/{sign}")):
        if ended_within(process, 0.01):
            pytest.fail(f"the build ended early: {process.communicate()[1]}")
    process.send_signal(number)
    assert_stopped_by(process, number, tmp_path)
    assert list((ray_folder / "ray").iterdir()) == []
