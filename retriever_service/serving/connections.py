"""What callers' connections may do, and for how long, as gRPC is told it. Knows gRPC's options and nothing of calls."""

from __future__ import annotations

from dataclasses import dataclass

from retriever_service.serving.errors import ServeError

_HANDSHAKE_S = 20
_GRACE_S = 10.0
_OLDEST_STREAM = 1.15
"""Of the connection's age, beyond gRPC's own jitter of 10%: a stream ends when its connection takes no new ones."""
_GRACE = 0.4


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of each connection.

    Attributes:
        max_request_bytes: a longer request gets RESOURCE_EXHAUSTED unread; 4 MiB is more than the largest that any
            limits in use allow.
        max_streams: calls open at a time on one connection; further ones wait at the caller.
        keepalive_s: a connection that is silent for so long is asked whether its other end still lives.
        keepalive_timeout_s: and is closed if no answer comes for so long.
        min_ping_s: a caller that asks more often is cut off.
        max_age_s: after about so long (10% more or less at random) a connection takes no new calls and its streams end
            with OK, so that callers connect anew, perhaps to another server; 0 is never. A call that goes on for 40%
            longer and 10 seconds is cut.

    Raises:
        ServeError: a value is out of range.
    """

    max_request_bytes: int = 4 << 20
    max_streams: int = 256
    keepalive_s: float = 60.0
    keepalive_timeout_s: float = 20.0
    min_ping_s: float = 10.0
    max_age_s: float = 3600.0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("max_request_bytes", 1 << 10, 1 << 30),
            ("max_streams", 1, 1 << 16),
            ("keepalive_s", 1.0, 86_400.0),
            ("keepalive_timeout_s", 0.1, 3_600.0),
            ("min_ping_s", 0.0, 3_600.0),
            ("max_age_s", 0.0, 1e6),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ServeError(f"{name} is {value}; it must be {least} to {most}")

    @property
    def stream_age_s(self) -> float | None:
        """When a stream is to end by itself; None for never."""
        return self.max_age_s * _OLDEST_STREAM or None

    def options(self) -> list[tuple[str, int]]:
        """The server's channel arguments."""
        options = [
            ("grpc.max_receive_message_length", self.max_request_bytes),
            ("grpc.max_concurrent_streams", self.max_streams),
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_S * 1000),
            ("grpc.keepalive_time_ms", _ms(self.keepalive_s)),
            ("grpc.keepalive_timeout_ms", _ms(self.keepalive_timeout_s)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", _ms(self.min_ping_s)),
        ]
        if self.max_age_s > 0.0:
            options += [
                ("grpc.max_connection_age_ms", _ms(self.max_age_s)),
                ("grpc.max_connection_age_grace_ms", _ms(self.max_age_s * _GRACE + _GRACE_S)),
            ]
        return options


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1e3))
