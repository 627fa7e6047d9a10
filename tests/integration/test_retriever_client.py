"""The client against real servers in the same process."""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from decoder_client.retriever import (
    Draft,
    RetrieverClient,
    RetrieverError,
    RetrieverMismatchError,
    RetrieverUnavailableError,
)
from dresd.allowance import MOST
from dresd.identity import ModelIdentity
from retriever_service.datastore import Datastore
from retriever_service.serving.server import Limits, ServeConfig
from tests.support.datastore import BuiltDatastore
from tests.support.retriever import client_of
from tests.support.serving import (
    IDENTITY,
    PATIENCE_S,
    GatedDatastore,
    ServerThread,
    eventually,
    fitted_reducer,
    local_config,
    servable_datastore,
    serving,
)


@pytest.fixture(scope="module")
def server(built: BuiltDatastore) -> Iterator[ServerThread]:
    with serving(local_config(built.path, limits=Limits(max_queries=4, max_neighbors=30, max_nodes=20))) as server:
        yield server


def ask(client: RetrieverClient, built: BuiltDatastore, count: int = 1, **changes: object) -> list[Draft] | None:
    options = {"neighbors": 10, "max_nodes": 16, "temperature": 0.1, **changes}
    keys = built.entries.keys[:count].astype(np.float16)
    return client.retrieve(keys, built.entries.next_tokens[:count].tolist(), **options)


def expected_trees(built: BuiltDatastore, count: int, neighbors: int = 10, max_nodes: int = 16) -> list[list[int]]:
    keys = built.entries.keys[:count].astype(np.float16).astype(np.float32)
    batch = built.open().draft(
        keys, built.entries.next_tokens[:count], neighbors=neighbors, max_nodes=max_nodes, temperature=0.1
    )
    return [tree.tokens.tolist() for tree in batch.trees]


def tokens_of(drafts: list[Draft] | None) -> list[list[int]]:
    assert drafts is not None
    return [draft.tree.tokens.tolist() for draft in drafts]


def test_a_handshake_tells_what_is_served(built: BuiltDatastore, server: ServerThread):
    with client_of(server.address) as client:
        handshake = client.connect(IDENTITY)
        assert client.handshake is handshake
    assert (handshake.build_id, handshake.model) == ("build-1", IDENTITY)
    assert handshake.continuation_length == built.manifest.continuation_length
    assert handshake.limits.max_queries == 4
    assert handshake.reducer.sha256 == handshake.key_recipe.reducer_hash == fitted_reducer().sha256


def test_a_batch_gets_the_datastores_drafts(built: BuiltDatastore, server: ServerThread):
    with client_of(server.address) as client:
        client.connect(IDENTITY)
        assert tokens_of(ask(client, built, 3)) == expected_trees(built, 3)
        stats = client.stats
    assert (stats.calls, stats.answered, stats.late, stats.failed) == (1, 1, 0, 0)
    assert stats.total_ms == stats.p50_ms > 0.0


@pytest.mark.parametrize("count", [11, 4 * (MOST + 8)])  # the latter takes more requests than may be unanswered
def test_a_batch_larger_than_a_request_may_be_is_split(built: BuiltDatastore, server: ServerThread, count: int):
    with client_of(server.address) as client:
        client.connect(IDENTITY)
        assert tokens_of(ask(client, built, count)) == expected_trees(built, count)


def test_more_than_the_limits_allow_is_what_they_allow(built: BuiltDatastore, server: ServerThread):
    with client_of(server.address) as client:
        client.connect(IDENTITY)
        drafts = ask(client, built, 1, neighbors=10**6, max_nodes=10**6, max_depth=10**6)
    assert tokens_of(drafts) == expected_trees(built, 1, neighbors=30, max_nodes=20)


def test_a_batch_of_nothing_has_no_drafts(built: BuiltDatastore, server: ServerThread):
    with client_of(server.address) as client:
        client.connect(IDENTITY)
        assert ask(client, built, 0) == []


