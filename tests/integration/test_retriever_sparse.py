"""Sparse lookups and the token table, from a datastore's files through a real server to a client."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from decoder_client.retriever import Draft, RetrieverClient, RetrieverConfig, RetrieverMismatchError
from decoder_client.retriever_errors import RetrieverUnavailableError
from dresd.token_table import PAIR_ARRAYS, UNIGRAM_ARRAYS, WIDTH, TokenTable
from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.datastore import TOKEN_TABLE_FILE, FileRecord, save_token_table
from retriever_service.serving.messages import info_message, reducer_message
from retriever_service.serving.server import Limits, ServeConfig
from tests.support.datastore import BuiltDatastore, edit_manifest
from tests.support.serving import (
    IDENTITY,
    PATIENCE_S,
    VOCAB,
    ServerThread,
    eventually,
    local_config,
    request_for,
    servable_datastore,
    serving,
)

MIB = 1 << 20
ASKED = {"max_nodes": 16, "temperature": 0.1, "match_temperature": 2.0}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltDatastore:
    return servable_datastore(tmp_path_factory.mktemp("sparse") / "store", num_partitions=2)


@pytest.fixture(scope="module")
def server(built: BuiltDatastore) -> Iterator[ServerThread]:
    with serving(local_config(built.path, limits=Limits(max_queries=4, max_neighbors=30, max_nodes=20))) as server:
        yield server


def client_of(address: str) -> RetrieverClient:
    return RetrieverClient(
        RetrieverConfig(
            address, deadline_ms=PATIENCE_S * 1e3, connect_timeout_s=PATIENCE_S, retry_base_s=0.01, retry_max_s=0.05
        )
    )


def same_tables(one: TokenTable, other: TokenTable) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in (*UNIGRAM_ARRAYS, *PAIR_ARRAYS))


def put_table(path: Path, table: TokenTable) -> None:
    save_token_table(path / TOKEN_TABLE_FILE, table)
    record = FileRecord.of(path / TOKEN_TABLE_FILE).model_dump()
    edit_manifest(path, lambda content: content["files"].__setitem__(TOKEN_TABLE_FILE, record))


def large_table() -> TokenTable:
    random = np.random.default_rng(0)
    pairs = np.sort(random.integers(0, VOCAB, size=(120_000, 2)), axis=0).astype(np.int32)
    tokens = random.integers(0, VOCAB, size=(len(pairs), WIDTH)).astype(np.int32)
    table = TokenTable.empty()
    return dataclasses.replace(
        table,
        pair_tokens=pairs,
        pair_next_tokens=tokens,
        pair_probabilities=random.random((len(pairs), WIDTH)).astype(np.float16),
    )


@pytest.mark.parametrize(
    "kinds",
    [
        {"neighbors": 10},
        {"neighbors": 0, "sparse_neighbors": 10},
        {"neighbors": 10, "sparse_neighbors": 10},
        {"neighbors": 10**6, "sparse_neighbors": 10**6},
    ],
)
def test_a_client_gets_the_datastores_drafts(built: BuiltDatastore, server: ServerThread, kinds: dict[str, int]):
    entries = built.entries
    keys, next_tokens = entries.keys[:9].astype(np.float16), entries.next_tokens[:9]
    contexts = entries.left_contexts[:9].copy()
    contexts[:3, 2:] = 7
    wider = np.concatenate([contexts, np.full((9, 3), 1, np.int32)], axis=1)  # than what is stored
    with client_of(server.address) as client:
        assert client.connect(IDENTITY).left_context_length == built.manifest.left_context_length
        drafts = client.retrieve(keys, next_tokens.tolist(), left_contexts=wider, **ASKED, **kinds)
    allowed = {name: min(number, 30) for name, number in kinds.items()}
    expected = built.open().draft(keys.astype(np.float32), next_tokens, left_contexts=contexts, **ASKED, **allowed)
    assert drafts is not None
    for query, draft in enumerate(drafts):
        tree = expected.trees[query]
        assert draft.tree.tokens.tolist() == tree.tokens.tolist()
        assert draft.tree.parents.tolist() == tree.parents.tolist()
        np.testing.assert_allclose(draft.tree.masses, tree.masses, rtol=1e-6)
        np.testing.assert_allclose(draft.total_masses, expected.total_masses[query], rtol=1e-6)
        assert draft.neighbors == tuple(expected.neighbor_counts[query].tolist())
        assert draft.longest_match == expected.longest_matches[query]
    if "sparse_neighbors" in kinds:
        assert max(draft.longest_match for draft in drafts) == contexts.shape[1]


def test_an_answer_to_a_request_without_sparse_fields_is_as_it_was(built: BuiltDatastore, server: ServerThread):
    request = request_for(built.entries.keys[:4], built.entries.next_tokens[:4].tolist())
    assert request.match_temperature == request.left_context_width == 0
    with grpc.insecure_channel(server.address) as channel:
        response = pb_grpc.RetrieverStub(channel).Retrieve(request)
    for tree in response.trees:
        assert len(tree.dense_masses) == len(tree.tokens) > 0
        assert (len(tree.sparse_masses), tree.sparse_total_mass, tree.sparse_neighbors, tree.longest_match) == (0,) * 4


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sparse_neighbors": 31}, "sparse_neighbors"),
        ({"left_contexts": b"x"}, "left_contexts"),
        ({"left_context_width": 6}, "left_context_width"),
        ({"match_temperature": 0.0}, "match_temperature"),
        ({"neighbors": 0, "sparse_neighbors": 0}, "neighbors"),
    ],
)
def test_a_bad_sparse_field_is_a_status(
    built: BuiltDatastore, server: ServerThread, changes: dict[str, object], field: str
):
    good = {
        "left_contexts": built.entries.left_contexts[:2].astype("<i4").tobytes(),
        "left_context_width": 5,
        "sparse_neighbors": 3,
        "match_temperature": 2.0,
    }
    keys, next_tokens = built.entries.keys[:2], built.entries.next_tokens[:2].tolist()
    with grpc.insecure_channel(server.address) as channel:
        stub = pb_grpc.RetrieverStub(channel)
        assert stub.Retrieve(request_for(keys, next_tokens, **good)).trees[0].longest_match > 0
        with pytest.raises(grpc.RpcError) as refused:
            stub.Retrieve(request_for(keys, next_tokens, **{**good, **changes}))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details().startswith(f"{field}: ")


def test_the_table_of_the_handshake_is_the_datastores(built: BuiltDatastore, server: ServerThread):
    with client_of(server.address) as client:
        table = client.connect(IDENTITY).token_table
    assert len(table.unigram_tokens) > 0
    assert same_tables(table, built.open().token_table)


def test_a_table_larger_than_any_message_may_be_arrives_whole(tmp_path: Path):
    store = servable_datastore(tmp_path / "store")
    put_table(store.path, large_table())
    content = (store.path / TOKEN_TABLE_FILE).read_bytes()
    assert len(content) > 4 * MIB
    with serving(local_config(store.path)) as server:
        with client_of(server.address) as client:
            assert same_tables(client.connect(IDENTITY).token_table, large_table())
        with grpc.insecure_channel(server.address) as channel:
            parts = list(pb_grpc.RetrieverStub(channel).GetTokenTable(pb.GetTokenTableRequest()))
    assert b"".join(part.chunk for part in parts) == content
    assert max(len(part.chunk) for part in parts) <= MIB
    assert {(part.total_size, part.sha256) for part in parts} == {(len(content), hashlib.sha256(content).hexdigest())}


def test_the_table_changes_with_the_build_and_only_with_it(tmp_path: Path, built: BuiltDatastore):
    successor = servable_datastore(tmp_path / "successor", build_id="build-2", seed=1)
    with serving(local_config(built.path)) as first:
        address = first.address
        client = client_of(address)
        table = client.connect(IDENTITY).token_table

    def answers(store: BuiltDatastore) -> list[Draft] | None:
        return client.retrieve(
            store.entries.keys[:1].astype(np.float16), [0], neighbors=1, max_nodes=1, temperature=0.1
        )

    with client:
        with serving(ServeConfig(built.path, listen=address)):
            eventually(lambda: client.stats.reconnects == 1 and answers(built) is not None)
            assert client.handshake.token_table is table
        with serving(ServeConfig(successor.path, listen=address)):
            eventually(lambda: client.handshake.build_id == "build-2")
            assert same_tables(client.handshake.token_table, successor.open().token_table)
    assert not same_tables(table, client.handshake.token_table)


def test_no_message_is_an_invalid_argument_to_the_table_too(server: ServerThread):
    with grpc.insecure_channel(server.address) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            list(channel.unary_stream("/dresd.v1.Retriever/GetTokenTable")(b"\xff\xff\xff", timeout=PATIENCE_S))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert list(pb_grpc.RetrieverStub(channel).GetTokenTable(pb.GetTokenTableRequest()))


class OlderServer(pb_grpc.RetrieverServicer):
    """Shakes hands, and implements no token table."""

    def __init__(self, built: BuiltDatastore) -> None:
        datastore = built.open()
        self.info, self.reducer = info_message(datastore, Limits()), reducer_message(datastore)

    def GetInfo(self, request, context):  # noqa: ARG002, N802
        return self.info

    def GetReducer(self, request, context):  # noqa: ARG002, N802
        return self.reducer

    def RetrieveStream(self, request_iterator, context):  # noqa: ARG002, N802
        yield from (pb.RetrieveStreamResponse(request_id=one.request_id) for one in request_iterator)


class TableServer(OlderServer):
    """Sends whatever parts the test likes, and perhaps no end."""

    def __init__(self, built: BuiltDatastore, parts: Callable[[], Iterator[pb.GetTokenTableResponse]]) -> None:
        super().__init__(built)
        self.parts = parts

    def GetTokenTable(self, request, context):  # noqa: ARG002, N802
        yield from self.parts()


@contextmanager
def answering(servicer: pb_grpc.RetrieverServicer) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4))
    pb_grpc.add_RetrieverServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait(PATIENCE_S)


def test_a_server_without_a_table_gives_an_empty_one(built: BuiltDatastore):
    with answering(OlderServer(built)) as address, client_of(address) as client:
        assert same_tables(client.connect(IDENTITY).token_table, TokenTable.empty())


class Streamless(OlderServer):
    """Shakes hands, and ends every stream."""

    def RetrieveStream(self, request_iterator, context):  # noqa: ARG002, N802
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "no streams here")


def test_a_server_that_is_lost_right_after_hands_were_shaken_is_said_to_be(built: BuiltDatastore):
    with answering(Streamless(built)) as address:
        for _ in range(400):  # sometimes it is lost before its handshake is looked at, sometimes after
            with client_of(address) as client:
                try:
                    client.connect(IDENTITY)
                except RetrieverUnavailableError as error:
                    assert "no streams here" in str(error)  # noqa: PT017 - it need not be raised


def part(chunk: bytes, total_size: int, sha256: str) -> pb.GetTokenTableResponse:
    return pb.GetTokenTableResponse(chunk=chunk, total_size=total_size, sha256=sha256)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def endless() -> Iterator[pb.GetTokenTableResponse]:
    while True:
        yield part(bytes(MIB), 2 * MIB, "00" * 32)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (lambda: iter(()), "readable safetensors"),
        (lambda: iter([part(b"abc", 4, sha256(b"abc"))]), "3 bytes"),
        (lambda: iter([part(b"abc", 2, sha256(b"abc"))]), "3 bytes"),
        (lambda: iter([part(b"abc", 3, sha256(b"abd"))]), "3 bytes"),
        (lambda: iter([part(b"abc", 3, sha256(b"abc"))]), "readable safetensors"),
        (endless, f"{3 * MIB} bytes"),
    ],
)
def test_what_is_no_table_is_refused(
    built: BuiltDatastore, parts: Callable[[], Iterator[pb.GetTokenTableResponse]], says: str
):
    with answering(TableServer(built, parts)) as address, client_of(address) as client:
        with pytest.raises(RetrieverMismatchError, match=says) as refused:
            client.connect(IDENTITY)
        assert address in str(refused.value)
