"""Values that a retriever's client cannot work with are refused by name."""

from __future__ import annotations

import pytest

from decoder_client.retriever import RetrieverConfig, RetrieverError


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"address": "nowhere"}, "HOST:PORT"),
        ({"deadline_ms": 0.0}, "deadline_ms"),
        ({"connect_timeout_s": float("nan")}, "connect_timeout_s"),
        ({"failure_threshold": 0}, "failure_threshold"),
    ],
)
def test_a_config_that_cannot_be_is_refused(changes: dict[str, object], name: str):
    with pytest.raises(RetrieverError, match=name):
        RetrieverConfig(**{"address": "localhost:1", **changes})
