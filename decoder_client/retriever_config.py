"""How a decoder reaches a retriever, checked when it is said."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from decoder_client.retriever_errors import RetrieverError
from dresd.peer_access import PeerAccess, PeerAccessError

_UNIX = re.compile(r"unix(-abstract)?:\S+")
# What may stand before a name: a gRPC resolver, and for dns the server to ask.
_RESOLVER = re.compile(r"dns://[^\s/]*/|dns:|ipv4:|ipv6:")
_HOST_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s/:\[\]@,?#]+):(?P<port>[0-9]{1,9})")
_MAX_COLLECTION = 64
_MAX_HOST, _MAX_LABEL = 253, 63  # DNS (RFC 1035)


def check_address(address: str) -> None:
    """Refuses what gRPC would take for another address than meant, or fail on for reasons nobody understands.

    Raises:
        RetrieverError: `address` is neither "HOST:PORT" nor a gRPC target; says what is wrong with it.
    """
    reason = _wrong_with(address)
    if reason is not None:
        shown = address if len(address) <= _MAX_LABEL else f"{address[:_MAX_LABEL]}..."
        raise RetrieverError(f"{shown!r} is not an address: {reason}; give HOST:PORT, such as localhost:50051")


def _wrong_with(address: str) -> str | None:
    if not address:
        return "it is empty"
    if _UNIX.fullmatch(address):
        return None
    resolver = _RESOLVER.match(address)
    parts = _HOST_PORT.fullmatch(address, resolver.end() if resolver else 0)
    if parts is None:
        return "it has no port" if ":" not in address else "it is not one host and one port"
    if not 1 <= int(parts["port"]) <= 65535:
        return f"a port lies in 1..65535, not {parts['port']}"
    host = parts["host"].rstrip(".")
    if len(host) > _MAX_HOST or not all(0 < len(label) <= _MAX_LABEL for label in host.split(".")):
        return f"a host has at most {_MAX_HOST} characters, and 1 to {_MAX_LABEL} between its dots"
    return None


def check_collection(name: str) -> None:
    """Refuses what no retriever can call a collection.

    Raises:
        RetrieverError: `name` is longer than any, or not printable; says so.
    """
    if len(name) > _MAX_COLLECTION or not name.isprintable():
        raise RetrieverError(
            f"{name[:_MAX_COLLECTION]!r} is no name of a collection: it has up to {_MAX_COLLECTION} characters, all of "
            "them printable; give a name that the retriever was started with"
        )


def access_from_environment() -> PeerAccess:
    """What the variables DRESD_RETRIEVER_* say of certificates and tokens.

    Raises:
        RetrieverError: one makes no sense; names it.
    """
    try:
        return PeerAccess.from_environment()
    except PeerAccessError as error:
        raise RetrieverError(str(error)) from error


@dataclass(frozen=True, slots=True)
class RetrieverConfig:
    """How to reach a retriever, and how long to wait for it.

    Attributes:
        address: "HOST:PORT", or a gRPC target such as "dns:///name:port".
        collection: the one of the retriever's datastores to ask; "" is its default one.
        deadline_ms: the longest a `retrieve` call takes; no answer by then is no draft.
        connect_timeout_s: the longest each call of a handshake takes.
        failure_threshold: consecutive failures after which the service is left alone.
        retry_base_s: the first pause before it is tried again.
        retry_max_s: the longest pause; pauses double in between.
        require_same_weights: refuse a datastore of other weights even if tokenizer and sizes agree. Other weights
            never change the output, they only make fewer drafts right.
        access: certificates and token, by default what the variables DRESD_RETRIEVER_* say.

    Raises:
        RetrieverError: a value is out of range.
    """

    address: str
    deadline_ms: float = 50.0
    connect_timeout_s: float = 5.0
    failure_threshold: int = 5
    retry_base_s: float = 0.1
    retry_max_s: float = 5.0
    require_same_weights: bool = True
    access: PeerAccess = field(default_factory=access_from_environment)
    collection: str = ""

    def __post_init__(self) -> None:
        check_address(self.address)
        check_collection(self.collection)
        for name in ("deadline_ms", "connect_timeout_s", "retry_base_s", "retry_max_s"):
            value = getattr(self, name)
            if not 0.0 < value < float("inf"):
                raise RetrieverError(f"{name} is {value}; it must be greater than 0")
        if self.failure_threshold < 1:
            raise RetrieverError(f"failure_threshold is {self.failure_threshold}; it must be 1 or more")
