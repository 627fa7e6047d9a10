"""The client with certificates and tokens, and on connections that servers end because they are old."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest

from decoder_client.retriever import (
    Draft,
    RetrieverClient,
    RetrieverConfig,
    RetrieverError,
    RetrieverUnavailableError,
)
from dresd.peer_access import PeerAccess
from retriever_service.serving.access import Access, TlsFiles
from retriever_service.serving.connections import ConnectionLimits
from tests.support.certificates import NAME, Issued, authority, issued_by, put, put_pair
from tests.support.datastore import BuiltDatastore
from tests.support.retriever import client_of
from tests.support.serving import (
    IDENTITY,
    OpenStream,
    ServerThread,
    eventually,
    local_config,
    request_for,
    serving,
)

TOKEN, OTHER = "t" * 32, "o" * 32


@pytest.fixture(scope="module")
def root() -> Issued:
    return authority()


def ask(client: RetrieverClient, built: BuiltDatastore) -> list[Draft] | None:
    keys = built.entries.keys[:2].astype(np.float16)
    return client.retrieve(keys, built.entries.next_tokens[:2].tolist(), neighbors=9, max_nodes=9, temperature=0.1)


@pytest.fixture
def secured(built: BuiltDatastore, root: Issued, tmp_path: Path):
    """A server that wants a certificate of its callers' authority, and a token."""
    callers = authority("callers")
    put(tmp_path / "ca.pem", root.pem)
    put_pair(tmp_path, issued_by(callers), "caller")
    put(tmp_path / "token", f"# mine\n{TOKEN}\n".encode())
    tls = TlsFiles(*put_pair(tmp_path, issued_by(root)), put(tmp_path / "callers.pem", callers.pem))
    tokens = put(tmp_path / "tokens", TOKEN.encode())
    with serving(local_config(built.path, access=Access(tls=tls, token_file=tokens))) as server:
        yield server, callers


def all_of(folder: Path, **changes: object) -> PeerAccess:
    access: dict[str, object] = {
        "ca_file": folder / "ca.pem",
        "certificate_file": folder / "caller.pem",
        "key_file": folder / "caller.key",
        "server_name": NAME,
        "token_file": folder / "token",
    }
    return PeerAccess(**{**access, **changes})


def test_certificates_and_a_token_open_every_call(
    built: BuiltDatastore, secured: tuple[ServerThread, Issued], tmp_path: Path
):
    with client_of(secured[0].address, access=all_of(tmp_path)) as client:
        client.connect(IDENTITY)
        assert ask(client, built) is not None


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ({"token_file": None}, "DRESD_RETRIEVER_TOKEN_FILE"),
        ({"certificate_file": None, "key_file": None}, "DRESD_RETRIEVER_CERT_FILE"),
        ({"server_name": "elsewhere.test"}, "DRESD_RETRIEVER_CA_FILE"),
        ({"ca_file": "caller.pem"}, "DRESD_RETRIEVER_CA_FILE"),
        ({"ca_file": "absent.pem"}, "absent.pem"),
        ({"token_file": "absent"}, "absent"),
        ({"token_file": "ca.pem"}, "ca.pem"),
        ({"token_file": "."}, "not a file"),
    ],
)
def test_what_is_lacking_is_said_without_the_token(
    secured: tuple[ServerThread, Issued], tmp_path: Path, lacking: dict[str, object], said: str
):
    lacking = {name: tmp_path / value if name.endswith("_file") and value else value for name, value in lacking.items()}
    with (
        client_of(secured[0].address, access=all_of(tmp_path, **lacking)) as client,
        pytest.raises(RetrieverError, match=said) as refused,
    ):
        client.connect(IDENTITY)
    assert TOKEN not in str(refused.value)


def test_plain_text_to_a_server_with_a_certificate_is_no_connection(secured: tuple[ServerThread, Issued]):
    with client_of(secured[0].address) as client, pytest.raises(RetrieverUnavailableError, match="speak TLS"):
        client.connect(IDENTITY)


def test_tls_to_a_server_without_a_certificate_is_no_connection(built: BuiltDatastore, root: Issued, tmp_path: Path):
    put(tmp_path / "ca.pem", root.pem)
    with (
        serving(local_config(built.path)) as plain,
        client_of(plain.address, access=PeerAccess(ca_file=tmp_path / "ca.pem")) as client,
        pytest.raises(RetrieverUnavailableError, match="speak TLS"),
    ):
        client.connect(IDENTITY)


