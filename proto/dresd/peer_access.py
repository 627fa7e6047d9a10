"""How a caller proves itself to a retriever and makes sure of it: TLS files and a bearer token, as files and variables.

For whoever opens a channel, on either side. Reads the files anew every time it is asked; keeps and shows nothing of
what is in them. Knows neither channels' owners nor calls.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from dresd.addresses import split_target

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750
_MAX_BYTES = 1 << 20
_OPTIONS: tuple[tuple[str, int | str], ...] = (
    # Every channel connects anew: a shared subchannel would wait out the backoff of an earlier one's failures.
    ("grpc.use_local_subchannel_pool", 1),
    # A reducer (dims x hidden size x 4 bytes) and a routing table outgrow the default of 4 MiB.
    ("grpc.max_receive_message_length", 64 << 20),
    # A retriever is on its callers' own network, where a proxy set for the web does not lead.
    ("grpc.enable_http_proxy", 0),
    # A server that vanished is noticed while nothing is asked. It is asked less often than servers cut callers off for.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)
_TRUE = {"1": True, "true": True, "": False, "0": False, "false": False}


class PeerAccessError(Exception):
    """Files or variables that cannot be used, in one sentence with what to do about it."""


@dataclass(frozen=True, slots=True)
class PeerAccess:
    """What a caller has. Nothing is plain text without a token.

    Attributes:
        tls: speak TLS; so does whoever names one of the files below.
        ca_file: authorities of the server's certificate, PEM; None is those that gRPC comes with.
        certificate_file: the caller's own certificate chain for mutual TLS, PEM.
        key_file: its private key, PEM, not encrypted.
        server_name: the name that the server's certificate must bear, where that is not the address's host.
        token_file: the bearer token sent with each call: the first line that is not empty and no comment (#).
        plaintext_token: send the token without TLS even to another machine.

    Raises:
        PeerAccessError: a certificate without its key, or the other way round.
    """

    tls: bool = False
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    server_name: str | None = None
    token_file: Path | None = None
    plaintext_token: bool = False

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise PeerAccessError("mutual TLS needs a certificate and its key; name both files, or neither")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> PeerAccess:
        """What the variables DRESD_RETRIEVER_* say.

        Args:
            environment: None is the process's own.

        Raises:
            PeerAccessError: one makes no sense; names it.
        """
        said = os.environ if environment is None else environment

        def text(name: str) -> str:
            return said.get(f"DRESD_RETRIEVER_{name}", "")

        def path(name: str) -> Path | None:
            return Path(text(name)) if text(name) else None

        def switch(name: str) -> bool:
            value = _TRUE.get(text(name).lower())
            if value is None:
                raise PeerAccessError(
                    f"DRESD_RETRIEVER_{name} is neither 1 nor 0; set it to one of them, or not at all"
                )
            return value

        return cls(
            tls=switch("TLS"),
            ca_file=path("CA_FILE"),
            certificate_file=path("CERT_FILE"),
            key_file=path("KEY_FILE"),
            server_name=text("SERVER_NAME") or None,
            token_file=path("TOKEN_FILE"),
            plaintext_token=switch("PLAINTEXT_TOKEN"),
        )

    @property
    def is_encrypted(self) -> bool:
        """Whether channels are to speak TLS."""
        return self.tls or self.ca_file is not None or self.certificate_file is not None

    def credentials(self) -> grpc.ChannelCredentials | None:
        """For a channel opened now; None is plain text.

        Raises:
            PeerAccessError: a file cannot be read.
        """
        if not self.is_encrypted:
            return None
        ca, key, certificate = (
            None if path is None else _content_of(path) for path in (self.ca_file, self.key_file, self.certificate_file)
        )
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def options(self) -> list[tuple[str, int | str]]:
        """Channel arguments: what a channel allows, how it notices a dead peer, and what goes with the credentials."""
        named = self.is_encrypted and self.server_name is not None
        return [*_OPTIONS, ("grpc.ssl_target_name_override", self.server_name or "")] if named else [*_OPTIONS]

    def channel(self, address: str) -> grpc.Channel:
        """A new one to `address`, which shows no token by itself.

        Raises:
            PeerAccessError: a file cannot be read.
        """
        credentials = self.credentials()
        if credentials is None:
            return grpc.insecure_channel(address, self.options())
        return grpc.secure_channel(address, credentials, self.options())

    def authorization(self, address: str) -> str | None:
        """The value of the `authorization` header for a call to `address` made now; None for none.

        Raises:
            PeerAccessError: the file cannot be read or holds no token, or everybody on the way could read the token.
        """
        if self.token_file is None:
            return None
        if not (self.is_encrypted or self.plaintext_token or _is_this_machine(address)):
            raise PeerAccessError(
                f"the bearer token would cross the network to {address} in plain text; use TLS "
                "(DRESD_RETRIEVER_TLS=1, or DRESD_RETRIEVER_CA_FILE), or where the network itself is encrypted set "
                "DRESD_RETRIEVER_PLAINTEXT_TOKEN=1"
            )
        lines = (line.strip() for line in _content_of(self.token_file).decode("latin-1").splitlines())
        token = next((line for line in lines if line and not line.startswith("#")), "")
        if _TOKEN.fullmatch(token) is None:
            raise PeerAccessError(f"{self.token_file} does not begin with a bearer token; put one into its first line")
        return f"Bearer {token}"


def _content_of(path: Path) -> bytes:
    try:
        if not path.is_file():
            path.stat()
            raise PeerAccessError(f"{path} is not a file; give the path of one")
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise PeerAccessError(
            f"cannot read {path}: {error.strerror}; is the path right, and may this user read it?"
        ) from error
    if len(content) > _MAX_BYTES:
        raise PeerAccessError(f"{path} has more than {_MAX_BYTES:,} bytes; is it the right file?")
    return content


def _is_this_machine(address: str) -> bool:
    if address.startswith("unix"):
        return True
    target = split_target(address)
    if target is None:
        return False
    host = target.bare_host.rstrip(".").lower()
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
