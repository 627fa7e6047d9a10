"""Several named datastores in one server, asked by name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from decoder_client.retriever import RetrieverMismatchError
from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.serving.server import ServeConfig
from tests.support.datastore import BuiltDatastore
from tests.support.retriever import client_of
from tests.support.serving import IDENTITY, ServerThread, local_config, request_for, servable_datastore, serving

CODE_MODEL = replace(IDENTITY, tokenizer_hash="77" * 32)


@pytest.fixture(scope="module")
def prose(tmp_path_factory: pytest.TempPathFactory) -> BuiltDatastore:
    return servable_datastore(tmp_path_factory.mktemp("prose") / "store", build_id="prose-1")


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> BuiltDatastore:
    return servable_datastore(tmp_path_factory.mktemp("code") / "store", build_id="code-1", seed=1, model=CODE_MODEL)


@pytest.fixture(scope="module")
def server(prose: BuiltDatastore, code: BuiltDatastore) -> Iterator[ServerThread]:
    with serving(local_config(prose.path, collections={"code": code.path})) as server:
        yield server


@pytest.fixture(scope="module")
def stub(server: ServerThread) -> Iterator[pb_grpc.RetrieverStub]:
    with grpc.insecure_channel(server.address) as channel:
        yield pb_grpc.RetrieverStub(channel)


def good(built: BuiltDatastore, **changes: object) -> pb.RetrieveRequest:
    return request_for(built.entries.keys[:1], built.entries.next_tokens[:1].tolist(), **changes)


@pytest.mark.parametrize(("name", "build_id"), [("", "prose-1"), ("default", "prose-1"), ("code", "code-1")])
def test_each_call_answers_from_the_collection_it_names(
    stub: pb_grpc.RetrieverStub, prose: BuiltDatastore, code: BuiltDatastore, name: str, build_id: str
):
    asked = code if name == "code" else prose
    assert stub.GetInfo(pb.GetInfoRequest(collection=name)).build_id == build_id
    assert stub.GetReducer(pb.GetReducerRequest(collection=name)).sha256 == asked.manifest.key_recipe.reducer_hash
    content = b"".join(part.chunk for part in stub.GetTokenTable(pb.GetTokenTableRequest(collection=name)))
    assert hashlib.sha256(content).hexdigest() == asked.manifest.files["token_table.safetensors"].sha256
    (streamed,) = stub.RetrieveStream(
        iter([pb.RetrieveStreamRequest(request_id=1, request=good(asked, collection=name))])
    )
    response = stub.Retrieve(good(asked, collection=name))
    assert {response.build_id, streamed.response.build_id} == {build_id}
    assert response.current_build_id == ""
    assert list(response.trees) == list(streamed.response.trees)


def test_a_name_that_is_not_served_is_not_found_and_those_that_are_are_named(
    stub: pb_grpc.RetrieverStub, prose: BuiltDatastore
):
    for call, request in (
        (stub.GetInfo, pb.GetInfoRequest(collection="prose")),
        (stub.GetReducer, pb.GetReducerRequest(collection="prose")),
        (lambda request: list(stub.GetTokenTable(request)), pb.GetTokenTableRequest(collection="prose")),
        (stub.Retrieve, good(prose, collection="prose")),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call(request)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert refused.value.details() == "collection: 'prose' is not served here; served are: code, default"
    (answer,) = stub.RetrieveStream(
        iter([pb.RetrieveStreamRequest(request_id=1, request=good(prose, collection="x" * 5_000))])
    )
    assert answer.error.code == grpc.StatusCode.NOT_FOUND.value[0]
    assert len(answer.error.message) < 500


def test_a_build_of_another_collection_is_another_build(stub: pb_grpc.RetrieverStub, prose: BuiltDatastore):
    with pytest.raises(grpc.RpcError) as refused:
        stub.Retrieve(good(prose, build_id="code-1"))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "'code-1' and this server serves 'prose-1'" in refused.value.details()
    with pytest.raises(grpc.RpcError) as refused:
        stub.GetReducer(pb.GetReducerRequest(build_id="code-1"))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_without_a_default_one_a_name_is_needed_unless_there_is_only_one(prose: BuiltDatastore, code: BuiltDatastore):
    both = {"prose": prose.path, "code": code.path}
    with (
        serving(ServeConfig(collections=both, listen="127.0.0.1:0")) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        with pytest.raises(grpc.RpcError) as refused:
            pb_grpc.RetrieverStub(channel).GetInfo(pb.GetInfoRequest())
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert "served are: code, prose" in refused.value.details()
    with (
        serving(ServeConfig(collections={"code": code.path}, listen="127.0.0.1:0")) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        assert pb_grpc.RetrieverStub(channel).GetInfo(pb.GetInfoRequest()).build_id == "code-1"


def test_health_knows_each_collection(server: ServerThread):
    with grpc.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "dresd.v1.Retriever", "dresd.v1.Retriever/code", "dresd.v1.Retriever/default"):
            status = health.Check(health_pb2.HealthCheckRequest(service=name)).status
            assert status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as unknown:
            health.Check(health_pb2.HealthCheckRequest(service="dresd.v1.Retriever/prose"))
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_client_draws_on_the_collection_it_is_told(server: ServerThread, code: BuiltDatastore):
    with client_of(server.address, collection="code") as client:
        assert client.connect(CODE_MODEL).build_id == "code-1"
        drafts = client.retrieve(
            code.entries.keys[:2].astype(np.float16),
            code.entries.next_tokens[:2].tolist(),
            neighbors=10,
            max_nodes=16,
            temperature=0.1,
        )
        assert drafts is not None
    with client_of(server.address) as client, pytest.raises(RetrieverMismatchError, match="tokenizer_hash"):
        client.connect(CODE_MODEL)


def test_a_client_of_a_collection_that_is_not_there_is_told_which_are(server: ServerThread):
    with (
        client_of(server.address, collection="prose") as client,
        pytest.raises(RetrieverMismatchError, match=r"no such collection: 'prose' .* served are: code, default"),
    ):
        client.connect_when_up(IDENTITY)


def test_one_that_cannot_be_opened_stops_the_start_and_is_named(prose: BuiltDatastore, tmp_path: Path):
    thread = ServerThread(local_config(prose.path, collections={"code": tmp_path / "nowhere"}), loaded=False)
    error = thread.starting.exception()
    thread.close()
    assert "nowhere" in str(error)
