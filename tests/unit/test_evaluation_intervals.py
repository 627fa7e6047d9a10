"""Bootstrap intervals: where they must lie, and what must not widen or narrow them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoder_client.evaluation.intervals import ratio_of_ratios, ratio_of_sums

COUNTS = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 100)), min_size=1, max_size=30)


@settings(max_examples=30, deadline=None)
@given(COUNTS)
def test_an_interval_holds_the_value_and_stays_within_the_single_ratios(counts: list[tuple[int, int]]) -> None:
    above, below = zip(*counts, strict=True)
    found = ratio_of_sums(above, below)
    single = [a / b for a, b in counts]
    assert found.value == pytest.approx(sum(above) / sum(below))
    assert min(single) - 1e-9 <= found.low <= found.high <= max(single) + 1e-9
    assert found == ratio_of_sums(above, below)  # the same draws every time


def test_one_prompt_and_equal_prompts_have_no_spread() -> None:
    for numerators, denominators in (([6], [2]), ([6, 3, 9], [2, 1, 3])):
        found = ratio_of_sums(numerators, denominators)
        assert (found.value, found.low, found.high) == (3.0, 3.0, 3.0)


def test_nothing_divided_by_nothing_is_nothing() -> None:
    assert ratio_of_sums([0, 0], [0, 0]).value == 0.0
    assert ratio_of_ratios([1, 1], [1, 1], [0, 0], [1, 1]).value == 0.0


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(100):
        below = random.integers(20, 60, size=40)
        found = ratio_of_sums((below * random.gamma(4.0, 0.5, size=40)).tolist(), below.tolist())
        covered += found.low <= 2.0 <= found.high
    assert 85 <= covered <= 100


def test_a_comparison_is_paired() -> None:
    random = np.random.default_rng(0)
    forwards = random.integers(20, 60, size=40)
    tokens = forwards * random.gamma(4.0, 0.5, size=40)  # prompts differ a lot
    same = ratio_of_ratios(tokens.tolist(), forwards.tolist(), tokens.tolist(), forwards.tolist())
    assert (same.value, same.low, same.high) == (1.0, 1.0, 1.0)
    better = ratio_of_ratios((1.2 * tokens).tolist(), forwards.tolist(), tokens.tolist(), forwards.tolist())
    assert (better.low, better.value, better.high) == pytest.approx((1.2, 1.2, 1.2))
    single = ratio_of_sums(tokens.tolist(), forwards.tolist())
    assert single.high - single.low > 0.1
