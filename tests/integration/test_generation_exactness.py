"""Decoding with drafts gives the tokens of plain decoding, for every architecture, whatever is drafted.

Plain decoding is transformers' own `generate`: an implementation that shares no code with ours.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from decoder_client.drafting import ContextDrafter, Drafter
from decoder_client.generation import SpeculativeDecoder
from decoder_client.loop import DraftLimits
from decoder_client.target_model import TargetModel
from tests.support.drafts import OracleDrafter
from tests.support.models import ARCHITECTURES, SLIDING_WINDOW, tiny_model

VOCAB, NEW_TOKENS = 48, 40
PROMPT_LENGTHS = (1, 7, 2 * SLIDING_WINDOW + 3)
SAMPLING = {"temperature": 0.9, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.2}


@cache
def model_of(architecture: str) -> PreTrainedModel:
    torch.manual_seed(9)  # the test at the end says why this one
    return tiny_model(architecture, vocab_size=VOCAB)


def prompt_of(length: int) -> list[int]:
    return np.random.default_rng(length).integers(VOCAB, size=length).tolist()


def generated(model: PreTrainedModel, prompt: list[int], **settings: object) -> list[int]:
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, pad_token_id=0, **settings
    )
    return [int(token) for token in output[0, len(prompt) :]]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("length", PROMPT_LENGTHS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_output_is_that_of_plain_decoding(architecture: str, length: int, attention: str) -> None:
    model = model_of(architecture)
    model.set_attn_implementation(attention)
    prompt = prompt_of(length)
    expected = generated(model, prompt, do_sample=False)
    target = TargetModel(model)
    assert list(SpeculativeDecoder(target).generate(prompt, max_new_tokens=NEW_TOKENS).tokens) == expected
    for right in (0.0, 0.7, 0.95, 1.0):
        for nodes in (1, 6, 32):
            drafters: list[Drafter] = [
                OracleDrafter(prompt + expected, vocab_size=VOCAB, right=right, seed=nodes),
                ContextDrafter(),
            ]
            decoder = SpeculativeDecoder(target, drafters, limits=DraftLimits(nodes=nodes))
            generation = decoder.generate(prompt, max_new_tokens=NEW_TOKENS)
            assert list(generation.tokens) == expected, (right, nodes)
            if right == 1.0 and nodes == 32:
                assert generation.stats.tokens_per_forward > 4


@pytest.mark.parametrize("length", PROMPT_LENGTHS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_seed_gives_the_samples_of_plain_decoding(architecture: str, length: int) -> None:
    model = model_of(architecture)
    model.set_attn_implementation("sdpa")
    prompt = prompt_of(length)
    torch.manual_seed(11)
    expected = generated(model, prompt, do_sample=True, **SAMPLING)
    target = TargetModel(model)
    for right in (None, 0.0, 0.9):
        drafters = [OracleDrafter(prompt + expected, vocab_size=VOCAB, right=right)] if right is not None else []
        decoder = SpeculativeDecoder(target, drafters)
        generation = decoder.generate(prompt, max_new_tokens=NEW_TOKENS, seed=11, **SAMPLING)
        assert list(generation.tokens) == expected, right


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_repetition_penalty_holds_for_greedy_decoding(architecture: str) -> None:
    model = model_of(architecture)
    prompt = prompt_of(7)
    expected = generated(model, prompt, do_sample=False, repetition_penalty=1.3)
    drafter = OracleDrafter(prompt + expected, vocab_size=VOCAB, right=0.9)
    decoder = SpeculativeDecoder(TargetModel(model), [drafter])
    generation = decoder.generate(prompt, max_new_tokens=NEW_TOKENS, repetition_penalty=1.3)
    assert list(generation.tokens) == expected


def test_the_reference_texts_are_varied() -> None:
    """Equality with a text that repeats one token would show nothing."""
    for architecture in ARCHITECTURES:
        longest = generated(model_of(architecture), prompt_of(PROMPT_LENGTHS[-1]), do_sample=False)
        assert len(set(longest)) >= 8, architecture
