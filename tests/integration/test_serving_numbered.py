"""Servers that know nothing but their number, and the port where they tell their health."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.serving.access import Access, TlsFiles
from retriever_service.serving.server import ServeConfig, ServeError
from tests.support.certificates import authority, issued_by, put, put_pair
from tests.support.datastore import BuiltDatastore
from tests.support.serving import PATIENCE_S, ServerThread, local_config, servable_datastore, serving
from tests.support.swapping import Admin, root_of_builds, swapping_config


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltDatastore:
    return servable_datastore(tmp_path_factory.mktemp("numbered") / "store", num_partitions=3)


def served_by(server: ServerThread) -> list[int]:
    with grpc.insecure_channel(server.address) as channel:
        return list(pb_grpc.RetrieverStub(channel).GetInfo(pb.GetInfoRequest(), timeout=PATIENCE_S).served_partitions)


@pytest.mark.parametrize(("ordinal", "partition"), [(0, 0), (2, 2), (3, 0), (2**32 - 1, (2**32 - 1) % 3)])
def test_a_server_serves_the_partition_of_its_number(built: BuiltDatastore, ordinal: int, partition: int):
    with serving(local_config(built.path, ordinal=ordinal)) as server:
        assert served_by(server) == [partition]


def test_a_build_with_another_number_of_partitions_is_shared_out_anew(tmp_path: Path):
    root = root_of_builds(tmp_path, old={"num_partitions": 2}, new={"num_partitions": 4, "seed": 1})
    with serving(swapping_config(root.path, ordinal=3)) as server, Admin(server) as admin:
        assert served_by(server) == [1]
        root.publish("new")
        admin.reload()
        assert served_by(server) == [3]


def test_a_server_is_told_its_share_one_way_only():
    with pytest.raises(ServeError, match="ordinal and partitions"):
        ServeConfig(Path("d"), ordinal=0, partitions=(0,))


def health_at(port: int | None, name: str) -> int:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = health_pb2.HealthCheckRequest(service=name)
        return health_pb2_grpc.HealthStub(channel).Check(request, timeout=PATIENCE_S).status


def test_health_is_told_in_plain_text_beside_a_locked_door_and_nothing_else_is(built: BuiltDatastore, tmp_path: Path):
    certificate, key = put_pair(tmp_path, issued_by(authority()))
    access = Access(TlsFiles(certificate, key), token_file=put(tmp_path / "tokens", b"t" * 32), open_health=False)
    with serving(local_config(built.path, access=access, health_listen="127.0.0.1:0")) as server:
        port = server.server.health_port
        for name in ("", "dresd.v1.Retriever", "dresd.v1.Retriever/default"):
            assert health_at(port, name) == health_pb2.HealthCheckResponse.SERVING
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as refused:
            pb_grpc.RetrieverStub(channel).GetInfo(pb.GetInfoRequest(), timeout=PATIENCE_S)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        server.stop()
        with pytest.raises(grpc.RpcError):
            health_at(port, "")
