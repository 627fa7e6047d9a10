"""How a decoder reaches a retriever, checked when it is said."""

from __future__ import annotations

import re
from dataclasses import dataclass

from decoder_client.retriever_errors import RetrieverError

_ADDRESS = re.compile(r"[^\s/]+:\d{1,5}|(dns|ipv4|ipv6|unix):\S+")


@dataclass(frozen=True, slots=True)
class RetrieverConfig:
    """How to reach a retriever, and how long to wait for it.

    Attributes:
        address: "HOST:PORT", or a gRPC target such as "dns:///name:port".
        deadline_ms: the longest a `retrieve` call takes; no answer by then is no draft.
        connect_timeout_s: the longest each call of a handshake takes.
        failure_threshold: consecutive failures after which the service is left alone.
        retry_base_s: the first pause before it is tried again.
        retry_max_s: the longest pause; pauses double in between.
        require_same_weights: refuse a datastore of other weights even if tokenizer and sizes agree. Other weights
            never change the output, they only make fewer drafts right.

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

    def __post_init__(self) -> None:
        if not _ADDRESS.fullmatch(self.address):
            raise RetrieverError(f"{self.address!r} is not an address; give HOST:PORT, such as localhost:50051")
        for name in ("deadline_ms", "connect_timeout_s", "retry_base_s", "retry_max_s"):
            value = getattr(self, name)
            if not 0.0 < value < float("inf"):
                raise RetrieverError(f"{name} is {value}; it must be greater than 0")
        if self.failure_threshold < 1:
            raise RetrieverError(f"failure_threshold is {self.failure_threshold}; it must be 1 or more")
