"""Several worker processes behind one port: started, watched, restarted, stopped, and put through to each other.

Workers are forked, so this process must stay without threads, event loops and gRPC. It listens nowhere: it holds the
port that all workers share (SO_REUSEPORT). Knows neither what workers serve nor what they ask each other.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from retriever_service.serving.crew import ANSWER, ANSWERS, ASK, ASKED, FAILED, LENGTH_BYTES, READY, Message, frame

logger = logging.getLogger(__name__)

_SEND_S = 1.0
"""Longest wait for a worker to take a message."""
_RESTART_S, _LONGEST_RESTART_S, _LIVED_WELL_S = 0.5, 30.0, 60.0
_BEYOND_GRACE_S = 10.0
"""A worker that has not ended so long after its grace period is killed."""
_TICK_S = 0.5

Work = Callable[[int, socket.socket], int]


@dataclass
class _Worker:
    number: int
    process: int
    socket: socket.socket
    began: float
    is_ready: bool = False
    has_failed: bool = False
    received: bytearray = field(default_factory=bytearray)


@dataclass
class _Question:
    asker: _Worker
    identifier: int
    until: float
    awaited: set[int]
    answers: list[tuple[int, str]] = field(default_factory=list)


class Supervisor:
    """Runs `count` workers until it is told to stop.

    Args:
        count: of workers.
        work: what a worker does, given its number and a socket for its `Crew`; returns its exit code.
        grace_s: workers get to finish after SIGTERM.
        when_ready: called once all of them serve.
        fork: as `os.fork`.
    """

    def __init__(
        self,
        count: int,
        work: Work,
        grace_s: float,
        when_ready: Callable[[], None],
        fork: Callable[[], int] = os.fork,
    ) -> None:
        self._count = count
        self._work = work
        self._grace_s = grace_s
        self._when_ready = when_ready
        self._fork = fork
        self._workers: dict[int, _Worker] = {}
        self._restart_at: dict[int, float] = {}
        self._pause_s = [_RESTART_S] * count
        self._questions: dict[int, _Question] = {}
        self._ids = itertools.count(1)
        self._selector = selectors.DefaultSelector()
        self._failure = ""
        self._serves = self._stops = False
        self._kill_at = float("inf")

    def run(self) -> int:
        """The exit code: 0 after a stop in order, 1 if a worker could not start."""
        wake, woken = socket.socketpair()
        wake.settimeout(0.0)
        woken.settimeout(0.0)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._selector.register(woken, selectors.EVENT_READ)
        for told in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if told != signal.SIGHUP or signal.getsignal(told) is not signal.SIG_IGN:  # ignored under nohup
                signal.signal(told, lambda *_: self._stop())
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the selector
        for number in range(self._count):
            self._start(number)
        while self._workers or (self._restart_at and not self._stops):
            for key, _ in self._selector.select(_TICK_S):
                if key.data is None:
                    with suppress(BlockingIOError):
                        woken.recv(4096)
                else:
                    self._read(key.data)
            self._bury()
            self._look_at_the_time()
        if self._failure:
            print(f"error: {self._failure}", file=sys.stderr)
        return 1 if self._failure else 0

    def _start(self, number: int) -> None:
        ours, theirs = socket.socketpair()
        try:
            process = self._fork()
        except OSError as error:  # as where memory is short, and workers have died of it
            ours.close()
            theirs.close()
            self._start_later(number, f"cannot be started: {error.strerror}")
            return
        if process == 0:
            self._become(number, ours, theirs)
        theirs.close()
        ours.settimeout(_SEND_S)
        worker = self._workers[number] = _Worker(number, process, ours, time.monotonic())
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def _become(self, number: int, ours: socket.socket, theirs: socket.socket) -> None:
        """The child: never returns."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for caught in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
                if signal.getsignal(caught) is not signal.SIG_IGN:
                    signal.signal(caught, signal.SIG_DFL)
            self._selector.close()
            for socket_of_another in [ours, *(worker.socket for worker in self._workers.values())]:
                socket_of_another.close()
            code = self._work(number, theirs)
            sys.stdout.flush()
            sys.stderr.flush()
        except Exception:
            logger.exception("a worker ends by an error")
        finally:
            os._exit(code)

    def _stop(self) -> None:
        if self._stops:
            return
        self._stops = True
        self._kill_at = time.monotonic() + self._grace_s + _BEYOND_GRACE_S
        for worker in self._workers.values():
            if not worker.has_failed:  # it ends by itself, and its handlers of signals are gone perhaps
                with suppress(ProcessLookupError):  # told in the middle of burying it
                    os.kill(worker.process, signal.SIGTERM)

    def _read(self, worker: _Worker) -> None:
        try:
            part = worker.socket.recv(1 << 16)
        except OSError:
            part = b""
        if not part:
            self._selector.unregister(worker.socket)  # its end is `_bury`'s business
            return
        worker.received += part
        while len(worker.received) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(worker.received[:LENGTH_BYTES], "little")
            if len(worker.received) < end:
                return
            message = json.loads(worker.received[LENGTH_BYTES:end])
            del worker.received[:end]
            self._received(worker, message)

    def _received(self, worker: _Worker, message: Message) -> None:
        kind = message["kind"]
        if kind == READY:
            worker.is_ready = True
            if not self._serves and sum(each.is_ready for each in self._workers.values()) == self._count:
                self._serves = True
                self._when_ready()
        elif kind == FAILED:
            worker.has_failed = True
            if self._serves:
                logger.error("a worker could not start: %s", message["text"], extra=_of(worker))
            elif not self._stops:
                self._failure = message["text"]
                self._stop()
        elif kind == ASK:
            number = next(self._ids)
            others = [each for each in self._workers.values() if each is not worker and each.is_ready]
            question = _Question(worker, message["id"], time.monotonic() + message["timeout_s"], set())
            self._questions[number] = question
            for each in others:
                asked = {"kind": ASKED, "id": number, "what": message["what"], "text": message["text"]}
                if self._send(each, asked):
                    question.awaited.add(each.number)
            self._settle(number)
        elif kind == ANSWER and (found := self._questions.get(message["id"])) is not None:
            found.answers.append((worker.number, message["text"]))
            found.awaited.discard(worker.number)
            self._settle(message["id"])

    def _settle(self, number: int) -> None:
        question = self._questions[number]
        if not question.awaited or time.monotonic() >= question.until:
            del self._questions[number]
            answers = {"kind": ANSWERS, "id": question.identifier, "answers": sorted(question.answers)}
            self._send(question.asker, answers)

    def _send(self, worker: _Worker, message: Message) -> bool:
        try:
            worker.socket.sendall(frame(message))
        except OSError:
            return False
        return True

    def _bury(self) -> None:
        """Workers that have ended: the others go on, and they are started again unless all are to stop."""
        for worker in list(self._workers.values()):
            process, status = os.waitpid(worker.process, os.WNOHANG)
            if process == 0:
                continue
            with suppress(OSError):
                while not self._stops and self._is_registered(worker):
                    self._read(worker)  # its last words
            if self._is_registered(worker):
                self._selector.unregister(worker.socket)
            worker.socket.close()
            del self._workers[worker.number]
            for number, question in list(self._questions.items()):
                question.awaited.discard(worker.number)
                self._settle(number)
            if self._stops:
                continue
            code = os.waitstatus_to_exitcode(status)
            if not self._serves:
                self._failure = self._failure or f"a worker ended with exit code {code} before it served; see the log"
                self._stop()
                continue
            if time.monotonic() - worker.began >= _LIVED_WELL_S:
                self._pause_s[worker.number] = _RESTART_S
            self._start_later(worker.number, f"ended with {code}", worker.process)

    def _start_later(self, number: int, why: str, process: int | None = None) -> None:
        pause_s = self._pause_s[number]
        self._pause_s[number] = min(2.0 * pause_s, _LONGEST_RESTART_S)
        self._restart_at[number] = time.monotonic() + pause_s
        fields = {"worker": number, "process": process}
        logger.error("a worker %s, and is started again in %g s", why, pause_s, extra={"fields": fields})

    def _is_registered(self, worker: _Worker) -> bool:
        return worker.socket.fileno() in self._selector.get_map()

    def _look_at_the_time(self) -> None:
        now = time.monotonic()
        for number in list(self._questions):
            self._settle(number)
        if self._stops:
            self._restart_at.clear()
        for number in [number for number, at in self._restart_at.items() if now >= at]:
            del self._restart_at[number]
            self._start(number)
        if now >= self._kill_at:
            for worker in self._workers.values():
                os.kill(worker.process, signal.SIGKILL)


def _of(worker: _Worker) -> dict[str, object]:
    return {"fields": {"worker": worker.number, "process": worker.process}}
