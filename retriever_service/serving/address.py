"""Listening on an address, with an error a person can act on when that is not possible."""

from __future__ import annotations

import errno
import socket

import grpc
import grpc.aio

from retriever_service.echo import echoed
from retriever_service.serving.config import split_address
from retriever_service.serving.errors import ServeError

# An address family that this machine lacks; the other addresses of the same host may still do.
_ABSENT = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def hold(listen: str) -> tuple[socket.socket, str]:
    """Keeps "HOST:PORT" for processes that will share it: a socket that does not listen, and the address with its port.

    Raises:
        ServeError: somebody else listens there, or the address is not this machine's.
    """
    host, port = split_address(listen)
    bare = host.strip("[]")
    _try_out(listen, bare, port)
    family, kind, protocol, _, address = socket.getaddrinfo(
        bare or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    held = socket.socket(family, kind, protocol)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        held.bind(address)
    except OSError as error:
        held.close()
        raise ServeError(f"cannot listen on {listen}: {error.strerror}; choose another address") from error
    return held, f"{host}:{held.getsockname()[1]}"


def bind(
    server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials | None, *, is_shared: bool = False
) -> int:
    """Makes the server listen on "HOST:PORT" and returns the port, the real one when 0 was asked.

    Args:
        server: not started yet.
        listen: where.
        credentials: None for plain text.
        is_shared: the address is held, for this process and others.

    Raises:
        ServeError: somebody else listens there, or the address is not this machine's.
    """
    host, port = split_address(listen)
    if not is_shared:
        _try_out(listen, host.strip("[]"), port)
    address = f"{host or '[::]'}:{port}"
    try:
        bound: int = (
            server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
        )
    except RuntimeError as error:
        raise ServeError(f"cannot listen on {listen}: {echoed(error)}; choose another address") from error
    return bound


def _try_out(listen: str, host: str, port: int) -> None:
    """Binds plain sockets first, because gRPC's own failure does not say why, and logs instead."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:
        # Of the codec for host names, before anybody is asked.
        raise ServeError(f"cannot listen on {listen}: the host is no host name; choose another address") from error
    except socket.gaierror as error:
        raise ServeError(f"cannot listen on {listen}: {error.strerror}; is the host name right?") from error
    failures = [failure for each in found if (failure := _failure_of(*each)) is not None]
    for failure in failures:
        if failure.errno not in _ABSENT or len(failures) == len(found):
            in_use = failure.errno == errno.EADDRINUSE
            hint = "stop what listens there or choose another port" if in_use else "choose another address"
            raise ServeError(f"cannot listen on {listen}: {failure.strerror}; {hint}") from failure


def _failure_of(
    family: int, kind: int, protocol: int, _: str, address: tuple[str | int | bytes, ...]
) -> OSError | None:
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)
    except OSError as error:
        return error
    return None
