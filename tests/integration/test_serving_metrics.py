"""What a scrape reads, compared with what was asked."""

from __future__ import annotations

import socket
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.serving.access import Access
from retriever_service.serving.config import ServeConfig
from retriever_service.serving.errors import ServeError
from tests.support.certificates import put
from tests.support.datastore import BuiltDatastore
from tests.support.serving import (
    PATIENCE_S,
    GatedDatastore,
    OpenStream,
    ServerThread,
    eventually,
    local_config,
    request_for,
    servable_datastore,
    serving,
)

QUERIES = 3


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltDatastore:
    return servable_datastore(tmp_path_factory.mktemp("metrics") / "store", num_partitions=2)


def measured(built: BuiltDatastore, **options: object) -> ServeConfig:
    return local_config(built.path, metrics_listen="127.0.0.1:0", **options)


def request(built: BuiltDatastore, **changes: object) -> pb.RetrieveRequest:
    return request_for(built.entries.keys[:QUERIES], built.entries.next_tokens[:QUERIES].tolist(), **changes)


def scrape(server: ServerThread) -> dict[str, float]:
    """Values by name, with the labels' values in the order of their names."""
    port = server.server.metrics_port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as response:
        text = response.read().decode()
    return {
        sample.name + "".join(f"[{sample.labels[label]}]" for label in sorted(sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_was_answered_is_what_is_counted(built: BuiltDatastore):
    with (
        serving(measured(built)) as server,
        grpc.insecure_channel(server.address) as channel,
        OpenStream(server.address) as stream,
    ):
        answers = [pb_grpc.RetrieverStub(channel).Retrieve(request(built)) for _ in range(2)]
        sparse = request(
            built, sparse_neighbors=5, match_temperature=1.0, left_context_width=1, left_contexts=bytes(4 * QUERIES)
        )
        stream.send(1, sparse)
        answers.append(stream.receive().response)
        values = scrape(server)
        manifest = built.manifest
    trees = [tree for answer in answers for tree in answer.trees]
    assert values["dresd_retriever_requests_total[OK][default][Retrieve]"] == 2
    assert values["dresd_retriever_requests_total[OK][default][RetrieveStream]"] == 1
    assert values["dresd_retriever_request_duration_seconds_count[default][Retrieve]"] == 2
    assert values["dresd_retriever_request_duration_seconds_bucket[default][+Inf][Retrieve]"] == 2
    for part in ("queue", "search", "merge"):
        assert values[f"dresd_retriever_{part}_duration_seconds_count[default]"] == 3
        total_us = sum(getattr(answer.timing, f"{part}_us") for answer in answers)
        assert values[f"dresd_retriever_{part}_duration_seconds_sum[default]"] == pytest.approx(total_us / 1e6)
    assert values["dresd_retriever_queries_total[default]"] == 3 * QUERIES
    assert values["dresd_retriever_nodes_total[default]"] == sum(len(tree.tokens) for tree in trees) > 0
    assert values["dresd_retriever_neighbors_total[default][dense]"] == sum(tree.neighbors for tree in trees) > 0
    assert values["dresd_retriever_neighbors_total[default][sparse]"] == sum(tree.sparse_neighbors for tree in trees)
    for which in ("asked", "answered"):
        assert values[f"dresd_retriever_partitions_{which}_total[default]"] == sum(
            getattr(answer.coverage, f"partitions_{which}") for answer in answers
        )
    assert values["dresd_retriever_entries[default]"] == len(built.entries.keys)
    assert values["dresd_retriever_mapped_bytes[default]"] > 0
    assert values["dresd_retriever_builds[default]"] == 1
    assert values["dresd_retriever_streams_open"] == 1
    assert values["dresd_retriever_searches_in_flight"] == values["dresd_retriever_queue_depth"] == 0
    assert any(name.startswith("dresd_retriever_build_info") and f"[{manifest.build_id}]" in name for name in values)


def test_refusals_are_counted_by_status(built: BuiltDatastore):
    refused = {
        "FAILED_PRECONDITION": request(built, build_id="another"),
        "INVALID_ARGUMENT": request(built, max_nodes=0),
        "NOT_FOUND": request(built, collection="absent"),
    }
    with serving(measured(built)) as server, grpc.insecure_channel(server.address) as channel:
        for number in range(2):
            for bad in refused.values():
                with pytest.raises(grpc.RpcError):
                    pb_grpc.RetrieverStub(channel).Retrieve(bad)
            with OpenStream(server.address) as stream:
                for bad in refused.values():
                    stream.send(number, bad)
                    assert stream.receive().WhichOneof("result") == "error"
        values = scrape(server)
    for code in refused:
        collection = "" if code == "NOT_FOUND" else "default"
        for method in ("Retrieve", "RetrieveStream"):
            assert values[f"dresd_retriever_requests_total[{code}][{collection}][{method}]"] == 2


def test_what_runs_and_waits_is_seen_and_what_does_not_fit_is_counted(built: BuiltDatastore):
    gated = GatedDatastore(built.open())
    with (
        serving(measured(built, queue_size=1), lambda _: gated) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        stub = pb_grpc.RetrieverStub(channel)
        running = [stub.Retrieve.future(request(built)) for _ in range(2)]
        for _ in running:
            assert gated.begun.acquire(timeout=PATIENCE_S)
        waiting = stub.Retrieve.future(request(built))
        eventually(lambda: scrape(server)["dresd_retriever_queue_depth"] == 1)
        assert scrape(server)["dresd_retriever_searches_in_flight"] == 2
        with pytest.raises(grpc.RpcError):
            stub.Retrieve(request(built))
        assert scrape(server)["dresd_retriever_requests_total[RESOURCE_EXHAUSTED][default][Retrieve]"] == 1
        gated.gate.set()
        for future in (*running, waiting):
            future.result(PATIENCE_S)
        values = scrape(server)
        assert values["dresd_retriever_queue_depth"] == values["dresd_retriever_searches_in_flight"] == 0


def test_calls_without_a_token_are_counted(built: BuiltDatastore, tmp_path: Path):
    tokens = put(tmp_path / "tokens", b"t" * 32)
    with (
        serving(measured(built, access=Access(token_file=tokens))) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        with pytest.raises(grpc.RpcError):
            pb_grpc.RetrieverStub(channel).Retrieve(request(built))
        with pytest.raises(grpc.RpcError):
            list(pb_grpc.RetrieverStub(channel).RetrieveStream(iter([])))
        assert scrape(server)["dresd_retriever_unauthenticated_calls_total"] == 2


def test_before_anything_is_loaded_there_are_numbers(built: BuiltDatastore):
    thread = ServerThread(measured(built), lambda _: built.open())
    values = scrape(thread)
    assert values["dresd_retriever_streams_open"] == 0
    assert not any(name.startswith("dresd_retriever_requests_total") for name in values)
    port = thread.server.metrics_port
    thread.stop()
    thread.close()
    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S):
        pass


def test_a_port_in_use_is_an_error_that_says_so(built: BuiltDatastore):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        thread = ServerThread(local_config(built.path, metrics_listen=listen), loaded=False)
        error = thread.starting.exception(PATIENCE_S)
        thread.close()
    assert isinstance(error, ServeError)
    assert listen in str(error)
    assert "in use" in str(error)


def test_without_the_option_there_is_no_port(built: BuiltDatastore):
    with serving(local_config(built.path)) as server:
        assert server.server.metrics_port is None


def test_peers_are_shown_as_asked_or_left_alone(built: BuiltDatastore):
    with ExitStack() as stack:
        owner = ServerThread(local_config(built.path, partitions=[1]))
        stack.callback(owner.close)
        server = stack.enter_context(serving(measured(built, partitions=[0], peers=owner.address)))
        name = f"dresd_retriever_peer_state[{owner.address}]"
        eventually(lambda: scrape(server).get(name) == 1.0)
        owner.stop()
        eventually(lambda: scrape(server)[name] == 0.0)
