"""Servers with certificates, and what happens when their files change."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.serving.access import Access, TlsFiles
from retriever_service.serving.server import ServeError
from tests.support.certificates import Issued, authority, issued_by, put, put_pair
from tests.support.datastore import BuiltDatastore
from tests.support.serving import PATIENCE_S, ServerThread, local_config, request_for, serving


@pytest.fixture(scope="module")
def root() -> Issued:
    return authority()


def channel_to(server: ServerThread, trusted: Issued, own: Issued | None = None) -> grpc.Channel:
    credentials = (
        grpc.ssl_channel_credentials(trusted.pem)
        if own is None
        else grpc.ssl_channel_credentials(trusted.pem, own.key_pem, own.pem)
    )
    return grpc.secure_channel(server.address, credentials, options=[("grpc.use_local_subchannel_pool", 1)])


def build_id_from(channel: grpc.Channel) -> str:
    return pb_grpc.RetrieverStub(channel).GetInfo(pb.GetInfoRequest(), timeout=PATIENCE_S).build_id


def is_accepted(server: ServerThread, trusted: Issued, own: Issued | None = None) -> bool:
    with channel_to(server, trusted, own) as channel:
        try:
            return build_id_from(channel) == "build-1"
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False


def tls_config(built: BuiltDatastore, files: TlsFiles):
    return local_config(built.path, access=Access(tls=files))


def test_new_connections_get_the_new_certificate_and_old_ones_go_on(
    built: BuiltDatastore, root: Issued, tmp_path: Path
):
    other_root = authority("another")
    files = TlsFiles(*put_pair(tmp_path, issued_by(root)))
    with serving(tls_config(built, files)) as server, channel_to(server, root) as old:
        stub = pb_grpc.RetrieverStub(old)
        requests: list[pb.RetrieveStreamRequest] = [
            pb.RetrieveStreamRequest(
                request_id=number, request=request_for(built.entries.keys[:1], built.entries.next_tokens[:1].tolist())
            )
            for number in (1, 2)
        ]
        turn = iter(requests)

        def send_when_asked():
            yield next(turn)
            assert is_accepted(server, root)
            put_pair(tmp_path, issued_by(other_root))
            assert is_accepted(server, other_root)
            assert not is_accepted(server, root)
            yield next(turn)

        answers = list(stub.RetrieveStream(send_when_asked()))
        assert [answer.request_id for answer in answers] == [1, 2]
        assert [answer.WhichOneof("result") for answer in answers] == ["response"] * 2


Spoil = Callable[[Path, Path, Issued], object]
BROKEN: dict[str, Spoil] = {
    "no certificate": lambda cert, _, __: put(cert, b"nothing"),
    "an empty file": lambda _, key, __: put(key, b""),
    "a key of another certificate": lambda _, key, root: put(key, issued_by(root).key_pem),
    "an encrypted key": lambda _, key, root: put(key, issued_by(root).encrypted_key_pem),
    "a file that is gone": lambda _, key, __: key.unlink(),
    "a file that everybody may write": lambda _, key, __: put(key, key.read_bytes(), 0o666),
    "a folder": lambda _, key, __: (key.unlink(), key.mkdir()),
}


@pytest.mark.parametrize("spoil", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_change_keeps_the_certificate_and_says_so_once(
    built: BuiltDatastore, root: Issued, tmp_path: Path, spoil: Spoil, caplog: pytest.LogCaptureFixture
):
    cert, key = put_pair(tmp_path, issued_by(root))
    secret = key.read_bytes().splitlines()[1].decode()
    with serving(tls_config(built, TlsFiles(cert, key))) as server:
        assert is_accepted(server, root)
        spoil(cert, key, root)
        assert is_accepted(server, root)
        assert is_accepted(server, root)
        complaints = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert len(complaints) == 1
        assert "the TLS files" in complaints[0].getMessage()
        assert str(tmp_path) in complaints[0].getMessage()
    assert secret not in caplog.text


@pytest.mark.parametrize("spoil", BROKEN.values(), ids=BROKEN.keys())
def test_broken_files_stop_the_start(built: BuiltDatastore, root: Issued, tmp_path: Path, spoil: Spoil):
    cert, key = put_pair(tmp_path, issued_by(root))
    spoil(cert, key, root)
    thread = ServerThread(tls_config(built, TlsFiles(cert, key)), loaded=False)
    error = thread.starting.exception(PATIENCE_S)
    thread.close()
    assert isinstance(error, ServeError)
    assert str(tmp_path) in str(error)
    assert "\n" not in str(error)


def test_an_expired_certificate_is_not_believed_until_it_is_renewed(
    built: BuiltDatastore, root: Issued, tmp_path: Path
):
    files = TlsFiles(*put_pair(tmp_path, issued_by(root, expired=True)))
    with serving(tls_config(built, files)) as server:
        assert not is_accepted(server, root)
        put_pair(tmp_path, issued_by(root))
        assert is_accepted(server, root)


def test_callers_need_a_certificate_of_the_authority_named_last(built: BuiltDatastore, root: Issued, tmp_path: Path):
    callers, newer_callers = authority("callers"), authority("newer callers")
    client_ca = put(tmp_path / "callers.pem", callers.pem)
    with serving(tls_config(built, TlsFiles(*put_pair(tmp_path, issued_by(root)), client_ca))) as server:
        assert is_accepted(server, root, issued_by(callers))
        assert not is_accepted(server, root)
        assert not is_accepted(server, root, issued_by(newer_callers))
        assert not is_accepted(server, root, issued_by(callers, expired=True))
        put(client_ca, newer_callers.pem)
        assert is_accepted(server, root, issued_by(newer_callers))
        assert not is_accepted(server, root, issued_by(callers))
        put(client_ca, b"no certificate")
        assert is_accepted(server, root, issued_by(newer_callers))
        assert not is_accepted(server, root)


def test_plain_text_gets_nothing_from_a_server_with_a_certificate(built: BuiltDatastore, root: Issued, tmp_path: Path):
    with serving(tls_config(built, TlsFiles(*put_pair(tmp_path, issued_by(root))))) as server:
        with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as refused:
            build_id_from(channel)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert is_accepted(server, root)
