"""Answers sent to a real server: kept, searched at once, refused where they make no sense or nobody may send them."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path
from urllib.request import urlopen

import grpc
import numpy as np
import pytest

from dresd.v1 import admin_pb2, retriever_pb2
from dresd.v1 import admin_pb2_grpc as admin_grpc
from dresd.v1 import ingest_pb2 as pb
from dresd.v1 import ingest_pb2_grpc as pb_grpc
from dresd.v1 import retriever_pb2_grpc as retriever_grpc
from retriever_service.datastore import publish
from retriever_service.serving.access import Access
from retriever_service.serving.config import ServeConfig
from retriever_service.serving.errors import ServeError
from retriever_service.serving.learning_config import LearningConfig
from retriever_service.serving.writer_rates import WriterRates
from tests.support.datastore import BuiltDatastore, build_datastore
from tests.support.learning import no_file_grows_beyond, random_answer
from tests.support.serving import eventually, local_config, request_for, serving

TOKEN, OTHER = "a-token-of-readers-0123456789", "a-token-of-writers-0123456789"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> BuiltDatastore:
    return build_datastore(tmp_path_factory.mktemp("learning") / "store")


def message(answer, **changes: object) -> pb.FinishedAnswer:
    fields = {
        "id": answer.id,
        "tokens": answer.tokens.tolist(),
        "positions": answer.positions.tolist(),
        "keys": answer.keys.astype("<f2").tobytes(),
    }
    return pb.FinishedAnswer(**{**fields, **changes})


def append(built: BuiltDatastore, *answers: pb.FinishedAnswer, **changes: object) -> pb.AppendRequest:
    fields: dict[str, object] = {
        "reducer_hash": built.manifest.key_recipe.reducer_hash,
        "key_type": retriever_pb2.KEY_TYPE_FLOAT16,
        "dims": 8,
        "answers": answers,
    }
    return pb.AppendRequest(**{**fields, **changes})


def sent(address: str, request: pb.AppendRequest, token: str | None = None) -> int:
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(address) as channel:
        return pb_grpc.IngestStub(channel).Append(request, metadata=metadata, timeout=60).entries_added


def refused(address: str, request: pb.AppendRequest, token: str | None = None) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        sent(address, request, token)
    return error.value.code(), error.value.details()


def best(address: str, answer, place: int) -> retriever_pb2.DraftTree:
    """The tree of the answer's own key at a position."""
    request = request_for(answer.keys[place : place + 1], answer.next_tokens[place : place + 1].tolist(), neighbors=1)
    with grpc.insecure_channel(address) as channel:
        return retriever_grpc.RetrieverStub(channel).Retrieve(request, timeout=60).trees[0]


def learning(built: BuiltDatastore, folder: Path, **options: object) -> ServeConfig:
    return local_config(built.path, learning=LearningConfig(folder), **options)


def test_a_draft_is_made_of_an_answer_once_it_is_acknowledged_also_after_a_restart(built, tmp_path):
    answer = random_answer(3, tokens=20)
    for added in (len(answer.positions), 0):
        with serving(learning(built, tmp_path / "learned")) as server:
            assert sent(server.address, append(built, message(answer))) == added
            tree = best(server.address, answer, 0)
            assert tree.best_similarity == pytest.approx(1.0, abs=1e-2)
            assert list(tree.tokens) == answer.tokens[answer.positions[0] + 2 :][:6].tolist()


def test_its_numbers_are_shown(built, tmp_path):
    config = learning(built, tmp_path / "learned", metrics_listen="127.0.0.1:0")
    answer = message(random_answer(1))
    with serving(config) as server:
        for added in (9, 0):
            assert sent(server.address, append(built, answer)) == added
        with urlopen(f"http://127.0.0.1:{server.server.metrics_port}/metrics", timeout=60) as page:
            lines = page.read().decode().splitlines()
    for name, value in (
        ("learned_entries", 9),
        ("learned_entries_appended_total", 9),
        ("learned_answers_known_total", 1),
        ("learned_write_failures_total", 0),
    ):
        assert f'dresd_retriever_{name}{{collection="default"}} {value}.0' in lines


