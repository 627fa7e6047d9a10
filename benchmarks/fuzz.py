"""Bytes that no client sends, for a while: raw ones, HTTP/2 frames, and messages with some of their bytes changed.

    python -m benchmarks.fuzz --seconds 60 --seed 0

It fails (exit code 1) if a good request is not answered in between, if a call gets a status that is not documented, if
the server logs a traceback, or if its open files and memory do not come back. What it sends depends on the seed alone.
"""

from __future__ import annotations

import argparse
import collections
import random
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import grpc
import numpy as np

from benchmarks.held import held_by
from benchmarks.queries import queries_for, request_for
from benchmarks.stores import Spec, write
from dresd.v1 import retriever_pb2 as pb
from dresd.v1 import retriever_pb2_grpc as pb_grpc
from retriever_service.datastore import Datastore

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_METHODS = {
    **{f"/dresd.v1.Retriever/{name}": "unary" for name in ("GetInfo", "GetReducer", "Retrieve")},
    "/dresd.v1.Retriever/RetrieveStream": "stream",
    "/grpc.health.v1.Health/Check": "unary",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "stream",
    "/no.such.Service/Call": "unary",
}
_DOCUMENTED = {
    "OK",
    "INVALID_ARGUMENT",
    "FAILED_PRECONDITION",
    "NOT_FOUND",
    "UNIMPLEMENTED",
    "DEADLINE_EXCEEDED",
    "RESOURCE_EXHAUSTED",
}
_A_ROUND = 25
_PATIENCE_S = 20.0
_MORE_FILES, _MORE_BYTES = 8, 64 << 20
_TOO_LONG = 5 << 20


def run(seconds: float, seed: int) -> list[str]:
    """Fuzzes, and says what was wrong: nothing, if all is well."""
    chance = random.Random(seed)  # noqa: S311 - nothing secret
    with tempfile.TemporaryDirectory(prefix="dresd-fuzz-") as folder, tempfile.TemporaryFile("w+b") as log:
        path = Path(folder) / "store"
        write(path, Spec(2000))
        store = Datastore.open(path)
        good = request_for(queries_for(store, 2).select(np.arange(2)), store.manifest.build_id)
        command = [sys.executable, "-m", "retriever_service.cli", "serve", str(path), "--listen", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as server:
            try:
                assert server.stdout is not None  # noqa: S101 - by the pipe above
                port = int(server.stdout.readline().rsplit(b":", 1)[1])
                statuses = _fuzz(chance, port, good, server.pid, seconds)
            finally:
                server.terminate()
        log.seek(0)
        faults = [f"{count} calls ended with {name}" for name, count in statuses.items() if name not in _DOCUMENTED]
        if b"Traceback" in log.read():  # gRPC's core logs whatever bytes it was sent
            faults.append("the server logged a traceback")
        return faults


def _fuzz(
    chance: random.Random, port: int, good: pb.RetrieveRequest, process: int, seconds: float
) -> collections.Counter[str]:
    statuses: collections.Counter[str] = collections.Counter()
    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.enable_http_proxy", 0)]) as channel:
        stub = pb_grpc.RetrieverStub(channel)
        stub.Retrieve(good, timeout=_PATIENCE_S)
        (files, memory), ends = held_by([process]), time.monotonic() + seconds
        while time.monotonic() < ends:
            for _ in range(_A_ROUND):
                if chance.random() < 0.5:
                    _send_raw(port, _raw_bytes(chance))
                else:
                    statuses[_call(channel, *chance.choice(list(_METHODS.items())), _nearly(chance, good))] += 1
            answer = stub.Retrieve(good, timeout=_PATIENCE_S)
            if len(answer.trees) != good.num_queries:
                statuses["a good request with another answer"] += 1
        waits_until = time.monotonic() + _PATIENCE_S
        while held_by([process])[0] > files + _MORE_FILES and time.monotonic() < waits_until:
            time.sleep(0.1)
    left = held_by([process])
    if left[0] > files + _MORE_FILES or left[1] > memory + _MORE_BYTES:
        statuses[f"{left[0]} open files and {left[1]:,} bytes, {files} and {memory:,} before"] += 1
    print(f"calls: {dict(statuses)}")
    return statuses


def _raw_bytes(chance: random.Random) -> bytes:
    kind = chance.randrange(3)
    if kind == 0:
        return chance.randbytes(chance.randrange(200))
    frames = b"".join(_frame(chance) for _ in range(chance.randrange(1, 8)))
    return _PREFACE + (_SETTINGS if kind == 1 else b"") + frames


def _frame(chance: random.Random) -> bytes:
    """Of any type, on any stream; its length is mostly the payload's."""
    payload = chance.randbytes(chance.randrange(64))
    length = len(payload) if chance.random() < 0.9 else chance.randrange(1 << 24)
    stream = chance.choice([0, 1, 2, 3, chance.randrange(1 << 31)])
    return (
        length.to_bytes(3, "big")
        + bytes([chance.randrange(12), chance.randrange(256)])
        + stream.to_bytes(4, "big")
        + payload
    )


def _send_raw(port: int, content: bytes) -> None:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(0.05)
        while connection.recv(4096):
            pass


def _nearly(chance: random.Random, good: pb.RetrieveRequest) -> bytes:
    if chance.random() < 0.01:
        return chance.randbytes(_TOO_LONG)
    is_streamed = chance.random() < 0.5
    message = pb.RetrieveStreamRequest(request_id=1, request=good) if is_streamed else good
    content = bytearray(message.SerializeToString())
    for _ in range(chance.randrange(6)):
        content[chance.randrange(len(content))] = chance.randrange(256)
    return bytes(content[: chance.randrange(len(content))]) if chance.random() < 0.3 else bytes(content)


def _call(channel: grpc.Channel, method: str, kind: str, content: bytes) -> str:
    try:
        if kind == "unary":
            unary: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
            unary(content, timeout=_PATIENCE_S)
        else:
            stream: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(method)
            for _ in stream(iter([content]), timeout=_PATIENCE_S):
                pass
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def main(arguments: list[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fuzz", description="Sends a server what no client sends."
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="default: 60")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    options = parser.parse_args(arguments)
    faults = run(options.seconds, options.seed)
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
