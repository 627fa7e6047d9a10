"""Unary calls, health and reflection against a real server on a real datastore."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.datastore import Datastore
from retriever_service.serving.server import Limits
from tests.support.datastore import BuiltDatastore
from tests.support.serving import (
    DIMS,
    IDENTITY,
    VOCAB,
    GatedDatastore,
    local_config,
    request_for,
    servable_datastore,
    serving,
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltDatastore:
    return servable_datastore(tmp_path_factory.mktemp("calls") / "store", num_partitions=3)


@pytest.fixture(scope="module")
def channel(built: BuiltDatastore) -> Iterator[grpc.Channel]:
    config = local_config(built.path, limits=Limits(max_queries=8, max_neighbors=40, max_nodes=30))
    with serving(config) as server, grpc.insecure_channel(server.address) as channel:
        yield channel


def some(built: BuiltDatastore, count: int = 4) -> tuple[np.ndarray, list[int]]:
    return built.entries.keys[:count].astype(np.float16), built.entries.next_tokens[:count].tolist()


def status_of(call: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    return call.code(), call.details() or ""


def test_info_states_what_is_served(built: BuiltDatastore, channel: grpc.Channel):
    info = pb_grpc.RetrieverStub(channel).GetInfo(pb.GetInfoRequest())
    assert info.service_version
    assert info.build_id == "build-1"
    assert (info.model.weights_fingerprint, info.model.hidden_size) == (
        IDENTITY.weights_fingerprint,
        IDENTITY.hidden_size,
    )
    assert (info.key_recipe.layer, info.key_recipe.norm, info.key_recipe.dims) == ("last", "l2", DIMS)
    assert (info.limits.max_queries, info.limits.max_neighbors, info.limits.max_nodes) == (8, 40, 30)
    assert info.continuation_length == built.manifest.continuation_length
    assert info.left_context_length == built.manifest.left_context_length
    assert (list(info.served_partitions), info.num_entries) == ([0, 1, 2], len(built.entries))
    assert info.routing.num_partitions == 3
    assert set(info.routing.tokens) == set(built.entries.next_tokens.tolist())
    assert info.routing.offsets[-1] == len(info.routing.partitions)


def test_the_reducer_is_the_file(built: BuiltDatastore, channel: grpc.Channel):
    reducer = pb_grpc.RetrieverStub(channel).GetReducer(pb.GetReducerRequest())
    assert reducer.sha256 == hashlib.sha256(reducer.safetensors).hexdigest()
    assert reducer.sha256 == built.manifest.key_recipe.reducer_hash


@pytest.mark.parametrize("float32", [False, True])
def test_answers_are_the_datastores_drafts(built: BuiltDatastore, channel: grpc.Channel, float32: bool):
    keys, next_tokens = some(built)
    response = pb_grpc.RetrieverStub(channel).Retrieve(request_for(keys, next_tokens, float32=float32))
    expected = built.open().draft(
        keys.astype(np.float32), np.array(next_tokens), neighbors=10, max_nodes=16, max_depth=6, temperature=0.1
    )
    assert response.build_id == "build-1"
    assert [list(tree.tokens) for tree in response.trees] == [tree.tokens.tolist() for tree in expected.trees]
    assert [list(tree.parents) for tree in response.trees] == [(tree.parents + 1).tolist() for tree in expected.trees]
    for tree, draft in zip(response.trees, expected.trees, strict=True):
        np.testing.assert_allclose(tree.dense_masses, draft.masses[:, 0], rtol=1e-6)
    assert [tree.neighbors for tree in response.trees] == expected.neighbor_counts[:, 0].tolist()
    assert response.coverage.partitions_asked == response.coverage.partitions_answered == expected.partitions_asked


def test_a_token_nobody_stored_gets_an_empty_tree(built: BuiltDatastore, channel: grpc.Channel):
    unknown = [VOCAB, 2**31, 2**32 - 1]
    response = pb_grpc.RetrieverStub(channel).Retrieve(request_for(some(built, 3)[0], unknown))
    assert [(len(tree.tokens), tree.neighbors, tree.dense_total_mass) for tree in response.trees] == [(0, 0, 0.0)] * 3
    assert response.coverage.partitions_asked == 0


def test_partitions_not_served_show_in_the_coverage(built: BuiltDatastore):
    keys, next_tokens = some(built, 8)
    with serving(local_config(built.path, partitions=(1,))) as server, grpc.insecure_channel(server.address) as channel:
        stub = pb_grpc.RetrieverStub(channel)
        info, response = stub.GetInfo(pb.GetInfoRequest()), stub.Retrieve(request_for(keys, next_tokens))
    assert list(info.served_partitions) == [1]
    assert 0 < info.num_entries < len(built.entries)
    assert response.coverage.partitions_answered < response.coverage.partitions_asked


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"neighbors": 41}, grpc.StatusCode.INVALID_ARGUMENT, "neighbors: is 41; allowed is 1 to 40"),
        ({"keys": b"x"}, grpc.StatusCode.INVALID_ARGUMENT, "keys: has 1 bytes"),
        ({"build_id": "other"}, grpc.StatusCode.FAILED_PRECONDITION, "'other' and this server serves 'build-1'"),
    ],
)
def test_refusals_are_statuses(
    built: BuiltDatastore, channel: grpc.Channel, changes: dict[str, object], code: grpc.StatusCode, says: str
):
    with pytest.raises(grpc.RpcError) as refused:
        pb_grpc.RetrieverStub(channel).Retrieve(request_for(*some(built), **changes))
    assert status_of(refused.value)[0] is code
    assert says in status_of(refused.value)[1]


def test_a_message_over_the_size_limit_is_refused_unread(channel: grpc.Channel):
    with pytest.raises(grpc.RpcError) as refused:
        pb_grpc.RetrieverStub(channel).Retrieve(pb.RetrieveRequest(keys=bytes(5 << 20)))
    assert status_of(refused.value)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_failing_search_is_internal_and_the_server_goes_on(built: BuiltDatastore):
    class Broken(GatedDatastore):
        def draft(self, *arguments: object, **options: object) -> object:
            if self.gate.is_set():
                return Datastore.draft(self._datastore, *arguments, **options)
            raise OSError("the disk is gone")

    broken = Broken(built.open())
    with (
        serving(local_config(built.path), lambda _: broken) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        stub = pb_grpc.RetrieverStub(channel)
        with pytest.raises(grpc.RpcError) as failed:
            stub.Retrieve(request_for(*some(built)))
        assert status_of(failed.value) == (grpc.StatusCode.INTERNAL, "the search failed: the disk is gone")
        broken.gate.set()
        assert len(stub.Retrieve(request_for(*some(built))).trees) == 4


def test_health_and_reflection(channel: grpc.Channel):
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", "dresd.v1.Retriever"):
        status = health.Check(health_pb2.HealthCheckRequest(service=service)).status
        assert status == health_pb2.HealthCheckResponse.SERVING
    ask = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    (answer,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(ask)
    names = {service.name for service in answer.list_services_response.service}
    assert {"dresd.v1.Retriever", "grpc.health.v1.Health"} <= names


def test_a_request_may_name_the_partitions_to_search(built: BuiltDatastore, channel: grpc.Channel):
    keys, tokens = some(built, 8)
    stub = pb_grpc.RetrieverStub(channel)
    whole = stub.Retrieve(request_for(keys, tokens))
    parts = [stub.Retrieve(request_for(keys, tokens, partitions=[number])) for number in range(3)]
    assert sum(part.coverage.partitions_asked for part in parts) == whole.coverage.partitions_asked
    assert all(part.coverage.partitions_answered == part.coverage.partitions_asked for part in parts)
    found = [sum(tree.neighbors for tree in part.trees) for part in parts]
    assert sum(found) >= sum(tree.neighbors for tree in whole.trees)
    assert max(found) < sum(found)
    nowhere = stub.Retrieve(request_for(keys, tokens, partitions=[3]))
    assert (nowhere.coverage.partitions_asked, nowhere.coverage.partitions_answered) == (0, 0)


def test_whoever_requires_full_coverage_gets_an_error_in_place_of_a_part(built: BuiltDatastore, channel: grpc.Channel):
    keys, tokens = some(built, 8)
    assert pb_grpc.RetrieverStub(channel).Retrieve(request_for(keys, tokens, require_full_coverage=True)).trees
    with serving(local_config(built.path, partitions=[0])) as part, grpc.insecure_channel(part.address) as only:
        stub = pb_grpc.RetrieverStub(only)
        partial = stub.Retrieve(request_for(keys, tokens))
        assert (partial.coverage.partitions_asked, partial.coverage.partitions_answered) == (3, 1)
        assert stub.Retrieve(request_for(keys, tokens, partitions=[0], require_full_coverage=True)).trees
        with pytest.raises(grpc.RpcError) as refused:
            stub.Retrieve(request_for(keys, tokens, require_full_coverage=True))
    code, details = status_of(refused.value)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "1 of the 3 partitions" in details
