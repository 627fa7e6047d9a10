"""Whose drafts a client takes: those of its decoder's model only."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from decoder_client.retriever import RetrieverError, RetrieverMismatchError
from tests.support.retriever import client_of
from tests.support.serving import IDENTITY, ServerThread, local_config, servable_datastore, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    built = servable_datastore(tmp_path_factory.mktemp("identity") / "store")
    with serving(local_config(built.path)) as server:
        yield server


@pytest.mark.parametrize(
    "changes", [{"weights_fingerprint": "ff" * 32}, {"tokenizer_hash": "ff" * 32}, {"hidden_size": 13}]
)
def test_a_connected_client_is_for_its_model_only(server: ServerThread, changes: dict[str, object]):
    other = dataclasses.replace(IDENTITY, name="other", **changes)
    with client_of(server.address) as client:
        with pytest.raises(RetrieverError, match="not connected"):
            client.check_identity(IDENTITY)
        client.connect(IDENTITY)
        client.check_identity(dataclasses.replace(IDENTITY, name="a copy"))
        with pytest.raises(RetrieverMismatchError, match=f"{next(iter(changes))}: .*client of its own"):
            client.check_identity(other)


def test_a_connected_client_that_takes_other_weights_takes_them_of_any_decoder(server: ServerThread):
    with client_of(server.address, require_same_weights=False) as client:
        client.connect(IDENTITY)
        client.check_identity(dataclasses.replace(IDENTITY, weights_fingerprint="ff" * 32))


def test_a_refusal_for_the_weights_alone_says_what_may_be_done(server: ServerThread):
    with client_of(server.address) as client:
        with pytest.raises(RetrieverMismatchError, match=r"float16 copy.*require_same_weights=False"):
            client.connect(dataclasses.replace(IDENTITY, weights_fingerprint="ff" * 32))
        with pytest.raises(RetrieverMismatchError) as refused:
            client.connect(dataclasses.replace(IDENTITY, weights_fingerprint="ff" * 32, hidden_size=13))
    assert "float16" not in str(refused.value)
