"""Load: many streams at once, each with one request under way, for a while; and what it cost servers and sender.

A stream asks again at once, which finds out what a server can do, or after a pause, as a decoder does: between two
queries it runs its model. Answers are counted, not parsed: on a small machine the sender must not take what the servers
need.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import numpy as np

from benchmarks.timing import Times
from dresd.v1 import retriever_pb2 as pb

_METHOD = "/dresd.v1.Retriever/RetrieveStream"
_WARM_UP_S = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """What a load achieved.

    Attributes:
        streams: at the same time.
        queries_per_s: answered.
        times: of one request, as its sender saw it.
        server_us: processor time of all servers, a query.
        sender_us: processor time of the process that asks, a query.
    """

    streams: int
    queries_per_s: float
    times: Times
    server_us: float
    sender_us: float


@dataclass(frozen=True, slots=True)
class Target:
    """A server, its process, and the requests that it is to answer."""

    address: str
    process: int
    requests: Sequence[pb.RetrieveRequest]


def drive(
    targets: Sequence[Target], plan: Sequence[Sequence[int]], streams: int, seconds: float, pause_s: float = 0.0
) -> Load:
    """Sends from every stream for so long.

    Args:
        targets: the servers.
        plan: of each query in turn, the targets it goes to; the query's request is the next of each target.
        streams: that work through the plan together.
        seconds: of measuring, after a short warm-up.
        pause_s: mean of a stream's pauses between an answer and its next query, which vary as chance has it; 0 is none.
    """
    return asyncio.run(_drive(targets, plan, streams, seconds, pause_s))


async def _drive(
    targets: Sequence[Target], plan: Sequence[Sequence[int]], streams: int, seconds: float, pause_s: float
) -> Load:
    channels = [grpc.aio.insecure_channel(target.address) for target in targets]
    payloads = [
        [pb.RetrieveStreamRequest(request_id=1, request=request).SerializeToString() for request in target.requests]
        for target in targets
    ]
    # The n-th query that a target gets is its n-th request.
    nth, seen = [], [0] * len(targets)
    for asked in plan:
        nth.append([(at, seen[at]) for at in asked])
        for at in asked:
            seen[at] += 1
    state = _State()

    async def one(first: int) -> None:
        # Any: raw bytes have no message types.
        calls: list[Any] = [channel.stream_stream(_METHOD)() for channel in channels]
        number = first
        chance = np.random.default_rng(first)
        while not state.done:
            if pause_s > 0:
                await asyncio.sleep(chance.exponential(pause_s))
            begun = time.perf_counter_ns()
            wanted = nth[number % len(nth)]
            for at, row in wanted:
                await calls[at].write(payloads[at][row])
            for at, _ in wanted:
                if await calls[at].read() is grpc.aio.EOF:
                    raise RuntimeError("a server ended its stream")
            state.taken.append((time.perf_counter_ns() - begun) / 1000)
            number += streams
        for call in calls:
            call.cancel()

    working = [asyncio.create_task(one(first)) for first in range(streams)]
    try:
        await asyncio.sleep(_WARM_UP_S)
        state.taken.clear()
        before, begun = [_cpu_s(target.process) for target in targets], time.perf_counter()
        sender_before = time.process_time()
        await asyncio.sleep(seconds)
        elapsed, taken = time.perf_counter() - begun, list(state.taken)
        sender_used = time.process_time() - sender_before
        used = sum(_cpu_s(target.process) for target in targets) - sum(before)
    finally:
        state.done = True
        await asyncio.gather(*working)
        for channel in channels:
            await channel.close()
    server_us, sender_us = (1e6 * used_s / max(len(taken), 1) for used_s in (used, sender_used))
    return Load(streams, len(taken) / elapsed, Times.of(np.array(taken)), server_us, sender_us)


class _State:
    def __init__(self) -> None:
        self.done = False
        self.taken: list[float] = []


def _cpu_s(process: int) -> float:
    # What clock_getcpuclockid(3) makes of a process; /proc counts hundredths of a second only.
    return time.clock_gettime(~process << 3 | 2)
