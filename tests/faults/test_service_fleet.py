"""Several servers as processes, some of them killed, frozen, or taken off the list: drafts stay right and in time."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest

from benchmarks.held import held_by
from decoder_client.generation import SpeculativeDecoder
from decoder_client.retriever import Drafts, RetrieverClient
from decoder_client.target_model import TargetModel
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.datastore import Datastore
from tests.support.datastore import BuiltDatastore
from tests.support.fleet import asked_of, expected, same_tree, trees_of
from tests.support.retriever import client_of
from tests.support.serving import (
    ServerProcess,
    eventually,
    request_for,
    servable_datastore,
)

PROMPT = [3, 1, 4, 1, 5]
ROWS = list(range(30))
SHARES = ("0", "1", "0", "1")
DEADLINE_MS = 2_000.0
"""Long enough on a busy machine; what waits for a dead server waits this long."""


@pytest.fixture(scope="module")
def built(target: TargetModel, tmp_path_factory: pytest.TempPathFactory) -> BuiltDatastore:
    path = tmp_path_factory.mktemp("fleet") / "store"
    return servable_datastore(path, num_partitions=2, model=target.identity())


@pytest.fixture(scope="module")
def store(built: BuiltDatastore) -> Datastore:
    return built.open()


@contextmanager
def processes(built: BuiltDatastore, shares: Sequence[str], *options: str) -> Iterator[list[ServerProcess]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(ServerProcess(built.path, "--partitions", share, "--search-threads", "1", *options))
            for share in shares
        ]


def connected(target: TargetModel, address: str) -> RetrieverClient:
    client = client_of(address, deadline_ms=DEADLINE_MS, resolve_interval_s=0.05)
    client.connect(target.identity())
    return client


class Judge:
    """Compares drafts with those of one server that has everything."""

    def __init__(self, built: BuiltDatastore, store: Datastore) -> None:
        self._built = built
        self._trees = expected(store, built, ROWS)

    def ask(self, client: RetrieverClient) -> Drafts | None:
        """Every tree that came is whole or, of partitions that did not answer, empty; never another."""
        drafts = asked_of(client, self._built, ROWS)
        if drafts is not None:
            answers = list(zip(trees_of(drafts), self._trees, strict=True))
            assert all(len(found) == 0 or same_tree(found, wanted) for found, wanted in answers)
            if drafts.coverage.is_full:
                assert all(len(found) == len(wanted) for found, wanted in answers)
        return drafts


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_replica_of_each_partition_is_enough(
    target: TargetModel, built: BuiltDatastore, store: Datastore, number: signal.Signals
):
    judge = Judge(built, store)
    plain = SpeculativeDecoder(target).generate(PROMPT, max_new_tokens=30).tokens
    with processes(built, SHARES) as servers, connected(target, ",".join(one.ready() for one in servers)) as client:
        for _ in range(40):
            assert judge.ask(client).coverage.is_full
        for server in servers[:2]:
            server.send(number)
        answers = [judge.ask(client) for _ in range(60)]
        assert sum(drafts is not None and drafts.coverage.is_full for drafts in answers) >= 45
        assert client.stats.hedged <= 0.05 * 2 * client.stats.calls
        decoder = SpeculativeDecoder.from_pretrained(target, client, nodes=16, context=False)
        assert decoder.generate(PROMPT, max_new_tokens=30).tokens == plain


def test_all_replicas_of_a_partition_gone_cost_its_drafts_until_one_is_back(
    target: TargetModel, built: BuiltDatastore, store: Datastore
):
    judge = Judge(built, store)
    plain = SpeculativeDecoder(target).generate(PROMPT, max_new_tokens=30).tokens
    with processes(built, SHARES) as servers:
        addresses = [server.ready() for server in servers]
        with connected(target, ",".join(addresses)) as client:
            assert judge.ask(client).coverage.is_full
            for server in (servers[0], servers[2]):
                server.send(signal.SIGKILL)
                server.finish()
            eventually(lambda: (drafts := judge.ask(client)) is not None and not drafts.coverage.is_full)
            decoder = SpeculativeDecoder.from_pretrained(target, client, nodes=16, context=False)
            assert decoder.generate(PROMPT, max_new_tokens=30).tokens == plain
            with ServerProcess(built.path, "--partitions", "0", listen=addresses[0]) as back:
                back.ready()
                eventually(lambda: (drafts := judge.ask(client)) is not None and drafts.coverage.is_full)


def test_servers_are_added_and_taken_off_by_the_file(
    target: TargetModel, built: BuiltDatastore, store: Datastore, tmp_path: Path
):
    judge, listed = Judge(built, store), tmp_path / "servers"
    with processes(built, SHARES) as servers:
        addresses = [server.ready() for server in servers]
        listed.write_text("\n".join(addresses[:2]))
        with connected(target, f"file:{listed}") as client:
            assert judge.ask(client).coverage.is_full
            listed.write_text("\n".join(addresses))
            eventually(lambda: len(client.servers) == 4)
            listed.write_text("\n".join(addresses[2:]))
            eventually(lambda: client.servers == tuple(addresses[2:]))
            for server in servers[:2]:
                server.send(signal.SIGKILL)
            for _ in range(20):
                assert judge.ask(client).coverage.is_full


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_target_of_forwarding_may_die_or_freeze(built: BuiltDatastore, number: signal.Signals):
    question = request_for(built.entries.keys[:30], built.entries.next_tokens[:30].tolist())
    with (
        processes(built, "1") as [owner],
        processes(built, "0", "--peers", owner.ready()) as [asked],
        grpc.insecure_channel(asked.ready()) as channel,
    ):
        stub = pb_grpc.RetrieverStub(channel)

        def answered() -> int:
            return stub.Retrieve(question, timeout=DEADLINE_MS / 1e3).coverage.partitions_answered

        eventually(lambda: answered() == 2)
        files, memory = held_by([asked.process.pid])
        owner.send(number)
        for _ in range(8):
            assert answered() == 1  # in time, else it is DEADLINE_EXCEEDED
        if number == signal.SIGSTOP:
            owner.send(signal.SIGCONT)
            eventually(lambda: answered() == 2)
        eventually(lambda: held_by([asked.process.pid])[0] <= files + 2)
        assert held_by([asked.process.pid])[1] <= memory + (32 << 20)
