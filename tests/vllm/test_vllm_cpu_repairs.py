"""Settings of requests are spread over their draft tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoder_client.engines.vllm.cpu_repairs import spread


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.7, 1.0]), st.integers(0, 5)), min_size=1, max_size=8))
def test_each_number_comes_once_for_each_draft_token(requests: list[tuple[float, int]]) -> None:
    numbers = torch.tensor([number for number, _ in requests])
    counts = torch.tensor([count for _, count in requests], dtype=torch.int32)
    found = spread(numbers, counts.cumsum(0, dtype=torch.int32), int(counts.sum()), replace_from=0, replace_to=1)
    expected = [number or 1.0 for number, count in requests for _ in range(count)]
    assert found.tolist() == pytest.approx(expected)
    assert found.dtype == numbers.dtype
