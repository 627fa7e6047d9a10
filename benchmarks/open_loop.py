"""Requests at times of their own, whatever the answers do; each answer's time counts from when its request was due.

So a server that makes its callers wait is not asked less for it, and what waits in this program counts as well (no
coordinated omission: requests are never left out because earlier ones are late). The program is a process of its own:
`python -m benchmarks.open_loop ADDRESS RATE SECONDS STREAMS PATIENCE_MS`, requests on standard input, the outcome as
JSON on standard output. It reads of an answer only whose it is and whether it is one. Like a decoder, it withholds a
request while earlier answers are late, and one that flow control has held back until nobody waits for its answer any
more.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import grpc.aio
import numpy as np
from numpy.typing import NDArray

from dresd.allowance import Allowance
from dresd.v1 import retriever_pb2 as pb

_METHOD = "/dresd.v1.Retriever/RetrieveStream"
_WARM_UP_S = 1.0
"""At most, and no longer than is measured."""
_LAST_S = 0.5
"""Answers are waited for after the last request."""
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of the requests that were due within the measured time.

    Attributes:
        rate: requests a second, on average (Poisson).
        due, accepted, refused, withheld: requests; what is none of the latter three got no answer.
        refusals: by gRPC status code.
        p50_ms, p99_ms: of the accepted ones, from when they were due.
        behind_ms: 99th percentile of how late this program itself handed requests to gRPC.
        seconds: measured.
    """

    rate: float
    due: int
    accepted: int
    refused: int
    withheld: int
    refusals: dict[str, int]
    p50_ms: float
    p99_ms: float
    behind_ms: float
    seconds: float


def offer(
    address: str, requests: Sequence[pb.RetrieveRequest], rate: float, seconds: float, streams: int, timeout_ms: float
) -> Outcome:
    """Asks `rate` times a second for so long, in a process of its own.

    Args:
        address: of the server.
        requests: asked in turn.
        rate: requests a second.
        seconds: measured, after a warm-up.
        streams: that share the requests.
        timeout_ms: the caller's patience that each request states.
    """
    timeout_us = round(timeout_ms * 1000)
    messages = (pb.RetrieveStreamRequest(request=each, timeout_us=timeout_us).SerializeToString() for each in requests)
    content = b"".join(len(each).to_bytes(_LENGTH_BYTES, "little") + each for each in messages)
    command = [
        sys.executable,
        "-m",
        "benchmarks.open_loop",
        address,
        str(rate),
        str(seconds),
        str(streams),
        str(timeout_ms),
    ]
    done = subprocess.run(command, input=content, stdout=subprocess.PIPE, check=True)
    return Outcome(**json.loads(done.stdout))


class _Stream:
    """One call: requests are written in the order they become due, answers noted as they come."""

    def __init__(self, channel: grpc.aio.Channel, log: _Log, patience_s: float) -> None:
        self._log, self._patience_s = log, patience_s
        self._outstanding, self._allowance = 0, Allowance()
        self.due: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()
        # Any: raw bytes have no message types.
        self._call: Any = channel.stream_stream(_METHOD)()
        self.tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    async def _write(self) -> None:
        while (due := await self.due.get()) is not None:
            number, message = due
            now = time.perf_counter()
            if now >= self._log.begun + self._log.due[number] + self._patience_s:
                continue
            if not self._allowance.allows(self._outstanding):
                continue
            self._outstanding += 1
            self._log.written[number] = now
            # A field that comes again replaces the one before: here the request's id, a varint of 5 bytes.
            padded = bytes([number & 127 | 128, number >> 7 & 127 | 128, number >> 14 & 127 | 128, number >> 21 & 127])
            await self._call.write(message + b"\x08" + padded)

    async def _read(self) -> None:
        while (answer := await self._call.read()) is not grpc.aio.EOF:
            self._outstanding -= 1
            at, number, shift = 1, 0, 0  # the id comes first, as field 1; it is not 0
            while True:
                number |= (answer[at] & 127) << shift
                at, shift = at + 1, shift + 7
                if answer[at - 1] < 128:
                    break
            now = self._log.answered[number] = time.perf_counter()
            self._allowance.answered(self._log.written[number], now)
            if answer[at] == 0x1A:  # field 3 is the error
                error = pb.RetrieveStreamResponse.FromString(answer).error
                self._log.codes[number] = error.code

    def close(self) -> None:
        self._call.cancel()
        for task in self.tasks:
            task.cancel()


class _Log:
    """What became of each request, in seconds of the clock; `due` counts from `begun`."""

    def __init__(self, due: NDArray[np.float64]) -> None:
        self.begun, self.due, count = 0.0, due, len(due)
        self.written, self.answered = np.full(count, np.nan), np.full(count, np.nan)
        self.codes = np.zeros(count, np.int64)


async def _offer(
    address: str, messages: Sequence[bytes], rate: float, seconds: float, streams: int, patience_s: float
) -> Outcome:
    rng, warm_up_s = np.random.default_rng(0), min(_WARM_UP_S, seconds)
    due = np.cumsum(rng.exponential(1.0 / rate, size=round(rate * (seconds + warm_up_s)) + 1))
    due[0] = 0.0
    log = _Log(due)
    channels = [
        grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(streams)
    ]
    calls = [_Stream(channel, log, patience_s) for channel in channels]
    await asyncio.gather(*(channel.channel_ready() for channel in channels))
    gc.disable()
    begun = log.begun = time.perf_counter()
    for number in range(1, len(due)):
        ahead = begun + due[number] - time.perf_counter()
        if ahead > 0.0:
            await asyncio.sleep(ahead)
        elif number % 8 == 0:
            await asyncio.sleep(0)  # a loop that is behind still reads and writes
        calls[number % streams].due.put_nowait((number, messages[number % len(messages)]))
    await asyncio.sleep(_LAST_S)
    for call in calls:
        call.close()
    for channel in channels:
        await channel.close()
    counts = due >= warm_up_s
    refused = counts & (log.codes > 0)
    accepted = counts & ~np.isnan(log.answered) & ~refused
    took_ms = (log.answered - begun - due)[accepted] * 1e3
    p50, p99 = np.percentile(took_ms, [50, 99]).tolist() if accepted.any() else (float("nan"), float("nan"))
    codes, numbers = np.unique(log.codes[refused], return_counts=True)
    behind = (log.written - begun - due)[counts & ~np.isnan(log.written)]
    return Outcome(
        rate=rate,
        due=int(counts.sum()),
        accepted=int(accepted.sum()),
        refused=int(refused.sum()),
        withheld=int((counts & np.isnan(log.written)).sum()),
        refusals={_name_of(code): number for code, number in zip(codes.tolist(), numbers.tolist(), strict=True)},
        p50_ms=p50,
        p99_ms=p99,
        behind_ms=float(np.percentile(behind, 99) * 1e3),
        seconds=seconds,
    )


def _name_of(code: int) -> str:
    return next((status.name for status in grpc.StatusCode if status.value[0] == code), str(code))


def main(arguments: Sequence[str]) -> None:
    """The process."""
    address, rate, seconds, streams, patience_ms = arguments
    content, messages = sys.stdin.buffer.read(), []
    at = 0
    while at < len(content):
        length = int.from_bytes(content[at : at + _LENGTH_BYTES], "little")
        at += _LENGTH_BYTES + length
        messages.append(content[at - length : at])
    outcome = asyncio.run(
        _offer(address, messages, float(rate), float(seconds), int(streams), float(patience_ms) / 1e3)
    )
    print(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main(sys.argv[1:])
