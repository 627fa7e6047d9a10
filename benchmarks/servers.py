"""Server processes of the benchmark: the service itself, and the echo it is compared with."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import grpc

from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc

_STOP_S = 20.0

Request = TypeVar("Request")
Response = TypeVar("Response")


@contextmanager
def serving(path: Path, *options: str) -> Iterator[tuple[str, int]]:
    """`dresd-retriever serve` as a process; its address and process id."""
    command = [sys.executable, "-m", "retriever_service.cli", "serve", str(path), "--listen", "127.0.0.1:0"]
    with _process([*command, "--skip-checksums", *options]) as started:
        yield started


@contextmanager
def serving_beside_faiss(path: Path, times: Path) -> Iterator[tuple[str, int]]:
    """The same with FAISS called in turn with its own search; both's times are in a file after its end."""
    with _process([sys.executable, "-m", "benchmarks.beside", str(path), str(times)]) as started:
        yield started


@contextmanager
def echoing(response: bytes) -> Iterator[tuple[str, int]]:
    """A server that answers every call with the same bytes; its address and process id."""
    with _process([sys.executable, "-m", "benchmarks.echo", response.hex()]) as started:
        yield started


@contextmanager
def _process(command: list[str]) -> Iterator[tuple[str, int]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - by the pipe above
            line = process.stdout.readline()
            if " on " not in line:
                raise RuntimeError(f"{' '.join(command[:4])} did not start; run it by hand to see why")
            yield f"127.0.0.1:{line.rsplit(':', 1)[1].strip()}", process.pid
        finally:
            process.terminate()
            process.wait(_STOP_S)


class Client:
    """One channel with raw and typed calls, unary and streamed."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        )
        self.stub = pb_grpc.RetrieverStub(self.channel)

    def stream(self) -> Stream[pb.RetrieveStreamRequest, pb.RetrieveStreamResponse]:
        """A stream of drafts."""
        return Stream(self.stub.RetrieveStream)

    def close(self) -> None:
        """Ends all calls."""
        self.channel.close()


class Stream(Generic[Request, Response]):
    """One bidirectional stream, one request at a time."""

    def __init__(self, method: Callable[[Iterator[Request]], Iterator[Response]]) -> None:
        self._outgoing: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._answers = method(iter(self._outgoing.get, None))

    def ask(self, request: Request) -> Response:
        """Sends, and waits for the answer."""
        self._outgoing.put(request)
        return next(self._answers)

    def close(self) -> None:
        """Ends the stream in order: the server has nothing left to cancel when it stops."""
        self._outgoing.put(None)
        for _ in self._answers:
            pass
