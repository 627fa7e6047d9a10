from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dresd.breaker import Breaker


def breaker(threshold: int = 3, jitter: float = 0.0) -> Breaker:
    return Breaker(threshold, retry_base_s=0.1, retry_max_s=1.0, jitter=lambda: jitter)


def test_opens_at_the_threshold_of_consecutive_failures():
    it = breaker(threshold=3)
    it.failure()
    it.failure()
    assert not it.is_open
    it.failure()
    assert it.is_open


def test_a_success_starts_the_count_over():
    it = breaker(threshold=2)
    for _ in range(10):
        it.failure()
        it.success()
    assert not it.is_open


def test_tripping_opens_at_once_and_closing_closes():
    it = breaker()
    it.trip()
    assert it.is_open
    it.close()
    assert not it.is_open


def test_one_failure_on_trial_opens_again():
    it = breaker(threshold=3)
    it.trip()
    it.pause_s()
    it.close()
    it.failure()
    assert it.is_open


def test_a_success_on_trial_gives_the_whole_threshold_back():
    it = breaker(threshold=2)
    it.trip()
    it.pause_s()
    it.close()
    it.success()
    it.failure()
    assert not it.is_open


def test_pauses_double_up_to_the_longest_and_start_over_after_a_success():
    it = breaker()
    assert [it.pause_s() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    it.close()
    assert it.pause_s() == 1.0, "a handshake alone is no success"
    it.success()
    assert it.pause_s() == 0.1


@given(jitter=st.floats(0.0, 1.0, exclude_max=True), trials=st.integers(1, 2000))
def test_jitter_shortens_a_pause_by_at_most_a_half(jitter: float, trials: int):
    shortened, whole = breaker(jitter=jitter), breaker()
    for _ in range(trials):
        pause, longest = shortened.pause_s(), whole.pause_s()
    assert longest / 2 <= pause <= longest <= 1.0
