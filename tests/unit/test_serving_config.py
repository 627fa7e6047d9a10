from __future__ import annotations

from pathlib import Path

import pytest

from retriever_service.serving.config import Limits, ServeConfig, split_address
from retriever_service.serving.connections import ConnectionLimits
from retriever_service.serving.errors import ServeError


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


@pytest.mark.parametrize(
    "listen",
    [
        "", "localhost", "50051", "host:", "host:x", "host:65536", "host:-1", "::1:80", "host:\N{SUPERSCRIPT TWO}",
        "host:" + "1" * 5_000, "a b:1", "/a:1", "a\0:1", "a\n:1", "é:1", "\udcff:1", "a/b:1", "user@a:1", "[]:1",
        "[:1", "unix:/run/x:1", "x" * 300 + ":1", "x" * 100_000, "[" + "1" * 300 + "]:1", " host:1", "host:1 ",
        "host:1\n",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(listen: str):
    with pytest.raises(ServeError, match="HOST:PORT") as refused:
        ServeConfig(Path("d"), listen=listen)
    assert len(str(refused.value)) < 500
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        *(({"search_threads": number}, "search_threads") for number in (-1, 0, 257, 2**63, 10**1_000)),
        *(({"queue_size": number}, "queue_size") for number in (-1, 0, 65_537, 2**63, 10**1_000)),
        *(({"partitions": (number,)}, "partitions") for number in (-1, 2**32, 10**1_000)),
        ({"shutdown_grace_s": -1.0}, "shutdown_grace_s"),
        ({"shutdown_grace_s": float("nan")}, "shutdown_grace_s"),
        ({"build_grace_s": -1.0}, "build_grace_s"),
        ({"build_grace_s": float("inf")}, "build_grace_s"),
        ({"partitions": (0, -1)}, "partitions"),
        ({"partitions": ()}, "partition"),
    ],
)
def test_a_value_out_of_range_is_named(changes: dict[str, object], name: str):
    with pytest.raises(ServeError, match=name) as refused:
        ServeConfig(Path("d"), **changes)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("changes", [{"search_threads": 256}, {"queue_size": 65_536}, {"partitions": (2**32 - 1,)}])
def test_a_value_at_the_end_of_its_range_is_taken(changes: dict[str, object]):
    ServeConfig(Path("d"), **changes)


@pytest.mark.parametrize("name", ["", "-a", ".", "..", "a/b", "a b", "a=b", "é", "a\n", "x" * 65, "x" * 100_000])
def test_what_is_no_name_of_a_collection_is_refused(name: str):
    with pytest.raises(ServeError, match="no name of a collection") as refused:
        ServeConfig(collections={name: Path("d")})
    assert len(str(refused.value)) < 500


def test_the_one_without_a_name_is_called_default():
    assert ServeConfig(Path("d"), {"a": Path("e")}).folders == {"default": Path("d"), "a": Path("e")}
    with pytest.raises(ServeError, match="two datastores are called default"):
        ServeConfig(Path("d"), {"default": Path("e")})


def test_a_server_of_nothing_is_refused():
    with pytest.raises(ServeError, match="no datastore was named"):
        ServeConfig()


def test_limits_are_at_least_one():
    with pytest.raises(ServeError, match="max_nodes is 0"):
        Limits(max_nodes=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_request_bytes", 0),
        ("max_streams", 0),
        ("keepalive_s", 0.0),
        ("keepalive_timeout_s", float("inf")),
        ("min_ping_s", -1.0),
        ("max_age_s", float("nan")),
    ],
)
def test_a_limit_of_connections_out_of_range_is_named(name: str, value: float):
    with pytest.raises(ServeError, match=name):
        ConnectionLimits(**{name: value})


def test_connections_that_never_grow_old_have_streams_that_never_end():
    limits = ConnectionLimits(max_age_s=0.0)
    assert limits.stream_age_s is None
    assert not any("connection_age" in name for name, _ in limits.options())
