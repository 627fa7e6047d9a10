"""A call to a server's admin service, with an error a person can act on when there is no answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from dresd.v1 import admin_pb2_grpc as pb_grpc
from retriever_service.commands.output import CommandError
from retriever_service.echo import echoed, quoted

_LONGEST = 1000
"""Characters of a server's message that are shown."""


@contextmanager
def admin_of(address: str) -> Iterator[pb_grpc.AdminStub]:
    """The admin service at "HOST:PORT", for one call.

    Raises:
        CommandError: for a call that fails.
    """
    # A server is on the operator's own network, where a proxy set for the web does not lead.
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            yield pb_grpc.AdminStub(channel)
        except grpc.RpcError as error:
            raise CommandError(_explained(address, error.code(), error.details() or "")) from error


def _explained(address: str, code: grpc.StatusCode, details: str) -> str:
    shown = quoted(address)
    if code is grpc.StatusCode.UNAVAILABLE:
        return f"Nobody answers at {shown} ({echoed(details)}). Is the server running there, with --admin-listen?"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"What answers at {shown} has no admin service. Give the server's --admin-listen, not its --listen."
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"No answer from {shown} in time. It may still come about; ask `dresd-retriever status`."
    return f"{shown} refused: {echoed(details, _LONGEST)}"
