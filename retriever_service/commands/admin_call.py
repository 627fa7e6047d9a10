"""A call to a server's admin service, with an error a person can act on when there is no answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import grpc

from dresd.peer_access import PeerAccess, PeerAccessError
from dresd.v1 import admin_pb2_grpc as pb_grpc
from retriever_service.commands.output import CommandError
from retriever_service.echo import echoed, quoted

Metadata: TypeAlias = "tuple[tuple[str, str | bytes], ...]"

_LONGEST = 1000
"""Characters of a server's message that are shown."""


@contextmanager
def admin_of(address: str) -> Iterator[tuple[pb_grpc.AdminStub, Metadata]]:
    """The admin service at "HOST:PORT" and the metadata of a call to it; by what the variables DRESD_RETRIEVER_* say.

    Raises:
        CommandError: for a call that fails, and for variables or files that cannot be used.
    """
    try:
        access = PeerAccess.from_environment()
        authorization, channel = access.authorization(address), access.channel(address)
    except PeerAccessError as error:
        raise CommandError(str(error)) from error
    with channel:
        try:
            yield pb_grpc.AdminStub(channel), () if authorization is None else (("authorization", authorization),)
        except grpc.RpcError as error:
            raise CommandError(_explained(address, error.code(), error.details() or "")) from error


def _explained(address: str, code: grpc.StatusCode, details: str) -> str:
    shown = quoted(address)
    if code is grpc.StatusCode.UNAVAILABLE:
        hint = "Is the server running there, with --admin-listen, and with TLS as the variables DRESD_RETRIEVER_* say?"
        return f"Nobody answers at {shown} ({echoed(details)}). {hint}"
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return f"{shown} refused: {echoed(details)}. Name a file with its token in DRESD_RETRIEVER_TOKEN_FILE."
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"What answers at {shown} has no admin service. Give the server's --admin-listen, not its --listen."
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"No answer from {shown} in time. It may still come about; ask `dresd-retriever status`."
    return f"{shown} refused: {echoed(details, _LONGEST)}"
