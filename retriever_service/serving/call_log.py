"""Which call the running code works for, and what is said of a call that is turned away.

Knows a call's metadata and peer; of its messages it knows nothing, so that no key and no token gets into a log.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import grpc
import grpc.aio

from retriever_service.echo import echoed

REQUEST_ID = "x-request-id"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_PAUSE_S = 1.0

# Any: the messages are of no interest here.
Context = grpc.aio.ServicerContext[Any, Any]


class Call:
    """A call while it is answered."""

    __slots__ = ("_context", "_request_id")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._request_id = ""

    @property
    def request_id(self) -> str:
        """The caller's `x-request-id` if it sent a sensible one, or one of our own: the same for the whole call."""
        if not self._request_id:
            sent = dict(self._context.invocation_metadata() or ()).get(REQUEST_ID, "")
            usable = isinstance(sent, str) and _REQUEST_ID.fullmatch(sent) is not None
            self._request_id = str(sent) if usable else secrets.token_hex(8)
        return self._request_id

    @property
    def peer(self) -> str:
        """The other end of the connection."""
        return echoed(self._context.peer())


current_call: ContextVar[Call | None] = ContextVar("current_call", default=None)
"""Set by whoever begins to answer a call; tasks that work for it inherit it."""


def enter(context: Context) -> None:
    """From now on the running task works for this call."""
    current_call.set(Call(context))


class RefusalLog:
    """Logs refusals, of each status once a second at most: a flood of them must not become a flood of lines.

    Args:
        logger: where to.
        clock: seconds, monotonic.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._quiet: dict[grpc.StatusCode, tuple[float, int]] = {}

    def refused(self, code: grpc.StatusCode, message: str) -> None:
        """A call, or one request of a stream, got a status in place of an answer; call it within that call."""
        now = self._clock()
        until, unsaid = self._quiet.get(code, (now, 0))
        if now < until:
            self._quiet[code] = (until, unsaid + 1)
            return
        self._quiet[code] = (now + _PAUSE_S, 0)
        level = logging.ERROR if code is grpc.StatusCode.INTERNAL else logging.WARNING
        self._logger.log(
            level, "refused", extra={"fields": {"code": code.name, "reason": message, "more_unlogged": unsaid}}
        )
