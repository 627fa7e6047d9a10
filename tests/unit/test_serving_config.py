from __future__ import annotations

from pathlib import Path

import pytest

from retriever_service.serving.config import Limits, ServeConfig, ServeError, split_address


@pytest.mark.parametrize(
    ("listen", "parts"),
    [
        ("localhost:50051", ("localhost", 50051)),
        (":0", ("", 0)),
        ("[::1]:8", ("[::1]", 8)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
    ],
)
def test_addresses_split(listen: str, parts: tuple[str, int]):
    assert split_address(listen) == parts


@pytest.mark.parametrize("listen", ["", "localhost", "50051", "host:", "host:x", "host:65536", "host:-1", "::1:80"])
def test_an_address_that_is_none_is_refused(listen: str):
    with pytest.raises(ServeError, match="HOST:PORT"):
        ServeConfig(Path("d"), listen=listen)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"search_threads": 0}, "search_threads"),
        ({"queue_size": 0}, "queue_size"),
        ({"shutdown_grace_s": -1.0}, "shutdown_grace_s"),
        ({"shutdown_grace_s": float("nan")}, "shutdown_grace_s"),
        ({"partitions": (0, -1)}, "partitions"),
        ({"partitions": ()}, "partition"),
    ],
)
def test_a_value_out_of_range_is_named(changes: dict[str, object], name: str):
    with pytest.raises(ServeError, match=name):
        ServeConfig(Path("d"), **changes)


def test_limits_are_at_least_one():
    with pytest.raises(ServeError, match="max_nodes is 0"):
        Limits(max_nodes=0)
