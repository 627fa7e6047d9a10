"""Trouble for a server of two workers under load: a kill, a swap and a storm of clients, each of them every minute.

    python -m benchmarks.soak --minutes 10 --load 0.7

Every answer is compared with a search of the build that it names, here in this process. It fails (exit code 1) for a
wrong draft, for a status that is not documented, and for memory or file descriptors that do not come back. It needs no
idle machine: no time is judged.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np

from benchmarks.held import held_by
from benchmarks.queries import queries_for, request_for
from benchmarks.stores import Spec, write
from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.datastore import Datastore, publish

_DOCUMENTED = {"OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "UNAVAILABLE"}
"""What a correct request may get in all this."""
_ENTRIES, _QUERIES, _CALLERS, _STORM = 20_000, 200, 8, 100
_TIMEOUT_S = 2.0
_MORE_FILES, _MORE_BYTES = 16, 64 << 20

Tree = tuple[tuple[int, ...], tuple[int, ...]]


class Soak:
    """What all callers share: the questions, the right answers, and what came.

    Args:
        builds: by build id.
        address: of the server.
    """

    def __init__(self, builds: dict[str, Path], address: str) -> None:
        self.address = address
        self.statuses: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.over = threading.Event()
        self._lock = threading.Lock()
        first = Datastore.open(next(iter(builds.values())))
        queries = queries_for(first, _QUERIES)
        self.requests = [request_for(queries.select(np.array([row])), "") for row in range(_QUERIES)]
        self._right = {
            build_id: [_answer_of(Datastore.open(path), request) for request in self.requests]
            for build_id, path in builds.items()
        }

    def ask(self, stub: pb_grpc.RetrieverStub, row: int) -> None:
        """Asks one question and looks at what comes."""
        try:
            response = stub.Retrieve(self.requests[row], timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            with self._lock:
                self.statuses[error.code().name] += 1
            return
        found = _described(response.trees[0])
        with self._lock:
            self.statuses["OK"] += 1
            if found != self._right[response.build_id][row]:
                self.wrong.append(f"query {row} of build {response.build_id}")

    def keep_asking(self, rate: float) -> None:
        """A caller's life, with a new connection now and then."""
        while not self.over.is_set():
            with _channel(self.address) as channel:
                stub = pb_grpc.RetrieverStub(channel)
                for _ in range(random.randint(50, 500)):  # noqa: S311 - nothing secret
                    if self.over.wait(random.expovariate(rate)):
                        return
                    self.ask(stub, random.randrange(_QUERIES))  # noqa: S311

    @contextmanager
    def callers(self, rate: float) -> Iterator[None]:
        """Several that ask `rate` times a second together; without a pause where that is infinite."""
        self.over.clear()
        threads = [threading.Thread(target=self.keep_asking, args=(rate / _CALLERS,)) for _ in range(_CALLERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.over.set()
            for thread in threads:
                thread.join()

    def fastest(self, seconds: float) -> float:
        """Requests a second that are answered when callers never pause."""
        with self.callers(float("inf")):
            time.sleep(seconds)
        return self.statuses["OK"] / seconds

    def storm(self) -> None:
        """Many clients at once, each with a connection of its own."""

        def one(row: int) -> None:
            with _channel(self.address) as channel:
                self.ask(pb_grpc.RetrieverStub(channel), row % _QUERIES)

        with ThreadPoolExecutor(_STORM) as callers:
            list(callers.map(one, range(_STORM)))


def _channel(address: str) -> grpc.Channel:
    return grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)])


def _answer_of(store: Datastore, request: pb.RetrieveRequest) -> Tree:
    keys = np.frombuffer(request.keys, "<f2").reshape(1, -1).astype(np.float32)
    batch = store.draft(
        keys,
        np.array(request.next_tokens, np.int64),
        neighbors=request.neighbors,
        max_nodes=request.max_nodes,
        temperature=request.similarity_temperature,
    )
    tree = batch.trees[0]
    return tuple(tree.tokens.tolist()), tuple((tree.parents + 1).tolist())


def _described(tree: pb.DraftTree) -> Tree:
    return tuple(tree.tokens), tuple(tree.parents)


def workers_of(process: int) -> list[int]:
    """The worker processes of a server."""
    return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def run(minutes: float, load: float, minute_s: float = 60.0) -> list[str]:
    """Soaks, and says what was wrong: nothing, if all is well."""
    with tempfile.TemporaryDirectory(prefix="dresd-soak-") as folder:
        root = Path(folder)
        builds = {}
        for seed in (0, 1):
            spec = Spec(_ENTRIES, seed=seed)
            write(root / spec.name, spec)
            builds[spec.name] = root / spec.name
        names = list(builds)
        publish(root, root / names[0])
        command = [sys.executable, "-m", "retriever_service.cli", "serve", str(root), "--listen", "127.0.0.1:0"]
        options = ["--workers", "2", "--reload-interval", "0.5", "--build-grace", "5"]
        with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None  # noqa: S101 - by the pipe above
                address = f"127.0.0.1:{server.stdout.readline().rsplit(':', 1)[1].strip()}"
                soak = Soak(builds, address)
                rate = max(1.0, load * soak.fastest(minute_s / 12))
                with soak.callers(rate):
                    time.sleep(minute_s / 6)
                    before = held_by(workers_of(server.pid))
                    ends, number = time.monotonic() + minutes * minute_s, 0
                    troubles: list[Callable[[], object]] = [
                        lambda: os.kill(random.choice(workers_of(server.pid)), signal.SIGKILL),  # noqa: S311
                        lambda: publish(root, root / names[(number // 3 + 1) % 2]),
                        soak.storm,
                    ]
                    while time.monotonic() < ends:
                        time.sleep(minute_s / 3)
                        troubles[number % 3]()
                        number += 1
                    time.sleep(minute_s / 3)
                time.sleep(minute_s / 6)
                print(f"{rate:,.0f} requests a second")
                return _faults(soak, before, held_by(workers_of(server.pid)), len(workers_of(server.pid)))
            finally:
                server.terminate()


def _faults(soak: Soak, before: tuple[int, int], after: tuple[int, int], workers: int) -> list[str]:
    print(f"answers {dict(soak.statuses)}; files {before[0]} -> {after[0]}; memory {before[1]:,} -> {after[1]:,} bytes")
    faults = [f"a wrong draft: {each}" for each in soak.wrong[:10]]
    faults += [f"{count} answers with {code}" for code, count in soak.statuses.items() if code not in _DOCUMENTED]
    if soak.statuses["OK"] < sum(soak.statuses.values()) / 2:
        faults.append("fewer than half of the requests were answered")
    if after[0] > before[0] + _MORE_FILES or after[1] > before[1] + _MORE_BYTES:
        faults.append(f"files and memory did not come back: {before} before, {after} after")
    if workers != 2:
        faults.append(f"{workers} workers are left of 2")
    return faults


def main(arguments: list[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="Soaks a server in trouble.")
    parser.add_argument("--minutes", type=float, default=10.0, help="default: 10")
    parser.add_argument(
        "--load", type=float, default=0.7, help="share of the requests that are answered without pauses; default: 0.7"
    )
    parser.add_argument("--minute-s", type=float, default=60.0, help="length of a minute; default: 60")
    options = parser.parse_args(arguments)
    faults = run(options.minutes, options.load, options.minute_s)
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
