"""`model.generate(..., custom_generate=dresd_generate())` returns what `model.generate(...)` returns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel, StoppingCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from decoder_client.engines.transformers_generate import dresd_generate
from decoder_client.errors import SettingError
from decoder_client.loop import GenerationError
from decoder_client.retriever_errors import RetrieverError
from tests.support.models import ARCHITECTURES, tiny_model

VOCAB = 48
# A text that repeats itself, so that drafts from the text are accepted.
PROMPT = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1, 5]])


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.manual_seed(3)
    return tiny_model(request.param, vocab_size=VOCAB)


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    torch.manual_seed(3)
    return tiny_model("llama", vocab_size=VOCAB)


def generate(model: PreTrainedModel, **settings: object) -> object:
    torch.manual_seed(5)
    defaults = {"attention_mask": torch.ones_like(PROMPT), "max_new_tokens": 40, "pad_token_id": 0}
    return model.generate(PROMPT, **defaults | settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"do_sample": False},
        {"do_sample": True, "temperature": 0.8, "top_k": 10, "top_p": 0.9},
        {"do_sample": False, "repetition_penalty": 1.5, "no_repeat_ngram_size": 3},
        {"do_sample": False, "min_new_tokens": 10, "eos_token_id": [7, 11, 30, 45]},
        {"do_sample": False, "max_new_tokens": None, "max_length": 20},
        {"do_sample": False, "max_new_tokens": 1},
    ],
    ids=["greedy", "sampled", "processors", "ends", "max_length", "one"],
)
def test_the_output_is_that_of_generate(model: PreTrainedModel, settings: dict[str, object]) -> None:
    expected = generate(model, **settings)
    assert isinstance(expected, torch.Tensor)
    assert torch.equal(generate(model, **settings, custom_generate=dresd_generate()), expected)


class AfterToken(StoppingCriteria):
    """Stops after a token that was seen in the answer twice."""

    def __call__(self, input_ids: torch.Tensor, _scores: object, **_more: object) -> torch.Tensor:
        answer = input_ids[0, PROMPT.shape[1] :].tolist()
        return torch.tensor([len(answer) > 1 and answer.count(answer[-1]) > 1])


def test_stopping_criteria_hold(model: PreTrainedModel) -> None:
    expected = generate(model, stopping_criteria=[AfterToken()])
    assert isinstance(expected, torch.Tensor)
    assert expected.shape[1] < PROMPT.shape[1] + 40
    assert torch.equal(generate(model, stopping_criteria=[AfterToken()], custom_generate=dresd_generate()), expected)


def test_one_function_serves_many_calls(llama: PreTrainedModel) -> None:
    torch.manual_seed(4)
    other = tiny_model("llama", vocab_size=VOCAB)
    decode = dresd_generate(nodes=8)
    for model in (llama, llama, other):
        assert torch.equal(generate(model, custom_generate=decode), generate(model))


def test_an_output_object_is_given_when_asked_for(llama: PreTrainedModel) -> None:
    output = generate(llama, return_dict_in_generate=True, custom_generate=dresd_generate())
    assert isinstance(output, GenerateDecoderOnlyOutput)
    assert torch.equal(output.sequences, generate(llama))


class Collector:
    """Notes what a streamer is handed."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.seen.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended = True


def test_a_streamer_gets_the_prompt_and_then_each_token(llama: PreTrainedModel) -> None:
    streamer, reference = Collector(), Collector()
    generate(llama, streamer=reference)
    generate(llama, custom_generate=dresd_generate(streamer=streamer))
    assert streamer.seen == reference.seen
    assert streamer.ended


def test_a_service_that_is_down_costs_no_answer(
    llama: PreTrainedModel, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    nobody = f"unix:{tmp_path}/nobody"
    assert torch.equal(generate(llama, custom_generate=dresd_generate(nobody)), generate(llama))
    assert [record.levelname for record in caplog.records if "decoding without" in record.message] == ["WARNING"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"num_return_sequences": 2, "do_sample": True}, "batch of 2"),
        ({"num_beams": 2}, "batch of 2|beam search"),
        ({"return_dict_in_generate": True, "output_scores": True}, "output_scores"),
        ({"return_dict_in_generate": True, "output_logits": True, "output_hidden_states": True}, "output_logits and"),
        ({"attention_mask": torch.tensor([[0, *[1] * (PROMPT.shape[1] - 1)]])}, "padding"),
        ({"position_ids": torch.arange(2, 2 + PROMPT.shape[1])[None]}, "position_ids"),
    ],
)
def test_what_cannot_be_decoded_with_drafts_is_refused(
    llama: PreTrainedModel, settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(GenerationError, match=reason):
        generate(llama, **settings, custom_generate=dresd_generate())


@pytest.mark.parametrize("settings", [{"nodes": 5000}, {"nodes": -1}, {"nodes": True}])
def test_settings_out_of_range_are_refused_when_made(settings: dict[str, int]) -> None:
    with pytest.raises(SettingError, match="nodes"):
        dresd_generate(**settings)


@pytest.mark.parametrize("address", ["", "nowhere", "localhost:99999"])
def test_an_address_that_cannot_be_is_refused_when_made(address: str) -> None:
    with pytest.raises(RetrieverError, match="not an address"):
        dresd_generate(address)


@pytest.mark.parametrize(
    "settings", [{"do_sample": True, "temperature": 1e-45}, {"repetition_penalty": 1e-45}, {"repetition_penalty": 1e39}]
)
def test_settings_that_would_overflow_are_refused(llama: PreTrainedModel, settings: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=list(settings)[-1]):
        generate(llama, **settings, custom_generate=dresd_generate())


def test_a_batch_is_refused(llama: PreTrainedModel) -> None:
    two = PROMPT.repeat(2, 1)
    with pytest.raises(GenerationError, match="batch of 2 sequences; pass one prompt"):
        llama.generate(two, attention_mask=torch.ones_like(two), custom_generate=dresd_generate())


def test_a_filled_cache_is_refused(llama: PreTrainedModel) -> None:
    cache = DynamicCache()
    with torch.inference_mode():
        llama(PROMPT[:, :4], cache=cache, use_cache=True)
    with pytest.raises(GenerationError, match="filled already"):
        generate(llama, cache=cache, custom_generate=dresd_generate())
