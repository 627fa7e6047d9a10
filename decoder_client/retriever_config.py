"""How a decoder reaches a retriever, checked when it is said."""

from __future__ import annotations

from dataclasses import dataclass, field

from decoder_client.retriever_errors import RetrieverError
from dresd.addresses import AddressError, Discovery
from dresd.peer_access import PeerAccess, PeerAccessError

_MAX_COLLECTION = 64
_MAX_HEDGING = 1.0


def check_address(address: str) -> None:
    """Refuses what names no server, or what gRPC would take for another one than meant.

    Raises:
        RetrieverError: says what is wrong, and what to give.
    """
    try:
        Discovery(address)
    except AddressError as error:
        raise RetrieverError(str(error)) from error


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
        address: "HOST:PORT", several with commas between them, "dns:///NAME:PORT" for a server at each address of a
            name, or "file:PATH" for a file with an address a line.
        collection: the one of the retriever's datastores to ask; "" is its default one.
        deadline_ms: the longest a `retrieve` call takes; no answer by then is no draft.
        connect_timeout_s: the longest each call of a handshake takes.
        failure_threshold: consecutive failures after which a server is left alone.
        retry_base_s: the first pause before it is tried again.
        retry_max_s: the longest pause; pauses double in between.
        require_same_weights: refuse a datastore of other weights even if tokenizer and sizes agree. Other weights
            never change the output, they only make fewer drafts right.
        access: certificates and token, by default what the variables DRESD_RETRIEVER_* say.
        hedging: second requests to another server, where the first is overdue, to first ones at most; 0 is none.
        require_full_coverage: drafts that some partitions are missing from are none.
        resolve_interval_s: how often a name or a file is looked at again; after a failure it is at once.

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
    hedging: float = 0.05
    resolve_interval_s: float = 5.0
    require_full_coverage: bool = False

    def __post_init__(self) -> None:
        check_address(self.address)
        check_collection(self.collection)
        for name in ("deadline_ms", "connect_timeout_s", "retry_base_s", "retry_max_s", "resolve_interval_s"):
            value = getattr(self, name)
            if not 0.0 < value < float("inf"):
                raise RetrieverError(f"{name} is {value}; it must be greater than 0")
        if not 0.0 <= self.hedging <= _MAX_HEDGING:
            raise RetrieverError(f"hedging is {self.hedging}; it must lie in 0..{_MAX_HEDGING:g}")
        if self.failure_threshold < 1:
            raise RetrieverError(f"failure_threshold is {self.failure_threshold}; it must be 1 or more")
