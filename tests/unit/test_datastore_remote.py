"""Builds pushed to a remote root, and fetched from it: whole, verified, resumed, and never less than before."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from retriever_service.cli import main
from retriever_service.datastore import CURRENT_FILE, MANIFEST_FILE, DatastoreError, current_build, tune, verify
from retriever_service.datastore.fetching import fetch
from retriever_service.datastore.pushing import push
from tests.support.certificates import put
from tests.support.datastore import BuiltDatastore, edit_manifest
from tests.support.following import following, numbers_at
from tests.support.serving import IDENTITY, eventually, servable_datastore


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BuiltDatastore]:
    folder = tmp_path_factory.mktemp("builds")
    return {
        "one": servable_datastore(folder / "one", build_id="1", num_partitions=3),
        "two": servable_datastore(folder / "two", build_id="2", num_partitions=2, seed=1),
        "three": servable_datastore(folder / "three", build_id="3", num_partitions=2, seed=2),
        "other": servable_datastore(folder / "other", build_id="4", model=replace(IDENTITY, tokenizer_hash="88" * 32)),
    }


@pytest.fixture
def remote(builds: dict[str, BuiltDatastore], tmp_path: Path) -> str:
    """A root with `one` in it, by URL."""
    url = (tmp_path / "remote").as_uri()
    push(builds["one"].path, url)
    return url


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_what_is_fetched_is_what_was_pushed(builds: dict[str, BuiltDatastore], remote: str, tmp_path: Path):
    done = fetch(remote, tmp_path / "root")
    assert current_build(tmp_path / "root") == done.folder
    assert content_of(done.folder) == content_of(builds["one"].path)
    assert verify(done.folder).self_recall == 1.0


@pytest.mark.parametrize("name", ["two words", "100%41", "a#b", "a?b", "größe"])
@pytest.mark.parametrize("as_url", [True, False])
def test_any_name_of_a_folder_may_be_pushed_and_fetched(
    name: str, as_url: bool, builds: dict[str, BuiltDatastore], tmp_path: Path
):
    build = Path(shutil.copytree(builds["two"].path, tmp_path / name))
    place = tmp_path / f"remote of {name}"
    url = place.as_uri() if as_url else str(place)
    push(build, url)
    assert verify(current_build(place)).self_recall == 1.0  # a place on a disk is a root like others
    done = fetch(url, tmp_path / "root")
    assert done.folder.name == name
    assert content_of(done.folder) == content_of(place / name) == content_of(build)


@pytest.mark.parametrize("url", ["s3://somebody:secret@bucket/root", "s3://secret@bucket", "abfs://a:secret@b/c"])
def test_a_url_with_a_password_is_refused_and_not_shown(
    url: str, builds: dict[str, BuiltDatastore], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for command in (["push", str(builds["two"].path), url], ["fetch", url, str(tmp_path)]):
        assert main(command) == 1
        errors = capsys.readouterr().err
        assert "holds a user or a password" in errors
        assert "secret" not in errors


def test_only_the_partitions_asked_for_come_and_can_be_served(remote: str, tmp_path: Path):
    done = fetch(remote, tmp_path, lambda manifest: manifest.partitions_of(4))
    assert done.partitions == [1]
    assert [path.name for path in done.folder.iterdir() if path.is_dir()] == ["partition-00001-segment-000"]
    assert BuiltDatastore(done.folder, None, done.manifest).open(partitions=[1]).num_entries > 0
    more = fetch(remote, tmp_path, lambda _: [1, 2])
    assert more.files > 0
    assert sorted(path.name[:15] for path in done.folder.iterdir() if path.is_dir()) == [
        "partition-00001", "partition-00002",
    ]  # fmt: skip
    assert fetch(remote, tmp_path, lambda _: [1, 2]).files == 0


def test_a_fetch_and_a_publisher_do_not_write_current_at_a_time(remote: str, tmp_path: Path):
    tmp_path.joinpath("root").mkdir()
    with (tmp_path / "root" / ".CURRENT.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fetching = threading.Thread(target=fetch, args=(remote, tmp_path / "root"))
        fetching.start()
        waiting = re.compile(rf"-> FLOCK .* {os.getpid()} ")
        eventually(lambda: waiting.search(Path("/proc/locks").read_text()) is not None)
        assert not (tmp_path / "root" / CURRENT_FILE).exists()
        fcntl.flock(lock, fcntl.LOCK_UN)
        fetching.join()
    assert current_build(tmp_path / "root") == tmp_path / "root" / "one"


def test_a_new_build_takes_over_and_old_ones_go_but_not_those_that_no_fetch_made(
    builds: dict[str, BuiltDatastore], remote: str, tmp_path: Path
):
    root = tmp_path / "root"
    shutil.copytree(builds["other"].path, root / "mine")
    for name in ("one", "two", "three"):
        push(builds[name].path, remote)
        fetch(remote, root, keep=2)
    assert sorted(path.name for path in root.iterdir() if path.is_dir()) == ["mine", "three", "two"]
    assert current_build(root) == root / "three"
    push(builds["two"].path, remote)  # and back
    assert fetch(remote, root).files == 0
    assert current_build(root) == root / "two"


def test_a_killed_fetch_is_taken_up_where_it_was(builds: dict[str, BuiltDatastore], remote: str, tmp_path: Path):
    root, wanted = tmp_path / "root", builds["one"]
    hidden = root / ".one.fetching"
    part = hidden / "partition-00000-segment-000"
    part.mkdir(parents=True)
    index = (wanted.path / part.name / "index.faiss").read_bytes()
    (part / ".index.faiss.partial").write_bytes(index[: len(index) // 2])
    (part / ".continuations.npy.partial").write_bytes(b"of something else")
    (part / ".left_contexts.npy.partial").write_bytes(b"x" * 10_000_000)
    done = fetch(remote, root)
    total = sum(len(content) for content in content_of(wanted.path).values())
    assert done.bytes == total - (wanted.path / MANIFEST_FILE).stat().st_size - len(index) // 2
    assert content_of(done.folder) == content_of(wanted.path)


def test_files_that_an_earlier_build_has_are_not_copied_again(
    builds: dict[str, BuiltDatastore], remote: str, tmp_path: Path
):
    root = tmp_path / "root"
    fetch(remote, root)
    grown = Path(shutil.copytree(builds["one"].path, tmp_path / "grown"))
    edit_manifest(grown, lambda content: content.update(build_id="grown"))
    push(grown, remote)
    kept, damaged_one = "partition-00000-segment-000/index.faiss", "partition-00001-segment-000/index.faiss"
    content = (root / "one" / damaged_one).read_bytes()
    (root / "one" / damaged_one).write_bytes(content[:-1] + b"?")
    done = fetch(remote, root)
    assert (done.manifest.build_id, done.files) == ("grown", 1)
    assert (done.folder / kept).samefile(root / "one" / kept)
    assert (done.folder / damaged_one).read_bytes() == content
    assert verify(done.folder).self_recall == 1.0


def damaged(remote: str, name: str, content: bytes | None) -> None:
    path = Path(remote.removeprefix("file://")) / name
    path.unlink() if content is None else path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (CURRENT_FILE, None, f"no {CURRENT_FILE}"),
        (CURRENT_FILE, b"../two\n", "names no folder"),
        (CURRENT_FILE, b"\xff\n", "names no folder"),
        (CURRENT_FILE, b"two\n", "no manifest.json"),
        ("one/manifest.json", b"{}", "manifest.json"),
        ("one/routing.safetensors", None, "routing.safetensors"),
        ("one/routing.safetensors", b"", "routing.safetensors is corrupt"),
        ("one/partition-00000-segment-000/index.faiss", b"y" * 100, "index.faiss is corrupt"),
    ],
)
def test_what_cannot_be_used_changes_nothing(
    builds: dict[str, BuiltDatastore], tmp_path: Path, name: str, content: bytes | None, said: str
):
    url, root = (tmp_path / "remote").as_uri(), tmp_path / "root"
    push(builds["two"].path, url)
    fetch(url, root)
    shutil.rmtree(tmp_path / "remote" / "two")
    push(builds["one"].path, url)
    damaged(url, name, content)
    with pytest.raises(DatastoreError, match=said):
        fetch(url, root)
    assert current_build(root) == root / "two"
    assert verify(root / "two").files > 0
    assert not (root / "one").exists()
    push(builds["two"].path, url)  # what can be used can be fetched afterwards
    fetch(url, root)


def test_a_push_that_was_killed_is_taken_up_and_a_corrupt_build_is_not_published(
    builds: dict[str, BuiltDatastore], remote: str, tmp_path: Path
):
    place = tmp_path / "remote" / "two"
    push(builds["two"].path, remote)
    (place / MANIFEST_FILE).unlink()
    (place / ".pushing").write_text(builds["two"].manifest.build_id)
    kept = (place / "routing.safetensors").stat().st_ino
    (place / "reducer.safetensors").unlink()
    push(builds["two"].path, remote)
    assert (place / "routing.safetensors").stat().st_ino == kept
    assert fetch(remote, tmp_path / "root").manifest.build_id == "2"

    broken = Path(shutil.copytree(builds["three"].path, tmp_path / "broken"))
    target = broken / "partition-00001-segment-000" / "index.faiss"
    target.write_bytes(target.read_bytes()[:-1] + b"?")
    with pytest.raises(DatastoreError, match=r"index\.faiss is corrupt"):
        push(broken, remote)
    assert (tmp_path / "remote" / CURRENT_FILE).read_text() == "two\n"
    assert not (tmp_path / "remote" / "broken" / MANIFEST_FILE).exists()


@pytest.mark.parametrize("content", [None, b"short"])
def test_a_build_that_is_not_whole_is_said_to_be_so(
    builds: dict[str, BuiltDatastore], remote: str, tmp_path: Path, content: bytes | None
):
    broken = Path(shutil.copytree(builds["three"].path, tmp_path / "broken"))
    target = broken / "partition-00001-segment-000" / "continuations.npy"
    target.unlink() if content is None else target.write_bytes(content)
    with pytest.raises(DatastoreError, match=str(target)):
        push(broken, remote)


def test_left_overs_of_another_build_of_that_name_are_replaced(
    builds: dict[str, BuiltDatastore], remote: str, tmp_path: Path
):
    place = Path(shutil.copytree(tmp_path / "remote" / "one", tmp_path / "remote" / "two"))
    (place / MANIFEST_FILE).unlink()
    size = (builds["two"].path / "routing.safetensors").stat().st_size
    (place / "routing.safetensors").write_bytes(b"z" * size)
    push(builds["two"].path, remote)
    assert fetch(remote, tmp_path / "root").manifest.build_id == "2"


def test_a_name_stands_for_one_build(builds: dict[str, BuiltDatastore], remote: str, tmp_path: Path):
    namesake = Path(shutil.copytree(builds["two"].path, tmp_path / "again" / "one"))
    with pytest.raises(DatastoreError, match="another build of that name"):
        push(namesake, remote)
    fetch(remote, tmp_path / "root")
    shutil.rmtree(tmp_path / "remote" / "one")
    push(namesake, remote)
    with pytest.raises(DatastoreError, match="another build"):
        fetch(remote, tmp_path / "root")


def test_another_models_build_is_pushed_only_when_allowed(builds: dict[str, BuiltDatastore], remote: str):
    with pytest.raises(DatastoreError, match="tokenizer"):
        push(builds["other"].path, remote)
    push(builds["other"].path, remote, publish=False)
    push(builds["other"].path, remote, allow_other_model=True)


def test_what_tune_changed_arrives(builds: dict[str, BuiltDatastore], remote: str, tmp_path: Path):
    mine = Path(shutil.copytree(builds["one"].path, tmp_path / "mine" / "one"))
    fetch(remote, tmp_path / "root")
    before = (tmp_path / "root" / CURRENT_FILE).stat().st_ino
    tune(mine, recall=0.5)
    manifest = (mine / MANIFEST_FILE).read_bytes()
    push(mine, remote)
    assert fetch(remote, tmp_path / "root").files == 0
    assert (tmp_path / "root" / "one" / MANIFEST_FILE).read_bytes() == manifest
    changed = manifest != (builds["one"].path / MANIFEST_FILE).read_bytes()
    assert changed == ((tmp_path / "root" / CURRENT_FILE).stat().st_ino != before)


def test_a_fetch_that_stays_follows_what_is_published(builds: dict[str, BuiltDatastore], remote: str, tmp_path: Path):
    root = tmp_path / "root"
    with following(remote, root, "--ordinal", "3") as (process, port):

        def seen_at() -> float:
            return numbers_at(port)["dresd_fetch_success_timestamp_seconds"]

        assert "partitions 0 of 3" in process.stdout.readline()
        eventually(lambda: seen_at() > 0)
        assert numbers_at(port)["dresd_fetch_failures_total"] == 0
        put(tmp_path / "remote" / CURRENT_FILE, b"nothing\n")
        assert "nothing" in process.stderr.readline()
        assert numbers_at(port)["dresd_fetch_failures_total"] > 0
        last = seen_at()
        push(builds["two"].path, remote)
        assert "partitions 1 of 2" in process.stdout.readline()
        eventually(lambda: current_build(root) == root / "two")
        eventually(lambda: seen_at() > last)
        process.terminate()
        assert process.wait(60) == 143


def test_the_commands_say_what_they_did(
    builds: dict[str, BuiltDatastore], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["push", str(builds["one"].path), str(tmp_path / "remote")]) == 0
    assert "is current: build 1" in capsys.readouterr().out
    assert main(["fetch", str(tmp_path / "remote"), str(tmp_path / "root"), "--partitions", "0,2"]) == 0
    assert "partitions 0,2 of 3" in capsys.readouterr().out
    assert main(["fetch", "nonsense://x", str(tmp_path / "root")]) == 1
    assert "nonsense" in capsys.readouterr().err
