"""Who opens a connection for an address closes it: when told to, when something fails, and when it is forgotten."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from decoder_client.engines.transformers_generate import dresd_generate
from decoder_client.errors import DecoderError, SettingError
from decoder_client.generation import SpeculativeDecoder
from decoder_client.retriever import RetrieverClient, RetrieverConfig, RetrieverMismatchError
from decoder_client.target_model import TargetModel
from tests.support.models import tiny_model
from tests.support.serving import HIDDEN, VOCAB, ServerThread, eventually, local_config, servable_datastore, serving

PROMPT = [3, 1, 4, 1, 5]


def target_of(seed: int) -> TargetModel:
    torch.manual_seed(seed)
    return TargetModel(tiny_model("llama", vocab_size=VOCAB, hidden_size=HIDDEN))


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return target_of(9)


@pytest.fixture(scope="module")
def server(target: TargetModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    path = tmp_path_factory.mktemp("owners") / "store"
    servable_datastore(path, model=target.identity())
    with serving(local_config(path)) as running:
        yield running


def ours() -> list[str]:
    """The threads of clients, of those that are connected and those that wait for a service."""
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name in ("dresd-keeper", "dresd-retrieve", "dresd-discovery")
    ]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    assert ours() == []
    yield
    gc.collect()
    eventually(lambda: ours() == [])


@pytest.fixture(params=["up", "down"])
def address(request: pytest.FixtureRequest, server: ServerThread, tmp_path: Path) -> str:
    return server.address if request.param == "up" else f"unix:{tmp_path}/nobody"


def generate(model: TargetModel, drafted: object) -> torch.Tensor:
    ids = torch.tensor([PROMPT])
    output = model.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False, custom_generate=drafted
    )
    assert isinstance(output, torch.Tensor)
    return output


def test_a_decoder_that_is_forgotten_leaves_no_thread(target: TargetModel, address: str) -> None:
    for _ in range(3):
        decoder = SpeculativeDecoder.from_pretrained(target, address)
        decoder.generate(PROMPT, max_new_tokens=4)
    assert ours()
    del decoder


def test_a_decoder_that_is_closed_leaves_no_thread(target: TargetModel, address: str) -> None:
    decoder = SpeculativeDecoder.from_pretrained(target, address)
    assert ours()
    decoder.close()
    assert ours() == []
    decoder.close()


@pytest.mark.parametrize("nodes", [5000, -1])
def test_a_setting_is_refused_before_anybody_is_asked(target: TargetModel, address: str, nodes: int) -> None:
    with pytest.raises(SettingError, match="nodes"):
        SpeculativeDecoder.from_pretrained(target, address, nodes=nodes)
    assert ours() == []


def test_a_decoder_of_another_model_leaves_no_thread(server: ServerThread) -> None:
    with pytest.raises(RetrieverMismatchError):
        SpeculativeDecoder.from_pretrained(target_of(10), server.address)
    assert ours() == []


def test_a_model_that_cannot_verify_drafts_leaves_no_thread(address: str) -> None:
    broken = target_of(9)  # the same identity was sampled elsewhere than where it breaks
    broken.identity()
    for parameter in broken.model.parameters():
        parameter.data.fill_(float("nan"))
    with pytest.raises(DecoderError, match="NaN"):
        SpeculativeDecoder.from_pretrained(broken, address)
    assert ours() == []


def test_one_function_a_call_leaves_no_thread(target: TargetModel, address: str) -> None:
    for _ in range(3):
        generate(target, dresd_generate(address))
    gc.collect()
    eventually(lambda: ours() == [])


def test_a_function_that_is_kept_keeps_one_connection(target: TargetModel, address: str) -> None:
    drafted = dresd_generate(address)
    generate(target, drafted)
    once = sorted(ours())
    generate(target, drafted)
    assert sorted(ours()) == once != []
    drafted.close()
    assert ours() == []
    generate(target, drafted)
    assert sorted(ours()) == once


def test_another_model_closes_the_connection_of_the_first(target: TargetModel, server: ServerThread) -> None:
    drafted = dresd_generate(server.address)
    generate(target, drafted)
    with pytest.raises(RetrieverMismatchError):
        generate(target_of(10), drafted)
    assert ours() == []
    generate(target, drafted)


def test_another_model_while_the_service_is_down_closes_the_connection_of_the_first(
    target: TargetModel, tmp_path: Path
) -> None:
    drafted = dresd_generate(f"unix:{tmp_path}/nobody")
    for model in (target, target_of(10), target):
        generate(model, drafted)
        assert len(ours()) == 1


def test_a_client_handed_over_stays_its_givers(target: TargetModel, server: ServerThread) -> None:
    with RetrieverClient(RetrieverConfig(server.address)) as client:
        SpeculativeDecoder.from_pretrained(target, client).close()
        generate(target, dresd_generate(client))
        gc.collect()
        assert ours()
        with pytest.raises(RetrieverMismatchError, match="client of its own"):
            SpeculativeDecoder.from_pretrained(target_of(10), client)
        with pytest.raises(RetrieverMismatchError, match="client of its own"):
            generate(target_of(10), dresd_generate(client))
        assert ours()