def test_several_threads_may_ask_at_once(built: BuiltDatastore, server: ServerThread):
    expected = expected_trees(built, 4)
    wrong: list[object] = []

    def work(client: RetrieverClient) -> None:
        for _ in range(30):
            drafts = ask(client, built, 4)
            if drafts is None or tokens_of(drafts) != expected:
                wrong.append(drafts)

    with client_of(server.address) as client:
        client.connect(IDENTITY)
        threads = [threading.Thread(target=work, args=(client,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.stats.answered == 120
    assert wrong == []


@pytest.mark.parametrize(
    ("changes", "both"),
    [
        ({"weights_fingerprint": "ff" * 32}, ["ff" * 32, IDENTITY.weights_fingerprint]),
        ({"tokenizer_hash": "ff" * 32}, ["ff" * 32, IDENTITY.tokenizer_hash]),
        ({"hidden_size": 13}, ["hidden_size: 13 against 12"]),
        ({"vocab_size": 51}, ["vocab_size: 51 against 50"]),
    ],
)
def test_another_model_is_refused_with_both_values(server: ServerThread, changes: dict[str, object], both: list[str]):
    with client_of(server.address) as client:
        with pytest.raises(RetrieverMismatchError) as refused:
            client.connect(dataclasses.replace(IDENTITY, **changes))
        assert client.handshake is None
    for value in both:
        assert value in str(refused.value)


def test_other_weights_are_accepted_if_asked_for(built: BuiltDatastore, server: ServerThread):
    with client_of(server.address, require_same_weights=False) as client:
        client.connect(dataclasses.replace(IDENTITY, weights_fingerprint="ff" * 32, name="tuned"))
        assert ask(client, built) is not None
    with client_of(server.address, require_same_weights=False) as client, pytest.raises(RetrieverMismatchError):
        client.connect(dataclasses.replace(IDENTITY, tokenizer_hash="ff" * 32))


def test_nobody_at_the_address_is_an_error_that_says_so(built: BuiltDatastore):
    with serving(local_config(built.path)) as server:
        address = server.address
    with client_of(address) as client, pytest.raises(RetrieverUnavailableError, match=address):
        client.connect(IDENTITY)


def test_a_connect_that_failed_may_be_tried_again(built: BuiltDatastore):
    with serving(local_config(built.path)) as server:
        address = server.address
    with client_of(address) as client:
        with pytest.raises(RetrieverUnavailableError):
            client.connect(IDENTITY)
        with serving(ServeConfig(built.path, listen=address)):
            client.connect(IDENTITY)
            assert ask(client, built) is not None


def test_a_refused_request_is_no_draft_and_no_trouble(built: BuiltDatastore, server: ServerThread):
    with client_of(server.address, failure_threshold=1) as client:
        client.connect(IDENTITY)
        not_a_number = np.full((1, built.entries.keys.shape[1]), np.nan, np.float16)
        assert client.retrieve(not_a_number, [1], neighbors=1, max_nodes=1, temperature=0.1) is None
        assert client.retrieve(not_a_number[:, :-1], [1], neighbors=1, max_nodes=1, temperature=0.1) is None
        assert client.trouble == ""
        assert ask(client, built) is not None
        assert (client.stats.failed, client.stats.answered) == (2, 1)


def test_what_is_no_batch_is_the_callers_error(server: ServerThread):
    with client_of(server.address) as client:
        client.connect(IDENTITY)
        with pytest.raises(ValueError, match="2 next tokens"):
            client.retrieve(np.zeros((1, 8), np.float16), [1, 2], neighbors=1, max_nodes=1, temperature=0.1)
        with pytest.raises(RetrieverError, match="connected already"):
            client.connect(IDENTITY)


def test_a_late_answer_is_no_draft_and_is_not_taken_for_a_later_one(built: BuiltDatastore):
    gated = GatedDatastore(built.open())
    with (
        serving(local_config(built.path), lambda _: gated) as server,
        client_of(server.address, deadline_ms=200.0) as client,
    ):
        client.connect(IDENTITY)
        assert ask(client, built, 1) is None
        assert client.stats.late == 1
        gated.gate.set()  # the first answer comes now, and nobody may take it for the next one's
        answers: list[list[Draft]] = []
        eventually(lambda: bool(answers.extend([drafts] if (drafts := ask(client, built, 2)) else []) or answers))
    assert tokens_of(answers[0]) == expected_trees(built, 2)


def test_a_service_that_is_always_late_is_left_alone_and_asked_again(built: BuiltDatastore):
    gated = GatedDatastore(built.open())
    with (
        serving(local_config(built.path), lambda _: gated) as server,
        client_of(server.address, deadline_ms=50.0, failure_threshold=2, retry_base_s=0.01) as client,
    ):
        client.connect(IDENTITY)
        assert ask(client, built) is None
        assert ask(client, built) is None
        eventually(lambda: client.stats.reconnects > 0)
        assert client.stats.late == 2
        gated.gate.set()
        eventually(lambda: ask(client, built) is not None)


def test_an_overloaded_service_is_no_draft(built: BuiltDatastore):
    gated = GatedDatastore(built.open())
    config = ServeConfig(built.path, listen="127.0.0.1:0", search_threads=1, queue_size=1)
    outcomes: queue.SimpleQueue[list[Draft] | None] = queue.SimpleQueue()
    with serving(config, lambda _: gated) as server, client_of(server.address) as client:
        client.connect(IDENTITY)
        threads = [threading.Thread(target=lambda: outcomes.put(ask(client, built))) for _ in range(3)]
        for thread in threads:
            thread.start()
        # One runs, one waits, and the third comes back without a draft while the search is still held up.
        assert outcomes.get(timeout=PATIENCE_S / 2) is None
        gated.gate.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert (client.stats.failed, client.stats.answered, client.stats.late) == (1, 2, 0)


def test_what_a_client_keeps_to_itself_is_not_held_against_the_server(built: BuiltDatastore):
    gated = GatedDatastore(built.open())
    with (
        serving(local_config(built.path), lambda _: gated) as server,
        client_of(server.address, deadline_ms=1000 * PATIENCE_S, failure_threshold=3) as client,
        ThreadPoolExecutor(MOST + 6) as threads,
    ):
        client.connect(IDENTITY)
        calls = [threads.submit(ask, client, built) for _ in range(MOST + 6)]
        eventually(lambda: sum(call.done() for call in calls) == 6)
        assert client.trouble == ""
        gated.gate.set()
        assert sum(call.result(PATIENCE_S) is not None for call in calls) == MOST
        assert client.stats.reconnects == 0


@pytest.mark.parametrize("seed", [0, 1])
def test_another_build_on_the_same_port_is_adopted_with_its_reducer(tmp_path: Path, built: BuiltDatastore, seed: int):
    successor = servable_datastore(tmp_path / "successor", build_id="build-2", seed=seed)
    with serving(local_config(built.path)) as first:
        client = client_of(first.address)
        client.connect(IDENTITY)
        assert ask(client, built) is not None
        reducer = client.handshake.reducer
    with client, serving(ServeConfig(successor.path, listen=first.address)):
        eventually(lambda: ask(client, successor) is not None)
        assert client.handshake.build_id == "build-2"
        assert client.handshake.reducer.sha256 == successor.manifest.key_recipe.reducer_hash
        assert (client.handshake.reducer is reducer) == (seed == 0)
        assert tokens_of(ask(client, successor, 3)) == expected_trees(successor, 3)


def test_another_model_on_the_same_port_is_never_adopted(tmp_path: Path, built: BuiltDatastore):
    other = servable_datastore(
        tmp_path / "other", model=dataclasses.replace(IDENTITY, tokenizer_hash="99" * 32), build_id="build-9"
    )
    with serving(local_config(built.path)) as first:
        client = client_of(first.address)
        client.connect(IDENTITY)
    with client:
        with serving(ServeConfig(other.path, listen=first.address)):
            eventually(lambda: ask(client, built) is None and "tokenizer_hash" in client.trouble)
            assert "99" * 32 in client.trouble
            assert client.handshake.build_id == "build-1"
        with serving(ServeConfig(built.path, listen=first.address)):
            eventually(lambda: ask(client, built) is not None)


def test_a_service_that_comes_up_later_is_used_then(built: BuiltDatastore):
    with serving(local_config(built.path)) as gone:
        address = gone.address
    with client_of(address) as client:
        client.connect_when_up(IDENTITY)
        assert (client.handshake, ask(client, built)) == (None, None)
        assert address in client.trouble
        with serving(ServeConfig(built.path, listen=address)):
            eventually(lambda: client.handshake is not None)
            assert tokens_of(ask(client, built)) == expected_trees(built, 1)
            assert client.trouble == ""


def test_another_model_is_refused_when_connecting_when_up_too(server: ServerThread):
    with client_of(server.address) as client, pytest.raises(RetrieverMismatchError, match="hidden_size"):
        client.connect_when_up(dataclasses.replace(IDENTITY, hidden_size=13))


def test_closing_leaves_no_thread_and_no_file(built: BuiltDatastore, server: ServerThread):
    def once() -> None:
        with client_of(server.address) as client:
            client.connect(IDENTITY)
            assert ask(client, built) is not None

    def counts() -> tuple[int, int]:
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    once()  # what grpc makes once a process
    before = counts()
    for _ in range(5):
        once()
    eventually(lambda: counts() <= before)


def test_closing_in_the_middle_of_trouble_leaves_no_thread(built: BuiltDatastore):
    before = threading.active_count()
    with serving(local_config(built.path)) as server:
        client = client_of(server.address)
        client.connect(IDENTITY)
    eventually(lambda: client.trouble != "")
    client.close()
    eventually(lambda: threading.active_count() <= before)
    assert ask(client, built) is None
    client.close()


def test_closing_wakes_a_call_that_waits(built: BuiltDatastore):
    gated = GatedDatastore(built.open())
    with serving(local_config(built.path), lambda _: gated) as server:
        client = client_of(server.address)
        client.connect(IDENTITY)
        waiting = threading.Thread(target=ask, args=(client, built))
        waiting.start()
        assert gated.begun.acquire(timeout=PATIENCE_S)
        client.close()
        waiting.join(PATIENCE_S / 2)
        assert not waiting.is_alive()
        gated.gate.set()


def test_a_service_that_is_still_loading_is_told_from_none(built: BuiltDatastore, caplog: pytest.LogCaptureFixture):
    loading = threading.Event()
    with serving(local_config(built.path)) as gone:
        address = gone.address

    def opened(folder: Path) -> Datastore:
        assert loading.wait(PATIENCE_S)
        return Datastore.open(folder)

    server = ServerThread(ServeConfig(built.path, listen=address), opened, loaded=False)
    try:
        with client_of(address) as client:
            client.connect_when_up(IDENTITY)
            eventually(lambda: "still loading" in client.trouble)
            assert "no retriever answers" not in client.trouble
            loading.set()
            eventually(lambda: ask(client, built) is not None)
        server.server = server.starting.result(PATIENCE_S)
        server.stop()
    finally:
        loading.set()
        server.close()
    assert any("still loading" in record.message for record in caplog.records)


def test_the_name_of_the_model_is_for_people_only(built: BuiltDatastore, server: ServerThread):
    with client_of(server.address) as client:
        client.connect(ModelIdentity(**{**dataclasses.asdict(IDENTITY), "name": "copy", "revision": "main"}))
        assert ask(client, built) is not None


def test_the_same_trouble_is_warned_about_once(built: BuiltDatastore, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, logger="decoder_client.server_connection")
    gated = GatedDatastore(built.open())
    with serving(local_config(built.path), lambda _config: gated) as server:
        with client_of(server.address, deadline_ms=1.0, failure_threshold=1) as client:
            client.connect(IDENTITY)
            eventually(lambda: ask(client, built) is None and client.stats.reconnects >= 3)
        gated.gate.set()
    levels = [one.levelname for one in caplog.records if "no answer within 1 ms" in one.getMessage()]
    assert len(levels) > 1
    assert levels.count("WARNING") == 1
