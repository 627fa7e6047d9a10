"""An engine drafts where it pays and is as fast as without where it does not, for every number of requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from decoder_client.engines.vllm.pass_times import PassTimes
from decoder_client.engines.vllm.switch import BatchSwitch

Seconds = Callable[[int, int], float]


class Bench:
    """Requests whose draft tokens are accepted with a probability that they are believed to have, or another one."""

    def __init__(self, switch: BatchSwitch, seconds: Seconds, *, promised: float, kept: float, draft_s: float) -> None:
        self._switch, self._seconds = switch, seconds
        self._promised, self._kept, self._draft_s = promised, kept, draft_s
        self._random = np.random.default_rng(0)
        self._counts: list[int] = []

    def rate(self, requests: int, steps: int) -> float:
        """Tokens a second of so many steps."""
        total_tokens, total_s = 0, 0.0
        for _ in range(steps):
            counts = self._counts if len(self._counts) == requests else [0] * requests
            extra = sum(counts)
            seconds = self._seconds(requests, extra)
            lucky = [int(np.cumprod(self._random.random(count) < self._kept).sum()) for count in counts]
            tokens = requests + sum(lucky)
            self._switch.ended(requests, extra, tokens, seconds)
            self._counts = []
            if self._switch.enter(requests):
                path = self._promised ** np.arange(1, 13)
                self._counts = self._switch.choose([path[path > self._switch.floor]] * requests)
                self._switch.drafted(self._draft_s * requests)
                seconds += self._draft_s * requests
            total_tokens += tokens
            total_s += seconds
        return total_tokens / total_s


def small_processor(requests: int, extra: int) -> float:
    """A pass that takes longer with every token."""
    return 0.05 + 0.01 * (requests + extra)


def large_processor(requests: int, extra: int) -> float:
    """A pass that takes no longer up to 64 tokens, and then does."""
    return 0.01 + 0.0003 * max(0, requests + extra - 64)


@pytest.mark.parametrize("requests", [1, 4, 16, 64])
@pytest.mark.parametrize("seconds", [small_processor, large_processor])
@pytest.mark.parametrize(("promised", "kept"), [(0.05, 0.05), (0.6, 0.0), (0.6, 0.6), (0.9, 0.3), (0.3, 0.9)])
def test_never_much_slower_than_without(seconds: Seconds, requests: int, promised: float, kept: float) -> None:
    bench = Bench(BatchSwitch(), seconds, promised=promised, kept=kept, draft_s=0.0002)
    plain = requests / seconds(requests, 0)
    assert bench.rate(requests, 250) > 0.97 * plain  # with what it takes to find out
    assert bench.rate(requests, 1000) > 0.98 * plain


def test_drafts_where_it_pays_and_not_where_it_does_not() -> None:
    bench = Bench(BatchSwitch(), large_processor, promised=0.6, kept=0.6, draft_s=0.00002)
    gains = {}
    for requests in (1, 256, 8, 256, 1):
        bench.rate(requests, 200)
        gains[requests] = bench.rate(requests, 500) * large_processor(requests, 0) / requests
    assert gains[1] > 2.0
    assert gains[8] > 1.8
    assert 0.97 < gains[256] < 1.3


def test_comes_back_soon_when_other_traffic_comes() -> None:
    switch = BatchSwitch()
    useless = Bench(switch, small_processor, promised=0.5, kept=0.0, draft_s=0.001)
    useful = Bench(switch, small_processor, promised=0.9, kept=0.9, draft_s=0.001)
    plain = 1 / small_processor(1, 0)
    useless.rate(1, 1500)
    assert useless.rate(1, 1500) > 0.97 * plain
    useful.rate(1, 300)
    assert useful.rate(1, 500) > 1.5 * plain


def test_a_little_noise_does_not_turn_it_off() -> None:
    random = np.random.default_rng(3)

    def noisy(requests: int, extra: int) -> float:
        return small_processor(requests, extra) * float(random.lognormal(0.0, 0.2))

    for _ in range(5):
        bench = Bench(BatchSwitch(), noisy, promised=0.7, kept=0.7, draft_s=0.002)
        assert bench.rate(1, 1500) > 1.2 / small_processor(1, 0)


def test_a_fixed_switch_drafts_always_and_everything() -> None:
    switch = BatchSwitch(adaptive=False)
    for _ in range(100):
        switch.ended(2, 24, 2, 100.0)
        assert switch.enter(2)
        assert switch.opens()
        assert switch.choose([np.full(12, 0.001), np.full(3, 0.9)]) == [12, 3]


def test_what_was_never_measured_is_tried_a_little_at_first() -> None:
    switch = BatchSwitch()
    for _ in range(5):
        switch.ended(16, 0, 16, 1.0)
    chosen = []
    for _ in range(4):
        assert switch.enter(16)
        chosen.append(sum(switch.choose([np.full(12, 0.9)] * 16)))
        switch.ended(16, chosen[-1], 16 + chosen[-1], 1.0)
    assert chosen == [16, 32, 64, 128]


def test_where_fewer_requests_do_not_pay_more_are_not_tried_at_once() -> None:
    switch = BatchSwitch()
    useless = Bench(switch, small_processor, promised=0.6, kept=0.0, draft_s=0.001)
    useless.rate(4, 50)
    for _ in range(5):
        switch.ended(16, 0, 16, 0.2)
    assert not any(switch.enter(16) for _ in range(10))


def test_the_likeliest_tokens_of_all_requests_get_the_places() -> None:
    switch = BatchSwitch()
    for _ in range(5):
        switch.ended(2, 0, 2, 1.0)
    for extra in (1, 2, 4, 8):
        switch.ended(2, extra, 2, 1.0 + 0.2 * extra)
    switch.enter(2)
    likely, unlikely = np.array([0.95, 0.9, 0.85]), np.array([0.3, 0.2, 0.1])
    assert switch.choose([unlikely, likely]) == [0, 3]


def test_times_between_and_beyond_what_was_measured() -> None:
    times = PassTimes()
    assert times.plain(1) is None
    with pytest.raises(ValueError, match="no pass"):
        times.seconds(1, 4)
    for _ in range(5):
        times.record(1, 0, 1.0)
    times.record(1, 0, 50.0)  # somebody else had the machine
    assert times.seconds(1, 3).tolist() == [1.0] * 4
    times.record(1, 4, 3.0)
    assert times.seconds(1, 8).tolist() == pytest.approx([1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5])
    assert times.plain(40) is None
    times.record(40, 0, 10.0)
    # Forty times the requests: forty times the draft tokens make a pass three times as long.
    assert times.seconds(40, 160)[[0, 80, 160]].tolist() == pytest.approx([10.0, 20.0, 30.0])
