"""Signals that come while they are held: acted on afterwards, whatever became of what they were held for."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from retriever_service.building.signals import signals_held

STOPPING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


class StoppedError(Exception):
    pass


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Every signal raises; the handlers from before come back."""

    def stop(number: int, _frame: object) -> None:
        raise StoppedError(number)

    before = {number: signal.signal(number, stop) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPPING)
@pytest.mark.parametrize("fails", [False, True])
def test_a_signal_is_acted_on_when_the_work_is_done(number: signal.Signals, fails: bool) -> None:
    steps = []

    def work() -> None:
        with signals_held():
            signal.raise_signal(number)
            steps.append("not torn in two")
            signal.raise_signal(number)
            if fails:
                raise ValueError

    with pytest.raises(StoppedError) as caught:
        work()
    assert caught.value.args == (number,)
    assert steps == ["not torn in two"]
    with pytest.raises(StoppedError):
        signal.raise_signal(number)


def test_without_a_signal_nothing_happens() -> None:
    before = [signal.getsignal(number) for number in STOPPING]
    with signals_held():
        pass
    assert [signal.getsignal(number) for number in STOPPING] == before


@pytest.mark.parametrize("number", STOPPING)
def test_an_ignored_signal_stays_ignored(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_IGN)
    with signals_held():
        signal.raise_signal(number)
    assert signal.getsignal(number) is signal.SIG_IGN
