from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable

import pytest

from retriever_service.serving.stream import MAX_IN_FLIGHT, AnswerStream


class Source:
    """Requests 0, 1, 2, ...; counts those taken."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in range(self.count):
            self.taken += 1
            yield number


async def settle() -> None:
    """Lets every task that can run, run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def all_of(stream: AnswerStream[int, int]) -> list[int]:
    return [answer async for answer in stream.answers()]


def test_answers_come_as_they_finish():
    async def scenario() -> None:
        first = asyncio.Event()

        async def answer(number: int) -> int:
            if number == 0:
                await first.wait()
            return number * 10

        stream = AnswerStream(aiter(Source(3)), answer)
        answers = stream.answers()
        assert [await anext(answers), await anext(answers)] == [10, 20]
        first.set()
        assert [rest async for rest in answers] == [0]

    asyncio.run(scenario())


def test_requests_beyond_the_bound_stay_unread():
    async def scenario() -> None:
        gate, source = asyncio.Event(), Source(2 * MAX_IN_FLIGHT)

        async def answer(number: int) -> int:
            await gate.wait()
            return number

        stream = AnswerStream(aiter(source), answer)
        await settle()
        assert source.taken == MAX_IN_FLIGHT
        gate.set()
        await settle()
        assert source.taken == MAX_IN_FLIGHT, "an answer that nobody takes keeps its place"
        assert sorted(await all_of(stream)) == list(range(2 * MAX_IN_FLIGHT))

    asyncio.run(scenario())


def test_after_stop_reading_what_was_read_is_still_answered():
    async def scenario() -> None:
        gate, source = asyncio.Event(), Source(2 * MAX_IN_FLIGHT)

        async def answer(number: int) -> int:
            await gate.wait()
            return number

        stream = AnswerStream(aiter(source), answer)
        await settle()
        stream.stop_reading()
        gate.set()
        assert sorted(await all_of(stream)) == list(range(MAX_IN_FLIGHT))

    asyncio.run(scenario())


def test_an_abandoned_stream_gives_up_its_work_and_ends():
    async def scenario() -> None:
        given_up = []

        async def answer(number: int) -> int:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                given_up.append(number)
                raise
            return number

        stream = AnswerStream(aiter(Source(2)), answer)
        await settle()
        stream.abandon()
        assert await all_of(stream) == []
        assert sorted(given_up) == [0, 1]

    asyncio.run(scenario())


def test_an_error_nobody_foresaw_ends_the_stream():
    async def scenario() -> None:
        async def answer(number: int) -> int:
            if number == 1:
                raise ZeroDivisionError
            await asyncio.Event().wait()
            return number

        with pytest.raises(ZeroDivisionError):
            await all_of(AnswerStream(aiter(Source(3)), answer))

    asyncio.run(scenario())


def test_answers_that_wait_for_nothing_come_in_order_and_others_when_they_are_done():
    async def scenario() -> None:
        gate, is_quick = asyncio.Event(), True

        async def answer(number: int) -> int:
            nonlocal is_quick
            quick, is_quick = is_quick, not is_quick
            if not quick:
                await gate.wait()
            return number

        stream = AnswerStream(aiter(Source(4)), answer, lambda _: is_quick)
        await settle()
        gate.set()
        assert await all_of(stream) == [0, 2, 1, 3]

    asyncio.run(scenario())


def test_an_error_at_once_ends_the_stream_as_any_other():
    async def scenario() -> None:
        async def answer(_number: int) -> int:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await all_of(AnswerStream(aiter(Source(3)), answer, lambda _: True))

    asyncio.run(scenario())


class Receive:
    """One receive, which ends when the test says how."""

    def __init__(self) -> None:
        self.ending: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def __aiter__(self) -> Receive:
        return self

    async def __anext__(self) -> int:
        return await self.ending


def message_comes(receive: Receive) -> None:
    receive.ending.set_result(0)


def call_fails(receive: Receive) -> None:
    receive.ending.set_exception(ConnectionError("the call has ended"))


def sender_is_done(receive: Receive) -> None:
    receive.ending.set_exception(StopAsyncIteration())


@pytest.mark.parametrize("told", [AnswerStream.stop_reading, AnswerStream.abandon])
@pytest.mark.parametrize("end", [message_comes, call_fails, sender_is_done])
@pytest.mark.parametrize("turns_between", [0, 1, 20, None])
def test_a_receive_that_ends_about_when_reading_does_is_seen_to_its_end(
    told: Callable[[AnswerStream[int, int]], None], end: Callable[[Receive], None], turns_between: int | None
):
    unseen: list[object] = []

    async def scenario() -> list[int]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        receive, answered = Receive(), []

        async def answer(number: int) -> int:
            answered.append(number)
            return number

        stream = AnswerStream(receive, answer)
        await settle()
        if turns_between is None:  # after the end of the stream, as a call's receive does
            told(stream)
            assert await all_of(stream) == []
            end(receive)
        else:
            end(receive)
            told(stream)
            for _ in range(turns_between):
                await asyncio.sleep(0)
            assert await all_of(stream) == []
        await settle()
        del stream, receive
        gc.collect()
        return answered

    assert asyncio.run(scenario()) == []
    assert unseen == []
