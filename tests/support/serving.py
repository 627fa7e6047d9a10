"""Real retriever servers for tests: in a thread of this process, or as a process of their own."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import grpc
import numpy as np

from decoder_client.reducer import KeyReducer, ReducerFit
from dresd.identity import ModelIdentity
from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.datastore import Datastore
from retriever_service.serving.server import RunningServer, ServeConfig, start
from tests.support.commands import retriever_command
from tests.support.datastore import BuiltDatastore, build_datastore, random_entries

if TYPE_CHECKING:
    from retriever_service.serving.tracing import RequestTracing

HIDDEN = 12
DIMS = 8
VOCAB = 50
IDENTITY = ModelIdentity("tiny", "", "ab" * 32, "cd" * 32, HIDDEN, VOCAB)
PATIENCE_S = 60.0
"""How long a test waits for what must happen; never how long something may take."""

T = TypeVar("T")


def fitted_reducer(seed: int = 0, dims: int = DIMS) -> KeyReducer:
    fit = ReducerFit(HIDDEN)
    fit.update(np.random.default_rng(seed).normal(size=(200, HIDDEN)).astype(np.float32))
    return fit.finish(dims)


def servable_datastore(
    path: Path,
    *,
    build_id: str = "build-1",
    seed: int = 0,
    model: ModelIdentity = IDENTITY,
    num_partitions: int = 1,
) -> BuiltDatastore:
    """A small datastore whose reducer a client can read."""
    reducer = fitted_reducer(seed).to_bytes()
    entries = random_entries(dims=DIMS, vocab_size=VOCAB, seed=seed)
    return build_datastore(
        path,
        entries,
        vocab_size=VOCAB,
        reducer=reducer,
        model=model,
        build_id=build_id,
        seed=seed,
        num_partitions=num_partitions,
    )


class ServerThread:
    """A server on a free port, its event loop in a thread of this process."""

    def __init__(
        self,
        config: ServeConfig,
        opener: Callable[[Path], Datastore] | None = None,
        *,
        loaded: bool = True,
        tracing: RequestTracing | None = None,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.starting = asyncio.run_coroutine_threadsafe(start(config, opener, tracing=tracing), self._loop)
        if loaded:
            self.server: RunningServer = self.starting.result(PATIENCE_S)
            self.address = f"127.0.0.1:{self.server.port}"

    def call(self, work: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(PATIENCE_S)

    def stop(self, grace_s: float = 5.0) -> None:
        self.call(self.server.stop(grace_s))

    def close(self) -> None:
        """Ends the thread; `stop` comes first unless the server never started."""
        self.call(_end_all_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


async def _end_all_tasks() -> None:
    """As `asyncio.run` does in the end: what a task has not looked at yet would be logged as if it were a failure."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@contextmanager
def serving(
    config: ServeConfig,
    opener: Callable[[Path], Datastore] | None = None,
    *,
    tracing: RequestTracing | None = None,
) -> Iterator[ServerThread]:
    thread = ServerThread(config, opener, tracing=tracing)
    try:
        yield thread
        thread.stop()
    finally:
        thread.close()


def local_config(path: Path, **options: object) -> ServeConfig:
    return ServeConfig(path, listen="127.0.0.1:0", search_threads=2, **options)


class ServerProcess:
    """`dresd-retriever serve` as a process."""

    def __init__(
        self,
        datastore: Path,
        *arguments: str,
        listen: str = "127.0.0.1:0",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            retriever_command("serve", datastore, "--listen", listen, *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        )

    def ready(self) -> str:
        """Waits for the line that says so; the address in it."""
        line = self.process.stdout.readline()
        # gRPC in the test's own process may log while it is forked, into the pipes of the process to be.
        while line and not line.startswith("dresd-retriever ready on "):
            line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return line.rsplit(" ", 1)[1].strip()

    def finish(self) -> tuple[int, str, str]:
        """Waits for the end: exit code, rest of stdout, stderr."""
        output, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, output, errors

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self.process.stdout.close()
        self.process.stderr.close()


def request_for(
    keys: np.ndarray, next_tokens: Sequence[int], /, *, float32: bool = False, **changes: object
) -> pb.RetrieveRequest:
    """A good request, with some fields changed."""
    fields: dict[str, object] = {
        "keys": keys.astype("<f4" if float32 else "<f2").tobytes(),
        "key_type": pb.KEY_TYPE_FLOAT32 if float32 else pb.KEY_TYPE_FLOAT16,
        "num_queries": len(keys),
        "dims": keys.shape[1],
        "next_tokens": next_tokens,
        "neighbors": 10,
        "max_nodes": 16,
        "similarity_temperature": 0.1,
    }
    return pb.RetrieveRequest(**{**fields, **changes})


class OpenStream:
    """A RetrieveStream call whose requests a test sends one at a time."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._outgoing: queue.SimpleQueue[pb.RetrieveStreamRequest | None] = queue.SimpleQueue()
        self.call = pb_grpc.RetrieverStub(self._channel).RetrieveStream(iter(self._outgoing.get, None))

    def send(self, request_id: int, request: pb.RetrieveRequest | None, timeout_us: int = 0) -> None:
        self._outgoing.put(pb.RetrieveStreamRequest(request_id=request_id, request=request, timeout_us=timeout_us))

    def receive(self) -> pb.RetrieveStreamResponse:
        return next(self.call)

    def half_close(self) -> None:
        self._outgoing.put(None)

    def __enter__(self) -> OpenStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.half_close()
        self.call.cancel()
        self._channel.close()


class GatedDatastore:
    """A datastore whose searches begin, and then wait until the test lets them go on."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore
        self.begun = threading.Semaphore(0)
        self.gate = threading.Event()
        self.searches = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._datastore, name)

    def draft(self, *arguments: object, **options: object) -> object:
        self.searches += 1
        self.begun.release()
        assert self.gate.wait(PATIENCE_S)
        return self._datastore.draft(*arguments, **options)


def eventually(condition: Callable[[], bool]) -> None:
    """Waits until something that another thread or process brings about is so."""
    waiter = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if condition():
            return
        waiter.wait(0.01)
    raise AssertionError("it never happened")
