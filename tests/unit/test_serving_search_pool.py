from __future__ import annotations

import asyncio
import threading
import time

import pytest

from retriever_service.serving.search_pool import ExpiredError, QueueFullError, SearchPool
from tests.support.serving import PATIENCE_S


class Gate:
    """Work that says it began and waits to be let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()

    def __call__(self) -> str:
        self.begun.release()
        assert self.go.wait(PATIENCE_S)
        return "done"


def pool(threads: int = 1, queue_size: int = 2) -> SearchPool:
    return SearchPool(threads, queue_size)


async def has_begun(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.begun.acquire, timeout=PATIENCE_S)


def test_results_and_errors_come_back():
    async def scenario() -> None:
        it = pool()
        result, waited = await it.run(lambda: 7, None)
        assert result == 7
        assert waited >= 0.0
        with pytest.raises(OSError, match="disk"):
            await it.run(lambda: (_ for _ in ()).throw(OSError("disk")), None)
        assert (await it.run(lambda: 8, None))[0] == 8, "the thread is free again"
        it.close()

    asyncio.run(scenario())


def test_one_search_more_than_may_wait_is_refused_at_once():
    async def scenario() -> None:
        it, gate = pool(threads=1, queue_size=2), Gate()
        running = [asyncio.create_task(it.run(gate, None)) for _ in range(3)]
        await has_begun(gate)
        with pytest.raises(QueueFullError):
            await it.run(gate, None)
        gate.go.set()
        assert [result for result, _ in await asyncio.gather(*running)] == ["done"] * 3
        assert (await it.run(lambda: 1, None))[0] == 1
        it.close()

    asyncio.run(scenario())


def test_expired_work_is_never_begun():
    async def scenario() -> None:
        it, gate, began = pool(), Gate(), []
        running = asyncio.create_task(it.run(gate, None))
        await has_begun(gate)
        expired = asyncio.create_task(it.run(lambda: began.append(1), time.monotonic()))
        gate.go.set()
        with pytest.raises(ExpiredError):
            await expired
        await running
        assert began == []
        assert (await it.run(lambda: 1, time.monotonic() + PATIENCE_S))[0] == 1
        it.close()

    asyncio.run(scenario())


def test_cancelling_gives_up_the_place_in_the_queue():
    async def scenario() -> None:
        it, gate, began = pool(threads=1, queue_size=1), Gate(), []
        running = asyncio.create_task(it.run(gate, None))
        await has_begun(gate)
        given_up = asyncio.create_task(it.run(lambda: began.append("given up"), None))
        await asyncio.wait({given_up}, timeout=0)
        given_up.cancel()
        await asyncio.wait({given_up})
        successor = asyncio.create_task(it.run(lambda: began.append("successor"), None))
        gate.go.set()
        await asyncio.gather(running, successor)
        assert began == ["successor"]
        it.close()

    asyncio.run(scenario())


def test_a_search_whose_caller_left_keeps_its_thread_until_it_ends():
    async def scenario() -> None:
        it, gate = pool(threads=1, queue_size=1), Gate()
        left = asyncio.create_task(it.run(gate, None))
        await has_begun(gate)
        left.cancel()
        await asyncio.wait({left})
        waiting = asyncio.create_task(it.run(lambda: 1, None))
        await asyncio.wait({waiting}, timeout=0)
        with pytest.raises(QueueFullError):
            await it.run(lambda: 2, None)
        gate.go.set()
        assert (await waiting)[0] == 1
        it.close()

    asyncio.run(scenario())


def test_short_searches_come_to_run_at_once_and_one_long_one_ends_that():
    async def scenario() -> None:
        searches = pool()
        threads = []
        while not searches.runs_at_once:
            assert len(threads) < 1000
            threads.append((await searches.run(threading.get_ident, None))[0])
        here = threading.get_ident()
        assert here not in threads
        assert await searches.run(threading.get_ident, None) == (here, 0.0)
        assert (await searches.run(threading.get_ident, None, is_small=False))[0] != here
        with pytest.raises(ExpiredError):
            await searches.run(threading.get_ident, time.monotonic() - 1.0)

        def long() -> int:
            until = time.monotonic() + 0.05
            while time.monotonic() < until:
                pass
            return threading.get_ident()

        assert (await searches.run(long, None))[0] == here
        assert not searches.runs_at_once
        assert (await searches.run(threading.get_ident, None))[0] != here
        searches.close()

    asyncio.run(scenario())


def test_while_a_search_runs_none_runs_at_once():
    async def scenario() -> None:
        searches, gate = pool(threads=2), Gate()
        running = asyncio.create_task(searches.run(gate, None))
        await has_begun(gate)
        for _ in range(100):
            await searches.run(threading.get_ident, None)
            assert not searches.runs_at_once
        gate.go.set()
        await running
        searches.close()

    asyncio.run(scenario())