def test_what_one_collection_learns_no_other_answers_with(built, tmp_path):
    other = build_datastore(tmp_path / "other")
    config = ServeConfig(
        collections={"ours": built.path, "theirs": other.path},
        listen="127.0.0.1:0",
        search_threads=2,
        learning=LearningConfig(tmp_path / "learned"),
    )
    answer = random_answer(3)
    with serving(config) as server, grpc.insecure_channel(server.address) as channel:
        assert sent(server.address, append(built, message(answer), collection="ours")) > 0
        query = request_for(answer.keys[:1], answer.next_tokens[:1].tolist(), neighbors=1)
        stub = retriever_grpc.RetrieverStub(channel)
        trees = {}
        for name in ("ours", "theirs"):
            query.collection = name
            trees[name] = stub.Retrieve(query, timeout=60).trees[0]
        assert trees["ours"].best_similarity == pytest.approx(1.0, abs=1e-2)
        assert trees["theirs"].best_similarity < 0.98
        assert refused(server.address, append(built, message(answer)))[0] is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("changes", "answer_changes", "code", "names"),
    [
        ({"reducer_hash": "0" * 64}, {}, "FAILED_PRECONDITION", "reducer_hash"),
        ({"key_type": retriever_pb2.KEY_TYPE_FLOAT32}, {}, "INVALID_ARGUMENT", "key_type"),
        ({"dims": 4}, {}, "INVALID_ARGUMENT", "keys"),
        ({"answers": []}, {}, "INVALID_ARGUMENT", "answers"),
        ({}, {"id": b"short"}, "INVALID_ARGUMENT", "id"),
        ({}, {"tokens": [1]}, "INVALID_ARGUMENT", "tokens"),
        ({}, {"tokens": [2**32 - 1] * 12}, "INVALID_ARGUMENT", "tokens"),
        ({}, {"tokens": [50] * 12}, "INVALID_ARGUMENT", "tokens"),
        ({}, {"positions": [5, 4, 3, 2, 1, 6, 7, 8, 9]}, "INVALID_ARGUMENT", "positions"),
        ({}, {"positions": list(range(3, 12))}, "INVALID_ARGUMENT", "positions"),
        ({}, {"keys": b"\x00" * 16 * 9}, "INVALID_ARGUMENT", "keys"),
        ({}, {"keys": np.full(8 * 9, np.nan, "<f2").tobytes()}, "INVALID_ARGUMENT", "keys"),
        ({}, {"keys": np.full(8 * 9, 6e4, "<f2").tobytes()}, "INVALID_ARGUMENT", "keys"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name_and_nothing_of_it_is_kept(
    learner, built, changes, answer_changes, code, names
):
    good, bad = random_answer(30, identifier=uuid.uuid4().bytes), random_answer(31)
    request = append(built, message(good), message(bad, **answer_changes), **changes)
    status, text = refused(learner, request)
    assert status.name == code
    assert names in text
    assert sent(learner, append(built, message(good))) == 9


@pytest.fixture(scope="module")
def learner(built, tmp_path_factory):
    with serving(learning(built, tmp_path_factory.mktemp("learner"))) as server:
        yield server.address


def test_a_server_that_does_not_learn_says_so(built):
    with serving(local_config(built.path)) as server:
        assert refused(server.address, append(built, message(random_answer(1))))[0] is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("readers_need_one", [True, False])
def test_writers_show_a_token_of_their_own(built, tmp_path, readers_need_one):
    (tmp_path / "readers").write_text(f"{TOKEN}\n")
    (tmp_path / "writers").write_text(f"{OTHER}\n")
    access = Access(
        token_file=tmp_path / "readers" if readers_need_one else None, learn_token_file=tmp_path / "writers"
    )
    request = append(built, message(random_answer(1)))
    with serving(learning(built, tmp_path / "learned", access=access)) as server:
        for token in (None, TOKEN):
            assert refused(server.address, request, token)[0] is grpc.StatusCode.UNAUTHENTICATED
        assert sent(server.address, request, OTHER) == 9
        with grpc.insecure_channel(server.address) as channel:
            stub = retriever_grpc.RetrieverStub(channel)
            info = retriever_pb2.GetInfoRequest()
            stub.GetInfo(info, metadata=(("authorization", f"Bearer {TOKEN}"),), timeout=60)
            if readers_need_one:
                with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
                    stub.GetInfo(info, metadata=(("authorization", f"Bearer {OTHER}"),), timeout=60)


def test_nobody_learns_from_everybody(built, tmp_path):
    config = {"learning": LearningConfig(tmp_path / "learned")}
    with pytest.raises(ServeError, match="--learn-token-file"):
        ServeConfig(built.path, listen=":50051", **config)
    (tmp_path / "writers").write_text(f"{OTHER}\n")
    with pytest.raises(ServeError, match="--workers"):
        local_config(built.path, workers=2, **config)
    ServeConfig(built.path, listen=":50051", access=Access(learn_token_file=tmp_path / "writers"), **config)


def test_what_was_learned_goes_over_to_the_next_build(tmp_path):
    root = tmp_path / "root"
    first = build_datastore(root / "first", build_id="first", seed=1, reducer=None)
    reducer = (root / "first" / "reducer.safetensors").read_bytes()
    publish(root, first.path)
    answers = [random_answer(seed, tokens=20) for seed in (1, 2)]
    config = local_config(root, learning=LearningConfig(tmp_path / "learned"), reload_interval_s=0.05)
    with serving(config) as server:
        assert sent(server.address, append(first, message(answers[0]))) == 17
        second = build_datastore(root / "second", build_id="second", seed=2, reducer=reducer, num_partitions=2)
        publish(root, second.path)
        with grpc.insecure_channel(server.address) as channel:
            stub = retriever_grpc.RetrieverStub(channel)
            eventually(lambda: stub.GetInfo(retriever_pb2.GetInfoRequest(), timeout=60).build_id == "second")
        assert sent(server.address, append(second, message(answers[0]))) == 0
        assert sent(server.address, append(second, message(answers[1]))) == 17
        for answer in answers:
            assert best(server.address, answer, 5).best_similarity == pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize("other_reducer", [False, True])
def test_going_back_to_a_build_in_its_grace_period_learns_for_it_again(tmp_path, other_reducer):
    root = tmp_path / "root"
    first = build_datastore(root / "first", build_id="first", seed=1)
    reducer = None if other_reducer else (root / "first" / "reducer.safetensors").read_bytes()
    second = build_datastore(root / "second", build_id="second", seed=2, reducer=reducer)
    publish(root, first.path)
    answers = [random_answer(seed, tokens=20) for seed in (1, 2)]
    config = local_config(root, learning=LearningConfig(tmp_path / "learned"), reload_interval_s=0.05)
    with serving(config) as server, grpc.insecure_channel(server.address) as channel:
        stub = retriever_grpc.RetrieverStub(channel)
        assert sent(server.address, append(first, message(answers[0]))) == 17
        for build in (second, first):
            publish(root, build.path)
            eventually(
                lambda build=build: stub.GetInfo(retriever_pb2.GetInfoRequest()).build_id == build.manifest.build_id
            )
        assert sent(server.address, append(first, message(answers[1]))) == 17
        for answer in answers:
            assert best(server.address, answer, 5).best_similarity == pytest.approx(1.0, abs=1e-2)


def test_a_build_whose_log_cannot_be_read_is_refused_until_it_can(tmp_path):
    root = tmp_path / "root"
    first = build_datastore(root / "first", build_id="first", seed=1)
    second = build_datastore(root / "second", build_id="second", seed=2)
    publish(root, first.path)
    log = tmp_path / "learned" / "default" / second.manifest.key_recipe.reducer_hash[:16] / "log-00000001.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"something else")
    config = local_config(root, learning=LearningConfig(tmp_path / "learned"), admin_listen="127.0.0.1:0")
    with serving(config) as server, grpc.insecure_channel(f"127.0.0.1:{server.server.admin_port}") as channel:
        publish(root, second.path)
        admin = admin_grpc.AdminStub(channel)
        with pytest.raises(grpc.RpcError, match="no log"):
            admin.Reload(admin_pb2.ReloadRequest(), timeout=60)
        assert sent(server.address, append(first, message(random_answer(1)))) == 9
        log.rename(tmp_path / "away")
        assert admin.Reload(admin_pb2.ReloadRequest(), timeout=60).build_id == "second"
        assert sent(server.address, append(second, message(random_answer(1)))) == 9


def test_a_full_disk_is_refused_and_logged_in_a_line(built, tmp_path, caplog):
    with serving(learning(built, tmp_path / "learned")) as server:
        with no_file_grows_beyond(1 << 18):
            code, text = refused(server.address, append(built, message(random_answer(1, tokens=60_000))))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert os.strerror(errno.EFBIG) in text
        assert sent(server.address, append(built, message(random_answer(2)))) == 9
    (line,) = [record for record in caplog.records if record.message == "refused"]
    assert line.fields["reason"] == text
    assert not any(record.exc_info for record in caplog.records)


def test_a_writer_may_send_so_much_and_no_more_and_others_do_not_suffer():
    now = [0.0]
    rates = WriterRates(10.0, clock=lambda: now[0])
    assert rates.takes("one", 90)
    assert rates.takes("one", 50)
    assert not rates.takes("one", 1)
    assert rates.takes("other", 1)
    now[0] = 3.9
    assert not rates.takes("one", 1)
    now[0] = 4.1
    assert rates.takes("one", 1)
    for number in range(10_000):
        rates.takes(str(number), 1)
    assert len(rates._left) < 5000
