"""A client and several servers: every query goes to the owners of its partitions, and the answers are one server's."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoder_client.retriever import RetrieverClient, RetrieverMismatchError, RetrieverUnavailableError
from dresd.identity import ModelIdentity
from retriever_service.datastore import Datastore
from tests.support.datastore import BuiltDatastore
from tests.support.fleet import ALL, addresses_of, asked_of, expected, fleet, same_tree, trees_of
from tests.support.retriever import client_of
from tests.support.serving import (
    IDENTITY,
    GatedDatastore,
    ServerThread,
    eventually,
    local_config,
    servable_datastore,
    serving,
)
from tests.support.swapping import Admin, root_of_builds, swapping_config

PARTITIONS = 4


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltDatastore:
    return servable_datastore(tmp_path_factory.mktemp("routing") / "store", num_partitions=PARTITIONS)


@pytest.fixture(scope="module")
def store(built: BuiltDatastore) -> Datastore:
    return built.open()


@pytest.fixture(scope="module")
def rows(built: BuiltDatastore, store: Datastore) -> list[int]:
    """Positions with tokens of every partition, a token that is split among them."""
    tokens = built.entries.next_tokens
    split = [row for row, token in enumerate(tokens.tolist()) if len(store.routing.partitions_of(token)) > 1]
    whole = [row for row, token in enumerate(tokens.tolist()) if len(store.routing.partitions_of(token)) == 1]
    assert split
    chosen = [*split[:2], *whole[:12]]
    assert len(np.unique(store.routing.lookup(tokens[chosen])[1])) == PARTITIONS
    return chosen


SHARES = st.lists(st.sets(st.integers(0, PARTITIONS - 1), min_size=1), min_size=1, max_size=4).filter(
    lambda shares: set().union(*shares) == set(range(PARTITIONS))
)


@given(shares=SHARES, few=st.booleans())
@settings(max_examples=15, deadline=None)
def test_any_split_of_partitions_answers_like_one_server(
    built: BuiltDatastore, store: Datastore, rows: list[int], shares: list[set[int]], few: bool
):
    """With all neighbours, what one server answers; with few, too, unless a token is split."""
    with fleet(built, [sorted(share) for share in shares]) as servers, client_of(addresses_of(servers)) as client:
        client.connect(IDENTITY)
        sizes = {} if few else {"neighbors": 500, "max_nodes": 1024}
        drafts = asked_of(client, built, rows, **sizes)
        for row, found, wanted in zip(rows, trees_of(drafts), expected(store, built, rows, **sizes), strict=True):
            split = len(store.routing.partitions_of(int(built.entries.next_tokens[row]))) > 1
            if not (split and few):
                assert same_tree(found, wanted)
        assert drafts.coverage.is_full
        assert drafts.coverage.partitions_asked >= PARTITIONS
    assert (client.stats.answered, client.stats.partial, client.stats.late, client.stats.failed) == (1, 0, 0, 0)


def test_a_split_token_gets_the_nearest_of_every_server(built: BuiltDatastore, store: Datastore, rows: list[int]):
    with fleet(built, [[0], [1], [2], [3]]) as servers, client_of(addresses_of(servers)) as client:
        client.connect(IDENTITY)
        drafts = asked_of(client, built, rows, max_nodes=ALL)
    assert all(
        same_tree(found, wanted)
        for found, wanted in zip(trees_of(drafts), expected(store, built, rows, max_nodes=1024), strict=True)
    )


def test_no_entry_counts_twice_where_shares_overlap(built: BuiltDatastore, rows: list[int]):
    with (
        fleet(built, [[0, 1, 2, 3]]) as alone,
        fleet(built, [[0, 1], [1, 2], [2, 3], [3, 0]]) as overlapping,
        client_of(addresses_of(alone)) as one,
        client_of(addresses_of(overlapping)) as several,
    ):
        one.connect(IDENTITY)
        several.connect(IDENTITY)
        sizes = {"neighbors": 500, "max_nodes": 1024}
        wanted, found = asked_of(one, built, rows, **sizes), asked_of(several, built, rows, **sizes)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.neighbors == theirs.neighbors
        assert mine.total_masses == pytest.approx(theirs.total_masses)
        assert mine.best_similarity == theirs.best_similarity
        assert mine.longest_match == theirs.longest_match


def test_a_token_without_entries_is_an_empty_draft_that_nobody_is_asked_for(built: BuiltDatastore):
    with fleet(built, [[0], [1], [2], [3]]) as servers, client_of(addresses_of(servers)) as client:
        client.connect(IDENTITY)
        drafts = client.retrieve(np.zeros((2, 8), np.float16), [10**6] * 2, neighbors=1, max_nodes=1, temperature=0.1)
        assert [len(tree) for tree in trees_of(drafts)] == [0, 0]
        assert drafts.coverage.is_full


def test_lost_partitions_cost_only_the_drafts_of_their_tokens(built: BuiltDatastore, store: Datastore, rows: list[int]):
    with fleet(built, [[0], [1], [2], [3]]) as servers, client_of(addresses_of(servers)) as client:
        client.connect(IDENTITY)
        servers[1].stop(0.0)
        eventually(lambda: (drafts := asked_of(client, built, rows)) is not None and not drafts.coverage.is_full)
        drafts = asked_of(client, built, rows)
        assert (drafts.coverage.partitions_asked, drafts.coverage.partitions_answered) == (4, 3)
        assert client.stats.partial > 0
        for row, tree, wanted in zip(rows, trees_of(drafts), expected(store, built, rows), strict=True):
            held = store.routing.partitions_of(int(built.entries.next_tokens[row])).tolist()
            if held == [1]:
                assert len(tree) == 0
            elif 1 not in held:
                assert same_tree(tree, wanted)


def test_a_replica_that_leaves_is_not_missed(built: BuiltDatastore, store: Datastore, rows: list[int]):
    with fleet(built, [[0], [1, 2, 3], [0], [1, 2, 3]]) as servers, client_of(addresses_of(servers)) as client:
        client.connect(IDENTITY)
        wanted = expected(store, built, rows)
        for number in (0, 3):
            assert asked_of(client, built, rows) is not None
            servers[number].stop(0.0)
        for _ in range(20):
            drafts = asked_of(client, built, rows)
            assert drafts is not None
            assert drafts.coverage.is_full
        assert all(
            same_tree(found, want)
            for row, found, want in zip(rows, trees_of(drafts), wanted, strict=True)
            if len(store.routing.partitions_of(int(built.entries.next_tokens[row]))) == 1
        )


def test_a_second_server_is_asked_where_the_first_is_overdue(built: BuiltDatastore, rows: list[int]):
    slow = GatedDatastore(built.open())
    slow.gate.set()
    with (
        serving(local_config(built.path), lambda _: slow) as first,
        serving(local_config(built.path)) as second,
        client_of(addresses_of([first, second]), hedging=0.5) as client,
    ):
        client.connect(IDENTITY)
        for _ in range(100):
            assert asked_of(client, built, rows) is not None
        before = client.stats.hedged
        slow.gate.clear()
        # Least outstanding: whoever is asked first and does not answer is not asked first again.
        for _ in range(10):
            assert asked_of(client, built, rows) is not None
        slow.gate.set()
        assert client.stats.hedged - before <= 10
        assert client.stats.hedged <= 0.5 * client.stats.calls
        assert client.stats.late == 0


def test_without_hedging_nobody_is_asked_twice(built: BuiltDatastore, rows: list[int]):
    with fleet(built, [[0, 1, 2, 3]] * 2) as servers, client_of(addresses_of(servers), hedging=0.0) as client:
        client.connect(IDENTITY)
        for _ in range(100):
            assert asked_of(client, built, rows) is not None
        assert client.stats.hedged == 0


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    return tmp_path / "servers"


def followed(listed: Path, **changes: object) -> RetrieverClient:
    return client_of(f"file:{listed}", resolve_interval_s=0.01, **changes)


def test_servers_come_and_go_by_the_file(built: BuiltDatastore, rows: list[int], listed: Path):
    with fleet(built, [[0], [1, 2, 3], [0]]) as servers:
        listed.write_text(f"# the first\n{servers[0].address}\n\n")
        with followed(listed) as client:
            client.connect(IDENTITY)
            assert not asked_of(client, built, rows).coverage.is_full
            listed.write_text("\n".join(server.address for server in servers[:2]))
            eventually(lambda: asked_of(client, built, rows).coverage.is_full)
            listed.write_text("\n".join(server.address for server in servers[1:]))
            eventually(lambda: servers[0].call(_open_streams(servers[0])) == 0)
            eventually(lambda: asked_of(client, built, rows).coverage.is_full)  # the third is dialled meanwhile
            assert client.stats.failed == client.stats.late == 0


async def _open_streams(server: ServerThread) -> int:
    return len(server.server._service._streams)


@pytest.mark.parametrize("spoil", ["missing", "nonsense", "not text", "empty"])
def test_a_list_that_cannot_be_read_changes_nothing(
    built: BuiltDatastore, rows: list[int], listed: Path, spoil: str, caplog: pytest.LogCaptureFixture
):
    with fleet(built, [[0, 1, 2, 3]]) as servers:
        listed.write_text(servers[0].address)
        with followed(listed) as client:
            client.connect(IDENTITY)
            if spoil == "missing":
                listed.unlink()
            else:
                listed.write_bytes({"nonsense": b"nowhere", "not text": b"\xff\xfe", "empty": b"# soon\n"}[spoil])
            eventually(lambda: any("servers known so far" in record.message for record in caplog.records))
            assert asked_of(client, built, rows) is not None


def test_a_list_that_is_not_there_yet_is_waited_for(built: BuiltDatastore, rows: list[int], listed: Path):
    with followed(listed) as client, pytest.raises(RetrieverUnavailableError, match="cannot read"):
        client.connect(IDENTITY)
    with fleet(built, [[0, 1, 2, 3]]) as servers, followed(listed) as client:
        client.connect_when_up(IDENTITY)
        assert str(listed) in client.trouble
        listed.write_text(servers[0].address)
        eventually(lambda: asked_of(client, built, rows) is not None)
        assert client.trouble == ""


def test_a_name_is_a_server_at_each_of_its_addresses(built: BuiltDatastore, rows: list[int]):
    with fleet(built, [[0, 1, 2, 3]]) as servers:
        port = servers[0].address.rsplit(":", 1)[1]
        with client_of(f"dns:///localhost:{port}") as client:
            client.connect(IDENTITY)
            assert asked_of(client, built, rows) is not None


def test_one_server_of_several_is_enough_to_connect(
    built: BuiltDatastore, rows: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    other = servable_datastore(tmp_path / "other", model=ModelIdentity("x", "", "0" * 64, "1" * 64, 12, 50))
    with (
        fleet(built, [[0, 1, 2, 3]]) as servers,
        fleet(other, [[0]]) as others,
        client_of(addresses_of([*others, *servers])) as client,
    ):
        client.connect(IDENTITY)
        assert asked_of(client, built, rows) is not None
        assert any("another model" in record.message for record in caplog.records)
        with client_of(addresses_of(others)) as wrong, pytest.raises(RetrieverMismatchError):
            wrong.connect(IDENTITY)


def test_builds_are_never_mixed_and_the_one_that_covers_more_is_followed(
    built: BuiltDatastore, rows: list[int], tmp_path: Path, listed: Path
):
    successor = servable_datastore(tmp_path / "next", build_id="build-2", seed=1, num_partitions=PARTITIONS)
    with fleet(built, [[0], [1], [2], [3]]) as old, fleet(successor, [[0], [1], [2], [3]]) as new:
        listed.write_text("\n".join(server.address for server in [*old[:3], new[3]]))
        with followed(listed) as client:
            client.connect(IDENTITY)
            drafts = asked_of(client, built, rows)
            assert client.handshake.build_id == "build-1"
            assert drafts.coverage.partitions_answered == 3, "the last server's build is another"
            listed.write_text("\n".join(server.address for server in [old[0], *new[1:]]))
            eventually(lambda: client.handshake.build_id == "build-2")
            assert client.handshake.reducer.sha256 == successor.manifest.key_recipe.reducer_hash
            listed.write_text("\n".join(server.address for server in new))
            eventually(lambda: asked_of(client, successor, rows).coverage.is_full)
            wanted = expected(successor.open(), successor, rows)
            assert all(map(same_tree, trees_of(asked_of(client, successor, rows)), wanted))


def test_the_build_that_is_followed_stays_where_both_cover_as_much(
    built: BuiltDatastore, rows: list[int], tmp_path: Path, listed: Path
):
    successor = servable_datastore(tmp_path / "next", build_id="build-2", num_partitions=PARTITIONS)
    with fleet(built, [[0, 1, 2, 3]]) as old, fleet(successor, [[0, 1, 2, 3]]) as new:
        listed.write_text(old[0].address)
        with followed(listed) as client:
            client.connect(IDENTITY)
            listed.write_text("\n".join(server.address for server in [*old, *new]))
            eventually(lambda: new[0].call(_open_streams(new[0])) == 1)
            assert asked_of(client, built, rows) is not None
            assert client.handshake.build_id == "build-1"
            old[0].stop(0.0)
            eventually(lambda: client.handshake.build_id == "build-2" and asked_of(client, built, rows) is not None)


def test_closing_a_client_of_many_servers_leaves_no_thread(built: BuiltDatastore, rows: list[int], listed: Path):
    with fleet(built, [[0], [1], [2, 3], [0, 1, 2, 3]]) as servers:
        listed.write_text("\n".join([*(server.address for server in servers), "127.0.0.1:1"]))
        with followed(listed) as client:
            client.connect(IDENTITY)
            assert asked_of(client, built, rows) is not None
        names = {"dresd-keeper", "dresd-retrieve", "dresd-discovery"}
        eventually(lambda: not names & {thread.name for thread in threading.enumerate()})


@pytest.mark.parametrize("shares", [[[0, 1, 2, 3]], [[0, 1], [2, 3]]])
def test_a_swapped_build_is_taken_up_while_the_old_one_still_answers(tmp_path: Path, shares: list[list[int]]):
    root = root_of_builds(
        tmp_path / "root", one={"num_partitions": PARTITIONS}, two={"num_partitions": PARTITIONS, "seed": 1}
    )
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(swapping_config(root.path, partitions=share))) for share in shares]
        client = stack.enter_context(client_of(addresses_of(servers)))
        client.connect(IDENTITY)
        rows = list(range(20))
        root.publish("two")
        for server in servers:
            assert asked_of(client, root.builds["one"], rows) is not None
            with Admin(server) as admin:
                admin.reload()

        def is_followed() -> bool:
            assert asked_of(client, root.builds["one"], rows) is not None
            return client.handshake.build_id == "two"

        eventually(is_followed)
        eventually(lambda: asked_of(client, root.builds["two"], rows).coverage.is_full)
        assert client.handshake.reducer.sha256 == root.builds["two"].manifest.key_recipe.reducer_hash
        assert (client.stats.failed, client.stats.late, client.stats.skipped) == (0, 0, 0)
        assert client.stats.reconnects == 0


def test_a_client_that_wants_full_coverage_gets_it_or_nothing(built: BuiltDatastore, store: Datastore, rows: list[int]):
    tokens = built.entries.next_tokens
    held = [row for row in rows if store.routing.partitions_of(int(tokens[row])).tolist() == [0]]
    assert held
    with (
        fleet(built, [[0]]) as servers,
        client_of(addresses_of(servers), require_full_coverage=True) as strict,
        client_of(addresses_of(servers)) as other,
    ):
        strict.connect(IDENTITY)
        other.connect(IDENTITY)
        assert strict.servers_asked == {servers[0].address}
        for _ in range(10):  # more than opens a breaker: the server did nothing wrong
            assert asked_of(strict, built, rows) is None
            assert not asked_of(other, built, rows).coverage.is_full
        assert asked_of(strict, built, held).coverage.is_full
        servers[0].stop()
        eventually(lambda: asked_of(strict, built, held) is None and strict.servers_asked == frozenset())
        assert strict.servers == (servers[0].address,)
