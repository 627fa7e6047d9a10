"""Another build takes the place of the one served: through the admin service, and when `CURRENT` changes."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest

from dresd.v1 import admin_pb2, admin_pb2_grpc
from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.datastore import CURRENT_FILE, Datastore
from retriever_service.serving.collection import MAX_RETIRING
from tests.support.datastore import BuiltDatastore, edit_manifest
from tests.support.serving import (
    IDENTITY,
    PATIENCE_S,
    GatedDatastore,
    OpenStream,
    ServerThread,
    eventually,
    request_for,
    serving,
)
from tests.support.swapping import SOON_S, Admin, Root, held, root_of_builds, swapping_config

OTHER_MODEL = dataclasses.replace(IDENTITY, tokenizer_hash="88" * 32)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return root_of_builds(tmp_path / "root", one={}, two={"seed": 1}, other={"model": OTHER_MODEL})


def good(built: BuiltDatastore, **changes: object) -> pb.RetrieveRequest:
    return request_for(built.entries.keys[:2], built.entries.next_tokens[:2].tolist(), **changes)


def tokens_of(response: pb.RetrieveResponse) -> list[list[int]]:
    return [list(tree.tokens) for tree in response.trees]


def expected(built: BuiltDatastore, asked: BuiltDatastore) -> list[list[int]]:
    keys = asked.entries.keys[:2].astype(np.float16).astype(np.float32)
    with_tokens = asked.entries.next_tokens[:2]
    batch = built.open().draft(keys, with_tokens, neighbors=10, max_nodes=16, temperature=0.1)
    return [tree.tokens.tolist() for tree in batch.trees]


def test_a_reload_swaps_and_the_old_build_answers_those_who_name_it(root: Root):
    one, two = root.builds["one"], root.builds["two"]
    with (
        serving(swapping_config(root.path)) as server,
        Admin(server) as admin,
        grpc.insecure_channel(server.address) as channel,
        OpenStream(server.address) as stream,
    ):
        stub = pb_grpc.RetrieverStub(channel)
        before = admin.status()
        assert (before.builds[0].build_id, before.builds[0].num_entries) == ("one", len(one.entries))
        assert before.builds[0].folder == str(root.path / "one")
        assert before.builds[0].mapped_bytes > 1000
        assert admin.reload() == admin_pb2.ReloadResponse(build_id="one", previous_build_id="one")
        root.publish("two")
        assert stub.GetInfo(pb.GetInfoRequest()).build_id == "one", "nobody looks by itself here"
        assert admin.reload() == admin_pb2.ReloadResponse(build_id="two", previous_build_id="one")
        assert admin.builds() == ["two", "one"]
        assert stub.GetInfo(pb.GetInfoRequest()).build_id == "two"

        unnamed = stub.Retrieve(good(two))
        assert (unnamed.build_id, unnamed.current_build_id) == ("two", "")
        assert tokens_of(unnamed) == expected(two, two)
        old = stub.Retrieve(good(one, build_id="one"))
        assert (old.build_id, old.current_build_id) == ("one", "two")
        assert tokens_of(old) == expected(one, one)
        stream.send(1, good(one, build_id="one"))
        assert tokens_of(stream.receive().response) == expected(one, one)
        for build_id, built in (("", two), ("one", one), ("two", two)):
            reducer = stub.GetReducer(pb.GetReducerRequest(build_id=build_id))
            assert reducer.sha256 == built.manifest.key_recipe.reducer_hash
            (part,) = stub.GetTokenTable(pb.GetTokenTableRequest(build_id=build_id))
            assert part.sha256 == built.manifest.files["token_table.safetensors"].sha256


def test_going_back_within_the_grace_period_opens_nothing_again(root: Root):
    opened: list[Path] = []

    def opener(folder: Path) -> Datastore:
        opened.append(folder)
        return Datastore.open(folder)

    with serving(swapping_config(root.path), opener) as server, Admin(server) as admin:
        for name in ("two", "one", "two"):
            root.publish(name)
            assert admin.reload().build_id == name
        assert admin.builds() == ["two", "one"]
    assert opened == [root.path / "one", root.path / "two"]


def test_of_many_builds_in_quick_succession_few_are_kept(tmp_path: Path):
    names = [f"build-{number}" for number in range(MAX_RETIRING + 3)]
    root = root_of_builds(tmp_path / "root", **{name: {} for name in names})
    with serving(swapping_config(root.path)) as server, Admin(server) as admin:
        for name in names[1:]:
            root.publish(name)
            admin.reload()
        assert admin.builds() == names[::-1][: MAX_RETIRING + 1]


def test_a_reload_that_fails_for_a_reason_nobody_foresaw_is_not_the_last(root: Root, caplog: pytest.LogCaptureFixture):
    failures = [TypeError("a bug of ours")]

    def opener(folder: Path) -> Datastore:
        if folder.name == "two" and failures:
            raise failures.pop()
        return Datastore.open(folder)

    with serving(swapping_config(root.path, reload_interval_s=SOON_S), opener) as server, Admin(server) as admin:
        root.publish("two")
        eventually(lambda: "a bug of ours" in caplog.text)
        assert admin.builds() == ["one"]
        root.publish("two")
        eventually(lambda: admin.builds() == ["two", "one"])


def test_a_build_that_was_tuned_is_opened_anew_for_all_its_callers(root: Root):
    one = root.builds["one"]
    with (
        serving(swapping_config(root.path)) as server,
        Admin(server) as admin,
        grpc.insecure_channel(server.address) as channel,
    ):
        before = admin.status().builds[0].loaded_at_us
        edit_manifest(one.path, lambda content: content.update(nprobe=7))
        assert admin.reload() == admin_pb2.ReloadResponse(build_id="one", previous_build_id="one")
        assert admin.builds() == ["one"]
        assert admin.status().builds[0].loaded_at_us > before
        assert pb_grpc.RetrieverStub(channel).Retrieve(good(one, build_id="one")).current_build_id == ""


def test_a_build_is_given_back_to_the_system_after_its_grace_period(root: Root):
    one = root.builds["one"]
    with (
        serving(swapping_config(root.path, build_grace_s=SOON_S)) as server,
        Admin(server) as admin,
        grpc.insecure_channel(server.address) as channel,
    ):
        stub = pb_grpc.RetrieverStub(channel)
        assert len(stub.Retrieve(good(one)).trees) == 2
        assert held(root.path / "one")
        root.publish("two")
        admin.reload()
        eventually(lambda: admin.builds() == ["two"])
        eventually(lambda: not held(root.path / "one"))
        assert held(root.path / "two")
        with pytest.raises(grpc.RpcError) as refused:
            stub.Retrieve(good(one, build_id="one"))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "'one' and this server serves 'two'" in refused.value.details()


@pytest.mark.parametrize("watched", [False, True])
def test_a_build_that_saw_another_one_refused_is_given_back_too(root: Root, watched: bool):
    config = swapping_config(root.path, build_grace_s=SOON_S, reload_interval_s=SOON_S if watched else 0.0)
    with serving(config) as server, Admin(server) as admin:
        point_nowhere(root)
        if not watched:
            admin.refusal()
        eventually(lambda: admin.status().last_reload_error != "")
        root.publish("two")
        if not watched:
            admin.reload()
        eventually(lambda: admin.builds() == ["two"])
        eventually(lambda: not held(root.path / "one"))


def test_a_search_that_outlives_the_grace_period_is_answered_by_its_build(root: Root):
    one = root.builds["one"]
    gated: dict[str, GatedDatastore] = {}

    def opener(folder: Path) -> Datastore:
        gated[folder.name] = GatedDatastore(Datastore.open(folder))
        return gated[folder.name]

    with (
        serving(swapping_config(root.path, build_grace_s=0.0), opener) as server,
        Admin(server) as admin,
        OpenStream(server.address) as stream,
    ):
        stream.send(1, good(one))
        assert gated["one"].begun.acquire(timeout=PATIENCE_S)
        assert admin.status().builds[0].in_flight == 1
        root.publish("two")
        admin.reload()
        eventually(lambda: admin.builds() == ["two"])
        gated["one"].gate.set()
        response = stream.receive().response
        assert (response.build_id, response.current_build_id) == ("one", "two")
        assert tokens_of(response) == expected(one, one)
        assert admin.status().builds[0].in_flight == 0


def test_a_changed_current_is_noticed(root: Root):
    with serving(swapping_config(root.path, reload_interval_s=SOON_S)) as server, Admin(server) as admin:
        for name in ("two", "one"):
            root.publish(name)
            eventually(lambda name=name: admin.builds()[0] == name)


def spoil(build: Path, how: str) -> str:
    """Spoils a build; a part of what must be said of it."""
    victim = max((path for path in build.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(victim.read_bytes())
    if how == "missing":
        victim.unlink()
    elif how == "truncated":
        victim.write_bytes(content[:-1])
    elif how == "manifest":
        (build / "manifest.json").write_text("{")
        return "manifest.json"
    else:
        content[len(content) // 2] ^= 0xFF
        victim.write_bytes(content)
    return victim.name


def point_nowhere(root: Root) -> str:
    (root.path / CURRENT_FILE).write_text("nowhere")
    return "nowhere"


def point_outside(root: Root) -> str:
    (root.path / CURRENT_FILE).write_text("../root/two")
    return "no name of a folder"


def point_with_bytes(root: Root) -> str:
    (root.path / CURRENT_FILE).write_bytes(b"\xff\xfe")
    return "no name of a folder"


def point_with_a_lot(root: Root) -> str:
    (root.path / CURRENT_FILE).write_bytes(b"two\n" * 10_000_000)
    return "no name of a folder"


def point_no_more(root: Root) -> str:
    (root.path / CURRENT_FILE).unlink()
    return "manifest.json"


def point_at_another_model(root: Root) -> str:
    (root.path / CURRENT_FILE).write_text("other")
    return "tokenizer_hash: '"


def point_at_spoilt(how: str) -> Callable[[Root], str]:
    def point(root: Root) -> str:
        says = spoil(root.add_copy("spoilt", "two"), how)
        if how != "manifest":
            edit_manifest(root.path / "spoilt", lambda content: content.update(build_id="spoilt"))
        (root.path / CURRENT_FILE).write_text("spoilt")
        return says

    return point


BAD = [
    *(point_at_spoilt(how) for how in ("missing", "truncated", "corrupt", "manifest")),
    point_nowhere, point_outside, point_with_bytes, point_with_a_lot, point_no_more, point_at_another_model,
]  # fmt: skip


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("make_bad", BAD)
def test_a_bad_build_is_refused_and_the_old_one_goes_on(root: Root, make_bad: Callable[[Root], str], watched: bool):
    one = root.builds["one"]
    config = swapping_config(root.path, reload_interval_s=SOON_S if watched else 0.0)
    with (
        serving(config) as server,
        Admin(server) as admin,
        grpc.insecure_channel(server.address) as channel,
    ):
        says = make_bad(root)
        if watched:
            eventually(lambda: admin.status().last_reload_error != "")
        else:
            code, message = admin.refusal()
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert message == admin.status().last_reload_error
        assert says in admin.status().last_reload_error
        assert admin.builds() == ["one"]
        assert tokens_of(pb_grpc.RetrieverStub(channel).Retrieve(good(one, build_id="one"))) == expected(one, one)
        eventually(lambda: not held(root.path / "two") and not held(root.path / "spoilt"))
        root.publish("two")
        if not watched:
            admin.reload()
        eventually(lambda: admin.builds()[0] == "two")
        assert admin.status().last_reload_error == ""


def test_another_model_is_taken_up_when_the_admin_says_so(root: Root):
    with serving(swapping_config(root.path)) as server, Admin(server) as admin:
        root.publish("other")
        assert "88" * 32 in admin.refusal()[1]
        assert admin.reload(allow_other_model=True).build_id == "other"
        assert admin.status().last_reload_error == ""


def test_collections_swap_for_themselves(root: Root, tmp_path: Path):
    second = root_of_builds(tmp_path / "second", three={}, four={})
    config = swapping_config(root.path, collections={"code": second.path})
    with serving(config) as server, Admin(server) as admin:
        second.publish("four")
        assert admin.reload("code").build_id == "four"
        assert (admin.builds(), admin.builds("code")) == (["one"], ["four", "three"])
        code, message = admin.refusal("prose")
        assert code is grpc.StatusCode.NOT_FOUND
        assert "served are: code, default" in message


def test_a_folder_that_was_replaced_is_reloaded_when_told_to(root: Root):
    with serving(swapping_config(root.path / "one")) as server, Admin(server) as admin:
        (root.path / "one").rename(root.path / "old")
        (root.path / "two").rename(root.path / "one")
        assert admin.reload().build_id == "two"


def test_a_reload_whose_caller_left_is_finished(root: Root):
    begun, gate = threading.Event(), threading.Event()

    def opener(folder: Path) -> Datastore:
        if folder.name == "two":
            begun.set()
            assert gate.wait(PATIENCE_S)
        return Datastore.open(folder)

    with serving(swapping_config(root.path), opener) as server, Admin(server) as admin:
        root.publish("two")
        with grpc.insecure_channel(admin.address) as channel:
            leaving = admin_pb2_grpc.AdminStub(channel).Reload.future(admin_pb2.ReloadRequest())
            assert begun.wait(PATIENCE_S)
            leaving.cancel()
        gate.set()
        eventually(lambda: admin.builds() == ["two", "one"])


def test_stopping_in_the_middle_of_a_reload_does_not_wait_for_it(root: Root):
    begun, gate = threading.Event(), threading.Event()

    def opener(folder: Path) -> Datastore:
        if folder.name == "two":
            begun.set()
            assert gate.wait(PATIENCE_S)
        return Datastore.open(folder)

    thread = ServerThread(swapping_config(root.path, reload_interval_s=SOON_S), opener)
    root.publish("two")
    assert begun.wait(PATIENCE_S)
    thread.stop()
    thread.close()
    gate.set()