def test_a_client_turned_away_comes_in_with_the_token_its_file_holds_later(
    built: BuiltDatastore, secured: tuple[ServerThread, Issued], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    put(tmp_path / "token", OTHER.encode())
    with client_of(secured[0].address, access=all_of(tmp_path)) as client:
        client.connect_when_up(IDENTITY)
        assert ask(client, built) is None
        put(tmp_path / "token", TOKEN.encode())
        eventually(lambda: ask(client, built) is not None)
    assert OTHER not in caplog.text
    assert TOKEN not in caplog.text


def test_a_restarted_server_with_other_certificates_is_reached_with_the_files_of_then(
    built: BuiltDatastore, root: Issued, tmp_path: Path
):
    put(tmp_path / "ca.pem", root.pem)
    files = TlsFiles(*put_pair(tmp_path, issued_by(root)))
    config = local_config(built.path, access=Access(tls=files))
    with serving(config) as first:
        client = client_of(first.address, access=PeerAccess(ca_file=tmp_path / "ca.pem"))
        client.connect(IDENTITY)
        port = first.address
    with client:
        other = authority("other")
        put_pair(tmp_path, issued_by(other))
        with serving(replace(config, listen=port)):
            eventually(lambda: "CERTIFICATE_VERIFY_FAILED" in client.trouble)
            put(tmp_path / "ca.pem", other.pem)
            eventually(lambda: ask(client, built) is not None)


@pytest.mark.parametrize("with_tls", [False, True])
def test_connections_that_grow_old_lose_no_draft(built: BuiltDatastore, root: Issued, tmp_path: Path, with_tls: bool):
    put(tmp_path / "ca.pem", root.pem)
    put(tmp_path / "token", TOKEN.encode())
    tls = TlsFiles(*put_pair(tmp_path, issued_by(root))) if with_tls else None
    access = PeerAccess(ca_file=tmp_path / "ca.pem" if with_tls else None, token_file=tmp_path / "token")
    config = local_config(
        built.path,
        access=Access(tls=tls, token_file=tmp_path / "token"),
        connections=ConnectionLimits(max_age_s=0.2),
    )
    with serving(config) as server, client_of(server.address, access=access) as client:
        client.connect(IDENTITY)
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            assert ask(client, built) is not None
        stats = client.stats
        assert (stats.failed, stats.late, stats.skipped, stats.reconnects) == (0, 0, 0, 0)
        assert client.trouble == ""


def test_a_stream_grows_old_with_its_connection_and_ends_in_order(built: BuiltDatastore):
    request = request_for(built.entries.keys[:1], built.entries.next_tokens[:1].tolist())
    with (
        serving(local_config(built.path, connections=ConnectionLimits(max_age_s=0.1))) as server,
        OpenStream(server.address) as stream,
    ):
        stream.send(1, request)
        assert [answer.request_id for answer in stream.call] == [1]
        assert stream.call.code() is grpc.StatusCode.OK


def test_an_idle_client_survives_old_connections(built: BuiltDatastore, caplog: pytest.LogCaptureFixture):
    with (
        serving(local_config(built.path, connections=ConnectionLimits(max_age_s=1.0))) as server,
        OpenStream(server.address) as beside,
        client_of(server.address) as client,
    ):
        client.connect(IDENTITY)
        assert list(beside.call) == []
        with OpenStream(server.address) as later:
            assert list(later.call) == []
        assert ask(client, built) is not None
        assert client.stats.reconnects == 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("localhost:1", True),
        ("LOCALHOST:1", True),
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("ipv4:127.0.0.1:1", True),
        ("ipv6:[::1]:1", True),
        ("dns:///localhost:1", True),
        ("unix:/run/retriever", True),
        ("10.0.0.1:1", False),
        ("localhost.example.org:1", False),
        ("127.0.0.1.example.org:1", False),
        ("dns://127.0.0.1/retriever:1", False),
        ("[::2]:1", False),
        ("retriever:1", False),
    ],
)
def test_a_token_in_plain_text_stays_on_this_machine(tmp_path: Path, address: str, local: bool):
    access = PeerAccess(token_file=put(tmp_path / "token", TOKEN.encode()))
    with client_of(address, access=access, connect_timeout_s=0.05) as client:
        with pytest.raises(RetrieverError) as refused:
            client.connect(IDENTITY)
        assert ("plain text" in str(refused.value)) != local
    with client_of(address, access=PeerAccess(token_file=access.token_file, plaintext_token=True)) as client:
        assert client.trouble == ""


def test_the_environment_says_what_the_client_shows(tmp_path: Path):
    environment = {
        "DRESD_RETRIEVER_CA_FILE": str(tmp_path / "ca.pem"),
        "DRESD_RETRIEVER_CERT_FILE": str(tmp_path / "caller.pem"),
        "DRESD_RETRIEVER_KEY_FILE": str(tmp_path / "caller.key"),
        "DRESD_RETRIEVER_SERVER_NAME": NAME,
        "DRESD_RETRIEVER_TOKEN_FILE": str(tmp_path / "token"),
    }
    assert PeerAccess.from_environment(environment) == all_of(tmp_path)
    assert PeerAccess.from_environment({}) == PeerAccess()
    assert PeerAccess.from_environment({"DRESD_RETRIEVER_TLS": "1"}).is_encrypted


def test_a_client_without_settings_takes_those_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("DRESD_RETRIEVER_TOKEN_FILE", str(tmp_path / "token"))
    assert RetrieverConfig("localhost:1").access == PeerAccess(token_file=tmp_path / "token")
    for name, value in (("TLS", "perhaps"), ("CERT_FILE", "alone.pem")):
        with monkeypatch.context() as also:
            also.setenv(f"DRESD_RETRIEVER_{name}", value)
            with pytest.raises(RetrieverError, match=r"DRESD_RETRIEVER_TLS|certificate"):
                RetrieverConfig("localhost:1")
