"""Which addresses a client takes."""

from __future__ import annotations

import argparse

import pytest

from decoder_client.commands.options import retriever_address
from decoder_client.retriever_config import RetrieverConfig
from decoder_client.retriever_errors import RetrieverError

REFUSED = [
    "",
    " ",
    "nowhere",
    "host:",
    ":50051",
    "host:0",
    "host:65536",
    "host:99999",
    "host:115587",
    "host:-1",
    "host:٣",
    "host:port",
    "host:1:2",
    "::1:50051",
    "my host:1",
    " host:1",
    "host:1 ",
    "host:1\n",
    "http://host:1",
    "host/path:1",
    "user@host:1",
    "a..b:1",
    f"{'h' * 300}:1",
    f"{'h.' * 150}h:1",
    "dns:///host",
    "dns:///host:70000",
    "ipv4:127.0.0.1:70000",
    "unix:",
]


@pytest.mark.parametrize("address", REFUSED)
def test_what_is_no_address_is_refused_in_one_sentence(address: str) -> None:
    with pytest.raises(RetrieverError, match="is not an address") as refused:
        RetrieverConfig(address)
    assert "HOST:PORT" in str(refused.value)
    assert len(str(refused.value)) < 300
    with pytest.raises(argparse.ArgumentTypeError, match="is not an address"):
        retriever_address(address)


@pytest.mark.parametrize(
    "address",
    [
        "localhost:50051",
        "127.0.0.1:1",
        "host.domain.:65535",
        "my_host-2:50051",
        "büro.example:50051",
        "[::1]:50051",
        "dns:///host:50051",
        "dns://8.8.8.8/host:50051",
        "dns:host:50051",
        "ipv4:127.0.0.1:50051",
        "ipv6:[::1]:50051",
        "unix:/run/dresd.socket",
        "unix:///run/dresd.socket",
    ],
)
def test_an_address_is_taken_as_it_is(address: str) -> None:
    assert RetrieverConfig(address).address == retriever_address(address) == address
