"""Servers that want a bearer token, for every kind of call."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dresd.v1 import admin_pb2
from dresd.v1 import admin_pb2_grpc as admin_grpc
from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.serving.access import Access
from retriever_service.serving.server import ServeError
from tests.support.certificates import put
from tests.support.datastore import BuiltDatastore
from tests.support.serving import PATIENCE_S, ServerThread, local_config, request_for, serving

OLD, NEW = "old-" + "a" * 30, "new-" + "b" * 30


def retrieve(built: BuiltDatastore) -> pb.RetrieveRequest:
    return request_for(built.entries.keys[:1], built.entries.next_tokens[:1].tolist())


Call = Callable[[grpc.Channel, BuiltDatastore, tuple], object]
CALLS: dict[str, Call] = {
    "GetInfo": lambda channel, _, metadata: pb_grpc.RetrieverStub(channel).GetInfo(
        pb.GetInfoRequest(), metadata=metadata, timeout=PATIENCE_S
    ),
    "GetReducer": lambda channel, _, metadata: pb_grpc.RetrieverStub(channel).GetReducer(
        pb.GetReducerRequest(), metadata=metadata, timeout=PATIENCE_S
    ),
    "GetTokenTable": lambda channel, _, metadata: list(
        pb_grpc.RetrieverStub(channel).GetTokenTable(pb.GetTokenTableRequest(), metadata=metadata, timeout=PATIENCE_S)
    ),
    "Retrieve": lambda channel, built, metadata: pb_grpc.RetrieverStub(channel).Retrieve(
        retrieve(built), metadata=metadata, timeout=PATIENCE_S
    ),
    "RetrieveStream": lambda channel, built, metadata: list(
        pb_grpc.RetrieverStub(channel).RetrieveStream(
            iter([pb.RetrieveStreamRequest(request_id=1, request=retrieve(built))]),
            metadata=metadata,
            timeout=PATIENCE_S,
        )
    ),
    "reflection": lambda channel, _, metadata: list(
        reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), metadata=metadata, timeout=PATIENCE_S
        )
    ),
}


def health(channel: grpc.Channel, metadata: tuple = ()) -> int:
    request = health_pb2.HealthCheckRequest()
    return health_pb2_grpc.HealthStub(channel).Check(request, metadata=metadata, timeout=PATIENCE_S).status


def bearing(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def refusal_of(call: Callable[[], object]) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    return refused.value


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_every_call_needs_a_token_and_no_refusal_shows_one(built: BuiltDatastore, tmp_path: Path, call: Call):
    tokens = put(tmp_path / "tokens", f"# a comment\n\n{OLD}\n  {NEW}  \r\n".encode())
    with (
        serving(local_config(built.path, access=Access(token_file=tokens))) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        for token in (OLD, NEW):
            assert call(channel, built, bearing(token))
        assert call(channel, built, (("authorization", f"bearer  {OLD}"),))
        wrong = OLD[:-1] + "b"
        for metadata in (
            (),
            bearing(""),
            bearing(wrong),
            bearing(OLD + "a"),
            bearing(OLD[:-1]),
            bearing("# a comment"),
            (("authorization", OLD),),
            (("authorization", f"Basic {OLD}"),),
            bearing(wrong) + bearing(OLD),
        ):
            error = refusal_of(lambda sent=metadata: call(channel, built, sent))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "bearer token" in error.details()
            assert OLD[:8] not in error.details()
        assert health(channel) == health_pb2.HealthCheckResponse.SERVING


def test_a_change_of_tokens_needs_no_restart_and_a_broken_one_changes_nothing(
    built: BuiltDatastore, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    tokens = put(tmp_path / "tokens", OLD.encode())
    with (
        serving(local_config(built.path, access=Access(token_file=tokens))) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        accepted = lambda token: is_accepted(channel, built, token)  # noqa: E731
        assert (accepted(OLD), accepted(NEW)) == (True, False)
        put(tokens, f"{OLD}\n{NEW}\n".encode())
        assert (accepted(OLD), accepted(NEW)) == (True, True)
        put(tokens, f"{NEW}\n".encode())
        assert (accepted(OLD), accepted(NEW)) == (False, True)
        for broken in (b"", b"# nothing\n", b"short\n", f"{OLD}\nnot a token\n".encode(), b"\xff" * 40):
            put(tokens, broken)
            assert (accepted(OLD), accepted(NEW)) == (False, True)
        tokens.unlink()
        assert (accepted(OLD), accepted(NEW)) == (False, True)
        assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 6 - 1, "twice no token"
        put(tokens, OLD.encode())
        assert (accepted(OLD), accepted(NEW)) == (True, False)
    assert OLD not in caplog.text
    assert NEW not in caplog.text


def is_accepted(channel: grpc.Channel, built: BuiltDatastore, token: str) -> bool:
    try:
        CALLS["Retrieve"](channel, built, bearing(token))
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
            raise
        return False
    return True


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read"),
        (b"", "no bearer token"),
        (b"\n# only a comment\n", "no bearer token"),
        (b"# first\nsecret-but-short\n", "line 2"),
        (f"{OLD}\nsecret words with spaces in them\n".encode(), "line 2"),
        (b"secret-\xff\xfe-and-more-than-twenty\n", "line 1"),
        (b"s" * (2 << 20), "bytes"),
    ],
)
def test_a_file_without_good_tokens_stops_the_start(
    built: BuiltDatastore, tmp_path: Path, content: bytes | None, said: str
):
    tokens = tmp_path / "tokens"
    if content is not None:
        put(tokens, content)
    thread = ServerThread(local_config(built.path, access=Access(token_file=tokens)), loaded=False)
    error = thread.starting.exception(PATIENCE_S)
    thread.close()
    assert isinstance(error, ServeError)
    assert said in str(error)
    assert str(tokens) in str(error)
    assert "secret" not in str(error)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_secret_that_everybody_may_read_is_warned_about(
    built: BuiltDatastore, tmp_path: Path, mode: int, warned: bool, caplog: pytest.LogCaptureFixture
):
    tokens = put(tmp_path / "tokens", OLD.encode(), mode)
    with serving(local_config(built.path, access=Access(token_file=tokens))):
        pass
    assert any("every user may read" in message for message in caplog.messages) == warned


def test_health_may_need_a_token_too(built: BuiltDatastore, tmp_path: Path):
    tokens = put(tmp_path / "tokens", OLD.encode())
    with (
        serving(local_config(built.path, access=Access(token_file=tokens, open_health=False))) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        assert refusal_of(lambda: health(channel)).code() is grpc.StatusCode.UNAUTHENTICATED
        assert health(channel, bearing(OLD)) == health_pb2.HealthCheckResponse.SERVING


def test_reflection_can_be_off(built: BuiltDatastore):
    with (
        serving(local_config(built.path, access=Access(reflection=False))) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        error = refusal_of(lambda: CALLS["reflection"](channel, built, ()))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert CALLS["GetInfo"](channel, built, ())


def test_an_open_stream_outlives_its_token_and_the_next_one_does_not(built: BuiltDatastore, tmp_path: Path):
    tokens = put(tmp_path / "tokens", OLD.encode())
    answered = threading.Event()
    answers = []

    def requests():
        yield pb.RetrieveStreamRequest(request_id=1, request=retrieve(built))
        assert answered.wait(PATIENCE_S)  # the server has let the stream in
        put(tokens, NEW.encode())
        assert not is_accepted(channel, built, OLD)
        yield pb.RetrieveStreamRequest(request_id=2, request=retrieve(built))

    with (
        serving(local_config(built.path, access=Access(token_file=tokens))) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        stub = pb_grpc.RetrieverStub(channel)
        for answer in stub.RetrieveStream(requests(), metadata=bearing(OLD), timeout=PATIENCE_S):
            answers.append(answer.request_id)
            answered.set()
        assert answers == [1, 2]
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.RetrieveStream(iter([]), metadata=bearing(OLD), timeout=PATIENCE_S))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_the_admin_port_may_have_tokens_of_its_own(built: BuiltDatastore, tmp_path: Path):
    callers, operators = put(tmp_path / "callers", OLD.encode()), put(tmp_path / "operators", NEW.encode())
    options = {"access": Access(token_file=callers), "admin_token_file": operators, "admin_listen": "127.0.0.1:0"}
    with (
        serving(local_config(built.path, **options)) as server,
        grpc.insecure_channel(server.address) as channel,
        grpc.insecure_channel(f"127.0.0.1:{server.server.admin_port}") as admin_channel,
    ):
        status = admin_grpc.AdminStub(admin_channel).GetStatus
        assert status(admin_pb2.GetStatusRequest(), metadata=bearing(NEW)).collections
        error = refusal_of(lambda: status(admin_pb2.GetStatusRequest(), metadata=bearing(OLD)))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert is_accepted(channel, built, OLD)
        assert not is_accepted(channel, built, NEW)
