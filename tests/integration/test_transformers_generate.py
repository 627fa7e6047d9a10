"""`model.generate(..., custom_generate=dresd_generate())` returns what `model.generate(...)` returns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
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
        ({"num_beams": 2}, "beam search"),
        ({"return_dict_in_generate": True, "output_scores": True}, "output_scores"),
        ({"return_dict_in_generate": True, "output_logits": True, "output_hidden_states": True}, "output_logits and"),
        ({"attention_mask": torch.tensor([[*[1] * (PROMPT.shape[1] - 1), 0]])}, "padding behind"),
        ({"attention_mask": torch.tensor([[0, 1, 0, *[1] * (PROMPT.shape[1] - 3)]])}, "padding behind or within"),
        ({"attention_mask": torch.zeros_like(PROMPT)}, "prompt is empty"),
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


def test_a_filled_cache_is_refused(llama: PreTrainedModel) -> None:
    cache = DynamicCache()
    with torch.inference_mode():
        llama(PROMPT[:, :4], cache=cache, use_cache=True)
    with pytest.raises(GenerationError, match="filled already"):
        generate(llama, cache=cache, custom_generate=dresd_generate())


PAD = 47
BATCH = ([5, 9, 2], PROMPT[0].tolist(), [7], np.random.default_rng(1).integers(VOCAB, size=20).tolist())


def left_padded(prompts: Sequence[list[int]]) -> dict[str, torch.Tensor]:
    longest = max(map(len, prompts))
    return {
        "input_ids": torch.tensor([[PAD] * (longest - len(prompt)) + prompt for prompt in prompts]),
        "attention_mask": torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]),
    }


def generate_batch(model: PreTrainedModel, prompts: Sequence[list[int]] = BATCH, **settings: object) -> torch.Tensor:
    output = model.generate(**left_padded(prompts), **{"max_new_tokens": 30, "pad_token_id": PAD} | settings)
    assert isinstance(output, torch.Tensor)
    return output


BATCH_SETTINGS = {
    "greedy": {},
    "ends": {"eos_token_id": [30, 7, 11]},
    "an end at once": {"eos_token_id": list(range(0, VOCAB, 2))},
    "no padding token named": {"eos_token_id": [30, 7, 11, *range(13, VOCAB, 5)], "pad_token_id": None},
    "penalties": {"repetition_penalty": 1.5, "no_repeat_ngram_size": 3},
    "counted lengths": {"min_new_tokens": 10, "eos_token_id": list(range(0, VOCAB, 2))},
    "counted whole lengths": {"min_length": 28, "eos_token_id": list(range(0, VOCAB, 2))},
    "an end that is forced": {"forced_eos_token_id": 3, "eos_token_id": [3]},
    "biases": {"sequence_bias": [[[1, 4], 5.0]], "bad_words_ids": [[5], [6, 7]], "suppress_tokens": [9]},
    "a penalty for length": {"exponential_decay_length_penalty": (4, 1.2), "eos_token_id": [7]},
    "one token": {"max_new_tokens": 1},
}


@pytest.mark.parametrize("name", BATCH_SETTINGS)
def test_a_padded_batch_is_that_of_generate(model: PreTrainedModel, name: str) -> None:
    expected = generate_batch(model, do_sample=False, **BATCH_SETTINGS[name])
    found = generate_batch(model, do_sample=False, **BATCH_SETTINGS[name], custom_generate=dresd_generate(nodes=16))
    assert found.tolist() == expected.tolist()


def test_each_row_of_a_padded_batch_is_its_prompt_alone(model: PreTrainedModel) -> None:
    found = generate_batch(model, eos_token_id=[30, 7, 11], custom_generate=dresd_generate(nodes=16))
    for row, prompt in zip(found, BATCH, strict=True):
        ids = torch.tensor([prompt])
        [alone] = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, eos_token_id=[30, 7, 11], pad_token_id=PAD
        )
        longest = max(map(len, BATCH))
        expected = [PAD] * (longest - len(prompt)) + alone.tolist()
        assert row.tolist() == expected + [PAD] * (len(row) - len(expected))


def test_stopping_criteria_hold_for_each_row(llama: PreTrainedModel) -> None:
    """In a batch of ours as in one of `generate`, which stops a row where its own criterion is met."""

    class RepeatsAToken(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, _scores: object, **_more: object) -> torch.Tensor:
            return torch.tensor([len(set(row[-12:])) < 12 for row in input_ids.tolist()])

    settings = {"stopping_criteria": [RepeatsAToken()], "eos_token_id": [30]}
    expected = generate_batch(llama, BATCH[3:] * 2, **settings)
    assert generate_batch(llama, BATCH[3:] * 2, **settings, custom_generate=dresd_generate()).tolist() == (
        expected.tolist()
    )


def test_several_samples_of_one_prompt(llama: PreTrainedModel) -> None:
    settings = {"num_return_sequences": 3, "do_sample": True, "temperature": 1.5}
    torch.manual_seed(5)
    found, again = (generate_batch(llama, BATCH[1:2], **settings, custom_generate=dresd_generate()) for _ in range(2))
    assert found.shape == (3, PROMPT.shape[1] + 30)
    assert (found[:, : PROMPT.shape[1]] == PROMPT).all()
    assert len({tuple(row) for row in [*found.tolist(), *again.tolist()]}) == 6


def test_a_sampled_batch_follows_torchs_seed_whatever_is_drafted(llama: PreTrainedModel) -> None:
    answers = []
    for nodes in (0, 4, 32):
        torch.manual_seed(5)
        answers.append(generate_batch(llama, do_sample=True, custom_generate=dresd_generate(nodes=nodes)).tolist())
        torch.manual_seed(6)
        assert generate_batch(llama, do_sample=True, custom_generate=dresd_generate(nodes=nodes)).tolist() != answers[0]
    assert [len(answer) for answer in answers] == [len(BATCH)] * 3


def test_a_streamer_takes_one_prompt(llama: PreTrainedModel) -> None:
    streamer = Collector()
    with pytest.raises(GenerationError, match="streamer takes one prompt"):
        generate_batch(llama, custom_generate=dresd_generate(streamer=streamer))
    assert streamer.seen == []


@pytest.mark.parametrize("behind", [1, 5])
def test_padding_behind_a_prompt_is_refused(llama: PreTrainedModel, behind: int) -> None:
    ids = torch.tensor([[*range(1, 9)], [*range(1, 9 - behind), *[PAD] * behind]])
    mask = (ids != PAD).long()
    with pytest.raises(GenerationError, match="pad on the left"):
        llama.generate(ids, attention_mask=mask, max_new_tokens=4, custom_generate=dresd_generate())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"prefix_allowed_tokens_fn": lambda _row, _ids: [1, 2]}, "prefix_allowed_tokens_fn for a batch"),
        ({"guidance_scale": 1.5}, "guidance_scale for a batch"),
        ({"encoder_repetition_penalty": 1.5}, "encoder_repetition_penalty for a batch"),
        ({"encoder_no_repeat_ngram_size": 2}, "encoder_no_repeat_ngram_size for a batch"),
    ],
)
def test_what_counts_the_rows_of_a_batch_is_refused(
    llama: PreTrainedModel, settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(GenerationError, match=reason):
        generate_batch(llama, **settings, custom_generate=dresd_generate())
    expected = generate(llama, **settings)
    assert isinstance(expected, torch.Tensor)
    assert torch.equal(generate(llama, **settings, custom_generate=dresd_generate()), expected)
