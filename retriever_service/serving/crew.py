"""What one of several worker processes knows of the others: it may ask them all, and answers what they ask.

Messages are JSON objects, each after its length, over a socket to the supervisor, which passes them on. Used from one
event loop. Knows neither what is asked nor how processes are started.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

logger = logging.getLogger(__name__)

LENGTH_BYTES = 4
ASK, ASKED, ANSWER, ANSWERS, READY, FAILED = "ask", "asked", "answer", "answers", "ready", "failed"

Message = dict[str, Any]  # Any: JSON
Handler = Callable[[str], Awaitable[str]]


def frame(message: Message) -> bytes:
    """A message as it goes over the socket."""
    content = json.dumps(message).encode()
    return len(content).to_bytes(LENGTH_BYTES, "little") + content


class Crew:
    """One worker's place among them.

    Args:
        number: of this worker, from 0.
        supervisor: the socket to it.
    """

    def __init__(self, number: int, supervisor: socket.socket) -> None:
        self.number = number
        self._socket = supervisor
        self._socket.settimeout(0.0)
        self._ids = itertools.count(1)
        self._handlers: dict[str, Handler] = {}
        self._asked: dict[int, asyncio.Future[list[tuple[int, str]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending = asyncio.Lock()
        self.is_alone = asyncio.Event()
        """Set when the supervisor is gone."""
        self._spawn(self._read())

    def on(self, what: str, handler: Handler) -> None:
        """From now on `handler` answers when another worker asks `what`."""
        self._handlers[what] = handler

    async def ask(self, what: str, text: str, timeout_s: float) -> list[tuple[int, str]]:
        """What the other workers answer within `timeout_s`, with their numbers; those that do not are left out."""
        identifier = next(self._ids)
        answers: asyncio.Future[list[tuple[int, str]]] = asyncio.get_running_loop().create_future()
        self._asked[identifier] = answers
        try:
            await self._send({"kind": ASK, "id": identifier, "what": what, "text": text, "timeout_s": timeout_s})
            return await answers
        finally:
            del self._asked[identifier]

    async def ready(self) -> None:
        """This worker serves."""
        await self._send({"kind": READY})

    async def failed(self, reason: str) -> None:
        """This worker cannot start."""
        await self._send({"kind": FAILED, "text": reason})

    async def _send(self, message: Message) -> None:
        async with self._sending:
            try:
                await asyncio.get_running_loop().sock_sendall(self._socket, frame(message))
            except OSError:
                self._leave()

    async def _read(self) -> None:
        loop, received = asyncio.get_running_loop(), bytearray()
        while True:
            try:
                part = await loop.sock_recv(self._socket, 1 << 16)
            except OSError:
                part = b""
            if not part:
                self._leave()
                return
            received += part
            while len(received) >= LENGTH_BYTES:
                end = LENGTH_BYTES + int.from_bytes(received[:LENGTH_BYTES], "little")
                if len(received) < end:
                    break
                message = json.loads(received[LENGTH_BYTES:end])
                del received[:end]
                self._received(message)

    def _received(self, message: Message) -> None:
        if message["kind"] == ASKED:
            self._spawn(self._answer(message))
        elif (waiting := self._asked.get(message["id"])) is not None and not waiting.done():
            waiting.set_result([(number, text) for number, text in message["answers"]])

    async def _answer(self, message: Message) -> None:
        handler = self._handlers.get(message["what"])
        if handler is not None:  # none while this worker is still starting
            await self._send({"kind": ANSWER, "id": message["id"], "text": await handler(message["text"])})

    def _leave(self) -> None:
        self.is_alone.set()
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_result([])

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
