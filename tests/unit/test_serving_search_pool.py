from __future__ import annotations

import asyncio
import threading
import time

import pytest

from retriever_service.serving.search_pool import ExpiredError, QueueFullError, SearchPool
from retriever_service.serving.search_queue import SearchQueue
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


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def settle() -> None:
    """Lets every task that can run, run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def trusted(searches: SearchPool) -> None:
    """Runs short searches until they run at once."""
    for _ in range(1000):
        if searches.runs_at_once:
            return
        await searches.run(lambda: None, None)
    raise AssertionError("searches never came to run at once")


def test_short_searches_come_to_run_at_once_and_some_long_ones_end_that_for_a_while():
    async def scenario() -> None:
        clock = Clock()
        searches = SearchPool(1, 2, clock)
        here = threading.get_ident()
        assert (await searches.run(threading.get_ident, None))[0] != here
        await trusted(searches)
        assert await searches.run(threading.get_ident, None) == (here, 0.0)
        assert (await searches.run(threading.get_ident, None, is_small=False))[0] != here
        with pytest.raises(ExpiredError):
            await searches.run(threading.get_ident, -1.0)

        def long() -> int:
            clock.now += 5.0
            return threading.get_ident()

        assert (await searches.run(long, None))[0] == here
        assert searches.runs_at_once, "one search that was interrupted says nothing of the next"
        for _ in range(10):
            await searches.run(long, None)
        assert not searches.runs_at_once
        assert (await searches.run(threading.get_ident, None))[0] != here
        await trusted(searches)
        searches.close()

    asyncio.run(scenario())


def test_however_long_searches_in_threads_take_a_small_one_is_tried_at_once_again():
    """On a busy server most of a short search's time in a thread is spent waiting for the interpreter."""

    async def scenario() -> None:
        clock = Clock()
        searches = SearchPool(1, 2, clock)

        def slow() -> None:
            clock.now += 5.0

        for _ in range(1000):
            if not searches.runs_at_once:
                await searches.run(slow, None)
        assert searches.runs_at_once
        searches.close()

    asyncio.run(scenario())


def test_small_searches_go_on_at_once_while_others_run_and_wait():
    async def scenario() -> None:
        searches, gate = pool(threads=1, queue_size=1), Gate()
        await trusted(searches)
        others = [asyncio.create_task(searches.run(gate, None, is_small=False)) for _ in range(2)]
        await has_begun(gate)
        await settle()
        assert searches.is_full
        with pytest.raises(QueueFullError):
            await searches.run(gate, None, is_small=False)
        for _ in range(100):
            assert (await searches.run(threading.get_ident, None))[0] == threading.get_ident()
        gate.go.set()
        await asyncio.gather(*others)
        searches.close()

    asyncio.run(scenario())


class Queued:
    """Searches of a queue with one thread, each of which takes `search_s`."""

    def __init__(self, search_s: float, size: int = 1000) -> None:
        self.clock = Clock()
        self.queue = SearchQueue(1, size, self.clock)
        self.search_s = search_s
        self.tasks: list[asyncio.Task[None]] = []

    async def arrive(self, number: int, deadline: float | None = None) -> None:
        self.tasks += [asyncio.create_task(self.queue.take_thread(deadline)) for _ in range(number)]
        await settle()

    async def search(self, number: int) -> None:
        for _ in range(number):
            self.clock.now += self.search_s
            self.queue.give_thread()
            await settle()

    def refused(self) -> int:
        return sum(task.done() and isinstance(task.exception(), QueueFullError) for task in self.tasks)


@pytest.mark.parametrize(("search_s", "may_wait"), [(1.02e-3, 10), (2.02e-3, 5), (5.02e-3, 2), (20e-3, 1), (1.0, 1)])
def test_no_more_wait_than_are_served_within_ten_milliseconds(search_s: float, may_wait: int):
    async def scenario() -> None:
        searches = Queued(search_s)
        await searches.arrive(200)
        assert searches.refused() == 0, "nobody knows yet how long they would wait"
        await searches.search(199)
        assert searches.queue.is_full is (may_wait == 0)
        await searches.arrive(30)
        assert len(searches.queue) == may_wait
        assert searches.refused() == 30 - may_wait
        await searches.search(may_wait)
        assert not searches.queue.is_full
        await searches.search(1)
        await asyncio.gather(*searches.tasks, return_exceptions=True)

    asyncio.run(scenario())


def test_those_whose_deadline_has_passed_do_not_get_a_turn():
    async def scenario() -> None:
        searches = Queued(1.0)
        await searches.arrive(1)
        await searches.arrive(3, deadline=0.5)
        await searches.arrive(1)
        await searches.search(1)
        assert [isinstance(task.exception(), ExpiredError) for task in searches.tasks] == [False, *[True] * 3, False]

    asyncio.run(scenario())


@pytest.mark.parametrize("turn_first", [False, True], ids=["cancelled, then its turn", "its turn, then cancelled"])
def test_a_place_given_up_at_its_turn_goes_to_the_next(turn_first: bool):
    async def scenario() -> None:
        searches = Queued(1.0)
        await searches.arrive(3)
        running, leaving, last = searches.tasks
        await running
        if turn_first:
            searches.queue.give_thread()
            leaving.cancel()
        else:
            leaving.cancel()
            searches.queue.give_thread()
        await settle()
        assert leaving.cancelled()
        assert last.done()
        assert len(searches.queue) == 0
        await searches.search(1)
        await searches.arrive(1)
        assert searches.tasks[-1].done(), "no thread was lost"

    asyncio.run(scenario())
