"""A datastore's folder holds what its build wrote: no command puts anything else there, or over a file of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from retriever_service.cli import main
from retriever_service.datastore import CURRENT_FILE, MANIFEST_FILE, datastore_around
from tests.support.serving import servable_datastore


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("folder") / "store"
    servable_datastore(path)
    return path


@pytest.mark.parametrize(
    "command",
    [
        ["build", "--model", "m", "--corpus", "c.jsonl", "--out", "STORE/new"],
        ["build", "--model", "m", "--corpus", "c.jsonl", "--out", "STORE/new/deeper"],
        ["build", "--model", "m", "--corpus", "c.jsonl", "--out", "OUT", "--respond", "--answers-out", "STORE/a.jsonl"],
        ["add", "STORE", "--model", "m", "--corpus", "c.jsonl", "--out", "STORE/new"],
        ["merge", "STORE", "--out", "STORE/new"],
        ["prune", "STORE", "--max-entries", "1", "--out", "STORE/new"],
        ["push", "STORE", "STORE"],
        ["fetch", "REMOTE", "STORE"],
        ["fetch", "REMOTE", "STORE/new"],
        ["inspect", "STORE", "--html", "STORE/page.html"],
        ["inspect", "STORE", "--html", f"STORE/{MANIFEST_FILE}"],
        ["inspect", "STORE", "--html", "LINK/page.html"],
        ["k8s-values", "STORE", "--out", "STORE"],
        ["k8s-values", "STORE", "--out", "STORE/component"],
    ],
    ids=" ".join,
)
def test_nothing_is_written_into_a_datastore(
    command: list[str], store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "link"
    link.symlink_to(store)
    assert main(["push", str(store), str(tmp_path / "remote")]) == 0
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    places = {"STORE": store, "LINK": link, "REMOTE": tmp_path / "remote", "OUT": tmp_path / "out"}
    for name, place in places.items():
        command = [part.replace(name, str(place)) for part in command]
    capsys.readouterr()
    assert main(command) == 1
    errors = capsys.readouterr().err
    assert "lies in the datastore" in errors or "itself" in errors
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


def test_a_root_is_no_datastore_nor_is_a_folder_with_somebody_elses_manifest(store: Path, tmp_path: Path) -> None:
    (tmp_path / MANIFEST_FILE).write_text("{}")
    (tmp_path / CURRENT_FILE).write_text("one\n")
    assert datastore_around(tmp_path / "one") is None
    assert datastore_around(store) is None
    assert datastore_around(store / MANIFEST_FILE) == store
