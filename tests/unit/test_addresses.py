"""HOST:PORT is read in one way, whoever reads it: who listens, who calls, and who asks whether that is this machine."""

from __future__ import annotations

import argparse

from hypothesis import given
from hypothesis import strategies as st

from dresd.addresses import AddressError, Target, check_address, split_target
from dresd.argument_types import server_address
from retriever_service.serving.config import split_address
from retriever_service.serving.errors import ServeError

LABELS = st.text("abcxyz019-_", min_size=1, max_size=20)
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join)
V6 = st.ip_addresses(v=6).map(lambda address: f"[{address}]")
HOSTS = NAMES | V6 | st.ip_addresses(v=4).map(str)
RESOLVERS = st.sampled_from(["", "dns:", "dns:///", "dns://8.8.8.8/", "ipv4:", "ipv6:"])
LOOKS_LIKE_ONE = st.text("ab1.:[]/%@, \n-", max_size=30) | st.text(max_size=30)


def called(text: str) -> bool:
    try:
        check_address(text)
    except AddressError:
        return False
    return True


def named(text: str) -> bool:
    try:
        return server_address(text) == text
    except argparse.ArgumentTypeError:
        return False


def listened_on(text: str) -> tuple[str, int] | None:
    try:
        return split_address(text)
    except ServeError:
        return None


@given(RESOLVERS, HOSTS, st.integers(1, 65_535))
def test_an_address_is_taken_apart_and_put_together_again(resolver: str, host: str, port: int):
    target = Target(resolver, host, port)
    assert split_target(str(target)) == target
    assert called(str(target))
    assert named(str(target))
    assert listened_on(str(target)) == (None if resolver else (host, port))


@given(LOOKS_LIKE_ONE)
def test_of_any_text_all_readers_say_the_same(text: str):
    target = split_target(text)
    assert named(text) == called(text)
    if target is None:
        assert not (called(text) and not text.startswith("unix"))
        assert listened_on(text) is None
        return
    is_plain = target.resolver == ""
    assert not called(text) or 1 <= target.port <= 65_535
    if (listened := listened_on(text)) is not None:
        assert listened == (target.host, target.port)
        assert is_plain


@given(HOSTS, st.integers(65_536, 999_999_999) | st.just(0))
def test_what_is_no_port_is_none_for_anybody_who_calls(host: str, port: int):
    text = f"{host}:{port}"
    assert not called(text)
    assert not named(text)
    assert listened_on(text) == ((host, 0) if port == 0 else None)
