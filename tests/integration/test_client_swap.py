"""Clients and streams that ask all the time while builds are swapped under them: nothing fails, nothing is mixed."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from decoder_client.retriever import RetrieverClient
from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from tests.support.datastore import BuiltDatastore
from tests.support.retriever import client_of
from tests.support.serving import IDENTITY, PATIENCE_S, OpenStream, eventually, request_for, serving
from tests.support.swapping import LONG_S, SOON_S, Admin, Root, held, root_of_builds, swapping_config

QUERIES = 3


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return root_of_builds(tmp_path / "root", one={}, two={"seed": 1}, three={"seed": 2})


def states_of(count: int) -> np.ndarray:
    return np.random.default_rng(7).normal(size=(count, IDENTITY.hidden_size)).astype(np.float32)


def next_tokens_of(built: BuiltDatastore) -> list[int]:
    return built.entries.next_tokens[:QUERIES].tolist()


def trees_by_build(root: Root) -> dict[str, list[list[int]]]:
    """What each build answers to the same states, by keys of its own reducer."""
    tokens = np.array(next_tokens_of(root.builds["one"]))
    answers = {}
    for name, built in root.builds.items():
        keys = reducer_of(built).reduce(states_of(QUERIES)).astype(np.float16).astype(np.float32)
        batch = built.open().draft(keys, tokens, neighbors=10, max_nodes=16, temperature=0.1)
        answers[name] = [tree.tokens.tolist() for tree in batch.trees]
    assert len({str(trees) for trees in answers.values()}) == len(answers), "the builds can be told apart"
    return answers


def reducer_of(built: BuiltDatastore) -> object:
    from decoder_client.reducer import KeyReducer

    return KeyReducer.from_bytes(built.open().reducer_bytes)


def ask_as_a_decoder_does(client: RetrieverClient, tokens: list[int]) -> list[list[int]] | None:
    """Reduces first, asks later: another build may be followed in between."""
    reducer = client.handshake.reducer
    keys = reducer.reduce(states_of(QUERIES)).astype(np.float16)
    drafts = client.retrieve(keys, tokens, reducer=reducer, neighbors=10, max_nodes=16, temperature=0.1)
    return None if drafts is None else [draft.tree.tokens.tolist() for draft in drafts]


@contextmanager
def going_on(workers: list[object]) -> Iterator[list[Future[int]]]:
    """Calls each worker again and again until the block ends; what they returned is counted in the futures."""
    stop = threading.Event()

    def run(worker: object) -> int:
        times = 0
        while not stop.is_set():
            worker()
            times += 1
        return times

    with ThreadPoolExecutor(len(workers)) as threads:
        futures = [threads.submit(run, worker) for worker in workers]
        try:
            yield futures
        finally:
            stop.set()
    for future in futures:
        assert future.result(PATIENCE_S) > 0


def test_no_request_fails_while_builds_are_swapped_under_clients_and_streams(root: Root):
    trees = trees_by_build(root)
    tokens = next_tokens_of(root.builds["one"])
    seen: set[str] = set()

    def decode(client: RetrieverClient) -> None:
        answer = ask_as_a_decoder_does(client, tokens)
        assert answer is not None
        builds = [name for name, expected in trees.items() if expected == answer]
        assert builds, "keys of one build met the entries of another"
        seen.update(builds)

    one = root.builds["one"]
    unnamed = request_for(one.entries.keys[:QUERIES], tokens)

    def stream_on(stream: OpenStream) -> None:
        stream.send(1, unnamed)
        assert stream.receive().WhichOneof("result") == "response"

    with (
        serving(swapping_config(root.path, reload_interval_s=SOON_S, queue_size=64)) as server,
        Admin(server) as admin,
        OpenStream(server.address) as stream,
        grpc.insecure_channel(server.address) as channel,
        client_of(server.address) as first,
        client_of(server.address) as second,
    ):
        stub = pb_grpc.RetrieverStub(channel)
        for client in (first, second):
            client.connect(IDENTITY)
        workers = [
            lambda: decode(first),
            lambda: decode(second),
            lambda: stream_on(stream),
            lambda: stub.Retrieve(unnamed, timeout=PATIENCE_S),
        ]
        with going_on(workers) as running:
            for name in ["two", "three", "one"] * 4:
                root.publish(name)
                eventually(lambda name=name: admin.builds()[0] == name or any(each.done() for each in running))
                for client in (first, second):
                    eventually(
                        lambda client=client, name=name: (
                            client.handshake.build_id == name or any(each.done() for each in running)
                        )
                    )
        for client in (first, second):
            stats = client.stats
            assert (stats.failed, stats.late, stats.skipped, stats.reconnects) == (0, 0, 0, 0)
    assert seen == {"one", "two", "three"}


def test_builds_that_come_and_go_leave_no_memory_map_and_no_file(root: Root):
    tokens = next_tokens_of(root.builds["one"])
    with (
        serving(swapping_config(root.path, build_grace_s=SOON_S)) as server,
        Admin(server) as admin,
        client_of(server.address) as client,
    ):
        client.connect(IDENTITY)
        for name in ["two", "three", "one"] * 3:
            root.publish(name)
            admin.reload()
            eventually(lambda: ask_as_a_decoder_does(client, tokens) is not None and len(admin.builds()) == 1)
        eventually(lambda: not held(root.path / "two") and not held(root.path / "three"))
        assert held(root.path / "one")


def test_keys_made_before_the_swap_are_answered_by_the_build_before(root: Root):
    trees = trees_by_build(root)
    tokens = next_tokens_of(root.builds["one"])
    with serving(swapping_config(root.path)) as server, Admin(server) as admin, client_of(server.address) as client:
        before = client.connect(IDENTITY).reducer
        keys = before.reduce(states_of(QUERIES)).astype(np.float16)
        root.publish("two")
        admin.reload()
        eventually(lambda: ask_as_a_decoder_does(client, tokens) == trees["two"])
        assert client.handshake.build_id == "two"
        drafts = client.retrieve(keys, tokens, reducer=before, neighbors=10, max_nodes=16, temperature=0.1)
        assert [draft.tree.tokens.tolist() for draft in drafts] == trees["one"]
        assert client.stats.failed == 0


def test_keys_of_a_build_that_is_gone_get_no_draft_and_cost_no_connection(root: Root):
    trees = trees_by_build(root)
    tokens = next_tokens_of(root.builds["one"])
    with (
        serving(swapping_config(root.path, build_grace_s=LONG_S)) as server,
        Admin(server) as admin,
        client_of(server.address) as client,
    ):
        before = client.connect(IDENTITY).reducer
        root.publish("two")
        admin.reload()
        eventually(lambda: ask_as_a_decoder_does(client, tokens) == trees["two"])
        collection = next(iter(server.server._reloaders)).collection
        server.call(_retire(collection, "one"))
        keys = before.reduce(states_of(QUERIES)).astype(np.float16)
        assert client.retrieve(keys, tokens, reducer=before, neighbors=10, max_nodes=16, temperature=0.1) is None
        assert ask_as_a_decoder_does(client, tokens) == trees["two"]
        assert (client.trouble, client.stats.reconnects) == ("", 0)


async def _retire(collection: object, build_id: str) -> None:
    collection._retire(build_id)


def test_a_build_for_others_leaves_the_client_with_the_old_one_as_long_as_it_is_served(tmp_path: Path):
    other = dataclasses.replace(IDENTITY, tokenizer_hash="88" * 32)
    root = root_of_builds(tmp_path / "root", one={}, other={"model": other})
    tokens = next_tokens_of(root.builds["one"])
    with serving(swapping_config(root.path)) as server, Admin(server) as admin, client_of(server.address) as client:
        client.connect(IDENTITY)
        root.publish("other")
        admin.reload(allow_other_model=True)
        for _ in range(20):
            assert ask_as_a_decoder_does(client, tokens) is not None
        assert (client.handshake.build_id, client.trouble, client.stats.failed) == ("one", "", 0)
        root.publish("one")
        admin.reload()
        assert ask_as_a_decoder_does(client, tokens) is not None


def test_while_servers_of_parts_swap_one_by_one_all_partitions_answer(tmp_path: Path):
    root = root_of_builds(tmp_path / "root", one={"num_partitions": 2}, two={"num_partitions": 2, "seed": 1})
    parts = [swapping_config(root.path, partitions=[number]) for number in range(2)]
    rows = slice(0, 40)
    with (
        serving(parts[0]) as left,
        serving(parts[1]) as right,
        Admin(left) as to_left,
        Admin(right) as to_right,
        client_of(f"{left.address},{right.address}") as client,
    ):
        client.connect(IDENTITY)

        def ask() -> pb.Coverage:
            reducer = client.handshake.reducer
            tokens = root.builds["one"].entries.next_tokens[rows]
            keys = reducer.reduce(np.repeat(states_of(1), len(tokens), axis=0)).astype(np.float16)
            drafts = client.retrieve(keys, tokens.tolist(), reducer=reducer, neighbors=5, max_nodes=9, temperature=0.1)
            assert drafts is not None
            assert drafts.coverage.is_full
            return client.handshake.build_id

        assert ask() == "one"
        root.publish("two")
        to_left.reload()
        for _ in range(20):
            assert ask() == "one", "the other half of the new build is not served yet"
        to_right.reload()
        eventually(lambda: ask() == "two")
        assert (client.stats.failed, client.stats.reconnects) == (0, 0)
