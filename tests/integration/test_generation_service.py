"""A decoder with a real service: drafts come over gRPC, the output stays the target's, also when the service leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from decoder_client.cli import main
from decoder_client.engines.transformers_generate import dresd_generate
from decoder_client.generation import SpeculativeDecoder
from decoder_client.retriever import RetrieverClient, RetrieverConfig, RetrieverMismatchError
from decoder_client.target_model import TargetModel
from tests.support.models import save_tiny_model, tiny_model
from tests.support.serving import HIDDEN, VOCAB, ServerThread, local_config, servable_datastore, serving

PROMPT = [3, 1, 4, 1, 5]
PATIENT_MS = 20_000.0


@pytest.fixture(scope="module")
def answer(target: TargetModel) -> tuple[int, ...]:
    return SpeculativeDecoder(target).generate(PROMPT, max_new_tokens=40).tokens


@pytest.fixture
def server(target: TargetModel, tmp_path: Path) -> Iterator[ServerThread]:
    servable_datastore(tmp_path / "store", model=target.identity())
    with serving(local_config(tmp_path / "store")) as running:
        yield running


def patient(address: str) -> RetrieverClient:
    """A client that waits long enough on a busy machine, so that every call is answered."""
    return RetrieverClient(RetrieverConfig(address, deadline_ms=PATIENT_MS))


def test_every_step_is_drafted_for_and_the_output_stays(
    target: TargetModel, answer: tuple[int, ...], server: ServerThread
) -> None:
    with patient(server.address) as client:
        # A number of nodes is given, because it is not the point whether a call pays on a tiny model.
        decoder = SpeculativeDecoder.from_pretrained(target, client, nodes=16, context=False)
        generation = decoder.generate(PROMPT, max_new_tokens=40)
    assert generation.tokens == answer
    stats = generation.stats
    assert stats.retrievals_answered == stats.retrievals > 0
    assert stats.drafted > 0


def test_the_service_may_leave_in_the_middle(
    target: TargetModel, answer: tuple[int, ...], server: ServerThread
) -> None:
    seen: list[int] = []

    def leave_after_ten(token: int) -> None:
        seen.append(token)
        if len(seen) == 10:
            server.stop(0.0)

    with patient(server.address) as client:
        decoder = SpeculativeDecoder.from_pretrained(target, client, nodes=16, context=False)
        generation = decoder.generate(PROMPT, max_new_tokens=40, on_token=leave_after_ten)
    assert generation.tokens == answer
    assert 0 < generation.stats.retrievals_answered < generation.stats.retrievals


def test_a_deadline_too_short_to_meet_changes_nothing(
    target: TargetModel, answer: tuple[int, ...], server: ServerThread
) -> None:
    with RetrieverClient(RetrieverConfig(server.address, deadline_ms=0.001)) as client:
        decoder = SpeculativeDecoder.from_pretrained(target, client, nodes=16, context=False)
        assert decoder.generate(PROMPT, max_new_tokens=40).tokens == answer


def test_an_address_is_enough_and_its_connection_is_closed(
    target: TargetModel, answer: tuple[int, ...], server: ServerThread
) -> None:
    with SpeculativeDecoder.from_pretrained(target, server.address) as decoder:
        assert decoder.generate(PROMPT, max_new_tokens=40).tokens == answer


def test_another_models_datastore_is_refused(server: ServerThread) -> None:
    torch.manual_seed(10)
    other = TargetModel(tiny_model("llama", vocab_size=VOCAB, hidden_size=HIDDEN))
    with pytest.raises(RetrieverMismatchError, match="weights_fingerprint"):
        SpeculativeDecoder.from_pretrained(other, server.address)


def test_the_command_fails_on_another_models_datastore(
    server: ServerThread, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_tiny_model("llama", tmp_path / "model")
    code = main(["generate", "--model", str(folder), "--prompt", "hi", "--retriever", server.address])
    captured = capsys.readouterr()
    assert (code, captured.out) == (1, "")
    [error] = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert "another model" in error


def test_generate_of_transformers_takes_a_client(
    target: TargetModel, answer: tuple[int, ...], server: ServerThread
) -> None:
    ids = torch.tensor([PROMPT])
    with patient(server.address) as client:
        output = target.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=40,
            do_sample=False,
            custom_generate=dresd_generate(client, nodes=16, context=False),
        )
        answered = client.stats.answered
    assert tuple(output[0, len(PROMPT) :].tolist()) == answer
    assert answered > 0
