from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresd.histogram import Histogram


@given(
    st.lists(st.floats(0.0, 10.0), max_size=50),
    st.lists(st.floats(0.001, 9.0), min_size=1, max_size=8, unique=True).map(sorted),
)
def test_a_bucket_counts_what_is_not_longer_than_its_end(durations: list[float], bounds: list[float]):
    histogram = Histogram(bounds)
    for duration in durations:
        histogram.observe(duration)
    assert histogram.cumulated() == tuple(
        (bound, sum(duration <= bound for duration in durations)) for bound in (*bounds, float("inf"))
    )
    assert histogram.sum_s == pytest.approx(sum(durations))
