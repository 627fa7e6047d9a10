from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from dresd.allowance import MOST, Allowance


class Server:
    """Answers requests of several callers in the order they come, each in so long; callers ask whenever they may."""

    def __init__(self, callers: int, answer_s: float) -> None:
        self.callers = [Allowance() for _ in range(callers)]
        self.outstanding = [0] * callers
        self.waiting: deque[tuple[int, float]] = deque()
        self.now = 0.0
        self.answer_s = answer_s
        for allowance in self.callers:  # before there was any load
            allowance.answered(0.0, answer_s)

    def round(self) -> float:
        """Every caller sends what it may, and the first is answered; how long that one waited."""
        for number, allowance in enumerate(self.callers):
            while allowance.allows(self.outstanding[number]):
                self.outstanding[number] += 1
                self.waiting.append((number, self.now))
        number, sent = self.waiting.popleft()
        self.now += self.answer_s
        self.outstanding[number] -= 1
        self.callers[number].answered(sent, self.now)
        return self.now - sent


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.floats(20e-6, 2e-3))
def test_what_greedy_callers_wait_is_soon_bounded_by_their_number_alone(callers: int, answer_s: float):
    server = Server(callers, answer_s)
    for _ in range(callers * MOST * 3):
        server.round()
    waited = [server.round() for _ in range(callers * 20)]
    # Behind one of each other caller, or behind 10 ms of work, and some more before all senders know.
    assert max(waited) <= 1.5 * max(10e-3, callers * answer_s) + 2 * (callers + 1) * answer_s


@given(st.lists(st.floats(0.0, 10.0), max_size=200))
def test_one_request_is_always_allowed_and_never_more_than_servers_work_on(times: list[float]):
    allowance = Allowance()
    for at, away in enumerate(times):
        allowance.answered(float(at), at + away)
        assert allowance.allows(0)
        assert not allowance.allows(MOST)


def test_answers_that_come_soon_allow_more_again():
    allowance = Allowance()
    allowance.answered(0.0, 0.001)
    for at in range(1, 20):
        allowance.answered(float(at), at + 0.5)
    assert not allowance.allows(1)
    for at in range(20, 1000):
        allowance.answered(float(at), at + 0.001)
    assert allowance.allows(MOST - 1)


def test_what_the_server_says_it_took_is_no_reason_to_send_less():
    allowance = Allowance()
    for at, took in enumerate([0.001, 0.2, 0.001, 0.3] * 10):
        allowance.answered(float(at), at + took + 0.002, server_s=took)
    assert allowance.allows(MOST - 1)
