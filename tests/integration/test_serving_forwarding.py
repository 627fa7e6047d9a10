"""A server asked for what it does not serve: it asks its peers, and answers like one that serves all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from dresd.draft_tree import ROOT, DraftTree
from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.datastore import Datastore
from retriever_service.serving.server import ServeError
from tests.support.datastore import BuiltDatastore
from tests.support.fleet import addresses_of, asked_of, expected, fleet, same_tree, trees_of
from tests.support.retriever import client_of
from tests.support.serving import (
    IDENTITY,
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

PARTITIONS = 4
COUNT = 40


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltDatastore:
    return servable_datastore(tmp_path_factory.mktemp("forwarding") / "store", num_partitions=PARTITIONS)


@pytest.fixture(scope="module")
def store(built: BuiltDatastore) -> Datastore:
    return built.open()


def question(built: BuiltDatastore, **changes: object) -> pb.RetrieveRequest:
    """About every partition, with a token that is split among several."""
    sizes = {"neighbors": 500, "max_nodes": 1024, "sparse_neighbors": 500, "match_temperature": 3.3}
    return request_for(
        built.entries.keys[:COUNT].astype(np.float16),
        built.entries.next_tokens[:COUNT].tolist(),
        left_contexts=built.entries.left_contexts[:COUNT].astype("<i4").tobytes(),
        left_context_width=built.entries.left_contexts.shape[1],
        **{**sizes, **changes},
    )


def tree_of(message: pb.DraftTree) -> DraftTree:
    sparse = message.sparse_masses or [0.0] * len(message.tokens)
    return DraftTree(
        np.array(message.tokens, np.int32),
        np.array(message.parents, np.int32) + ROOT,
        np.array([message.dense_masses, sparse], np.float64).T,
    )


@contextmanager
def stub_of(server: ServerThread) -> Iterator[pb_grpc.RetrieverStub]:
    with grpc.insecure_channel(server.address) as channel:
        yield pb_grpc.RetrieverStub(channel)


def is_full(response: pb.RetrieveResponse) -> bool:
    return response.coverage.partitions_asked == response.coverage.partitions_answered == PARTITIONS


@pytest.mark.parametrize("share", [[0], [0, 1], [3]])
def test_any_server_answers_anything(built: BuiltDatastore, tmp_path: Path, share: list[int]):
    """Each part from one owner: the same trees, totals and counts as of one server with all partitions."""
    peers = tmp_path / "peers"
    with (
        fleet(built, [share], peers=f"file:{peers}") as [asked],
        fleet(built, [[0], [1, 2], [2, 3], range(4)]) as others,
        stub_of(asked) as stub,
        stub_of(others[3]) as everything,
    ):
        assert not is_full(stub.Retrieve(question(built)))
        peers.write_text("\n".join([asked.address, *(other.address for other in others[:3])]))
        eventually(lambda: is_full(stub.Retrieve(question(built))))
        found, wanted = stub.Retrieve(question(built)), everything.Retrieve(question(built))
    assert found.build_id == wanted.build_id
    for mine, theirs in zip(found.trees, wanted.trees, strict=True):
        assert same_tree(tree_of(mine), tree_of(theirs))
        for field in ("neighbors", "sparse_neighbors", "longest_match", "best_similarity"):
            assert getattr(mine, field) == getattr(theirs, field), field
        assert mine.dense_total_mass == pytest.approx(theirs.dense_total_mass)
        assert mine.sparse_total_mass == pytest.approx(theirs.sparse_total_mass)


@pytest.fixture
def pair(built: BuiltDatastore) -> Iterator[tuple[ServerThread, ServerThread]]:
    """One that passes on, and the owner of the rest."""
    with fleet(built, [[2, 3]]) as [owner], fleet(built, [[0, 1]], peers=owner.address) as [asked]:
        with stub_of(asked) as stub:
            eventually(lambda: is_full(stub.Retrieve(question(built))))
        yield asked, owner


def test_what_was_passed_on_is_not_passed_on_again(built: BuiltDatastore, pair: tuple[ServerThread, ServerThread]):
    with stub_of(pair[0]) as stub:
        assert stub.Retrieve(question(built, forwarded=True)).coverage.partitions_answered == 2
        assert is_full(stub.Retrieve(question(built)))


def test_a_stream_of_short_searches_is_passed_on_too(
    built: BuiltDatastore, store: Datastore, pair: tuple[ServerThread, ServerThread]
):
    def ask(row: int) -> pb.RetrieveRequest:
        return request_for(built.entries.keys[[row]].astype(np.float16), [int(built.entries.next_tokens[row])])

    away = [set(store.routing.partitions_of(int(token)).tolist()) & {2, 3} for token in built.entries.next_tokens]
    rows = [next(row for row, parts in enumerate(away) if bool(parts) == is_away) for is_away in (False, True)]
    with OpenStream(pair[0].address) as stream:
        for number in range(100):
            stream.send(number, ask(rows[number % 2]), timeout_us=int(PATIENCE_S * 1e6))
            answer = stream.receive()
            assert answer.request_id == number
            coverage = answer.response.coverage
            assert coverage.partitions_asked == coverage.partitions_answered > 0


def test_named_partitions_only_are_passed_on(built: BuiltDatastore, pair: tuple[ServerThread, ServerThread]):
    with stub_of(pair[0]) as stub:
        coverage = stub.Retrieve(question(built, partitions=[1, 3])).coverage
    assert (coverage.partitions_asked, coverage.partitions_answered) == (2, 2)


def test_a_peer_that_is_lost_costs_its_partitions_only(
    built: BuiltDatastore, store: Datastore, pair: tuple[ServerThread, ServerThread]
):
    with stub_of(pair[0]) as stub:
        pair[1].stop(0.0)
        response = stub.Retrieve(question(built), timeout=PATIENCE_S)
        assert (response.coverage.partitions_asked, response.coverage.partitions_answered) == (4, 2)
        for row, tree in enumerate(response.trees):
            held = set(store.routing.partitions_of(int(built.entries.next_tokens[row])).tolist())
            assert bool(tree.neighbors) == bool(held & {0, 1})
        with pytest.raises(grpc.RpcError) as refused:
            stub.Retrieve(question(built, require_full_coverage=True), timeout=PATIENCE_S)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "2 of the 4 partitions" in (refused.value.details() or "")


def test_a_peer_that_never_answers_makes_nothing_late(built: BuiltDatastore):
    gated = GatedDatastore(built.open(partitions=[2, 3]))
    gated.gate.set()
    with (
        serving(local_config(built.path), lambda _: gated) as owner,
        fleet(built, [[0, 1]], peers=owner.address) as [asked],
        stub_of(asked) as stub,
    ):
        eventually(lambda: is_full(stub.Retrieve(question(built))))
        gated.gate.clear()
        for _ in range(5):
            response = stub.Retrieve(question(built), timeout=1.0)  # else DEADLINE_EXCEEDED
            assert response.coverage.partitions_answered == 2
        gated.gate.set()
        eventually(lambda: is_full(stub.Retrieve(question(built))))


def test_another_build_is_not_asked(built: BuiltDatastore, tmp_path: Path):
    other = servable_datastore(tmp_path / "other", build_id="build-2", seed=1, num_partitions=PARTITIONS)
    with (
        fleet(other, [[2, 3]]) as [stranger],
        fleet(built, [[2]]) as [owner],
        fleet(built, [[0, 1]], peers=addresses_of([stranger, owner])) as [asked],
        stub_of(asked) as stub,
    ):
        eventually(lambda: stub.Retrieve(question(built)).coverage.partitions_answered == 3)


def test_an_overdue_owner_is_replaced_by_another_one(built: BuiltDatastore):
    with (
        fleet(built, [[2, 3], [2, 3]]) as owners,
        fleet(built, [[0, 1]], peers=addresses_of(owners)) as [asked],
        stub_of(asked) as stub,
    ):
        eventually(lambda: is_full(stub.Retrieve(question(built))))
        owners[0].stop(0.0)
        for _ in range(10):
            assert is_full(stub.Retrieve(question(built)))


def test_a_client_of_one_server_gets_everything(
    built: BuiltDatastore, store: Datastore, pair: tuple[ServerThread, ServerThread]
):
    rows = list(range(COUNT))
    with client_of(pair[0].address) as client:
        client.connect(IDENTITY)
        drafts = asked_of(client, built, rows, neighbors=500, max_nodes=1024)
    assert drafts.coverage.is_full
    wanted = expected(store, built, rows, neighbors=500, max_nodes=1024)
    assert all(map(same_tree, trees_of(drafts), wanted))


def test_peers_that_are_none_are_refused(built: BuiltDatastore):
    with pytest.raises(ServeError, match="is not an address"):
        local_config(built.path, peers="nowhere")
