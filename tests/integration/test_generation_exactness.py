"""Decoding with drafts gives the tokens of plain decoding, for every architecture, whatever is drafted.

Plain decoding is transformers' own `generate`: an implementation that shares no code with ours.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from decoder_client.drafting import (
    AnyDrafter,
    CostBudget,
    CostCurve,
    MixtureConfig,
    MixtureDrafter,
    NodeBudget,
    any_drafter,
)
from decoder_client.generation import SpeculativeDecoder
from decoder_client.loop import DraftLimits
from decoder_client.target_model import TargetModel
from dresd.draft_tree import DraftTree
from tests.support.drafts import FakeRetriever, OracleDrafter, handshake_of, some_reducer, some_table, two_sources
from tests.support.models import ARCHITECTURES, SLIDING_WINDOW, tiny_model

VOCAB, HIDDEN, NEW_TOKENS = 48, 32, 40
PROMPT_LENGTHS = (1, 7, 2 * SLIDING_WINDOW + 3)
SAMPLING = {"temperature": 0.9, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.2}
FLAT = CostCurve((1, 65), (1.0, 1.01))


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


class HostileRetriever(FakeRetriever):
    """Answers with random trees: tokens that the target lacks, right ones at times, masses of any size.

    Every few calls it is down, or another build takes over, with another reducer, left context and token table.
    """

    def __init__(self, text: list[int], seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._text = text
        super().__init__(None)
        self._rebuild()

    def retrieve(self, *arguments: object, **settings: object) -> list[SimpleNamespace] | None:
        self.down = self._random.random() < 0.2
        answer = super().retrieve(*arguments, **settings)
        if self._random.random() < 0.2:
            self._rebuild()
        return answer

    def answer(self, next_token: int) -> DraftTree:
        after = [at + 1 for at, token in enumerate(self._text) if token == next_token]
        paths = [self._text[at : at + 6] or [0] for at in after]
        paths += self._random.integers(VOCAB + 20, size=(20, 5)).tolist()
        scales = 10.0 ** self._random.integers(-30, 30, size=len(paths))
        return two_sources(paths, list(zip(scales.tolist(), self._random.permutation(scales).tolist(), strict=True)))

    def _rebuild(self) -> None:
        seed, dims = int(self._random.integers(100)), int(self._random.integers(2, 6))
        certain = dict.fromkeys(range(40, 48), 1.0)  # eight tokens of which each is certain
        table = some_table({(a, b): certain for a in range(8) for b in range(8)}, dict.fromkeys(range(VOCAB), certain))
        context = int(self._random.integers(0, 30))
        reducer = some_reducer(HIDDEN, dims=dims, seed=seed)
        self.handshake = handshake_of(reducer, token_table=table, left_context_length=context)


def mixture(
    text: list[int], *, retriever: bool = True, budget: NodeBudget | None = None, **config: object
) -> AnyDrafter:
    source = HostileRetriever(text) if retriever else None
    settings = MixtureConfig(**config)
    return any_drafter(MixtureDrafter(source, vocab_size=VOCAB, config=settings, budget=budget))


MIXTURES = {
    "all": lambda text: mixture(text),
    "by cost": lambda text: mixture(text, budget=CostBudget(FLAT)),
    "text alone": lambda text: mixture(text, retriever=False),
    "retriever alone": lambda text: mixture(text, places=0, tables=False),
    "path": lambda text: mixture(text, path=True),
}


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
    text = prompt + expected
    for right in (0.0, 0.7, 0.95, 1.0):
        for nodes in (1, 6, 32):
            oracle = OracleDrafter(text, vocab_size=VOCAB, right=right, seed=nodes)
            decoder = SpeculativeDecoder(target, any_drafter(oracle), limits=DraftLimits(nodes=nodes))
            generation = decoder.generate(prompt, max_new_tokens=NEW_TOKENS)
            assert list(generation.tokens) == expected, (right, nodes)
            if right == 1.0 and nodes == 32:
                assert generation.stats.tokens_per_forward > 4


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_mixture_of_sources_changes_the_output(architecture: str, name: str) -> None:
    model = model_of(architecture)
    model.set_attn_implementation("sdpa")
    target = TargetModel(model)
    drafted = accepted = 0
    for length in PROMPT_LENGTHS:
        prompt = prompt_of(length)
        expected = generated(model, prompt, do_sample=False)
        text = prompt + expected
        for nodes in (1, 7, 64):
            decoder = SpeculativeDecoder(target, MIXTURES[name](text), limits=DraftLimits(nodes=nodes))
            for _ in range(2):  # once more with what the drafter has learned
                generation = decoder.generate(prompt, max_new_tokens=NEW_TOKENS)
                assert list(generation.tokens) == expected, (length, nodes)
                drafted += generation.stats.drafted
                accepted += generation.stats.accepted
    assert drafted > 100
    assert accepted > 10


@pytest.mark.parametrize("length", PROMPT_LENGTHS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_seed_gives_the_samples_of_plain_decoding(architecture: str, length: int) -> None:
    model = model_of(architecture)
    model.set_attn_implementation("sdpa")
    prompt = prompt_of(length)
    torch.manual_seed(11)
    expected = generated(model, prompt, do_sample=True, **SAMPLING)
    target = TargetModel(model)
    text = prompt + expected
    drafters = [
        None,
        mixture(text),
        *(any_drafter(OracleDrafter(text, vocab_size=VOCAB, right=right)) for right in (0.0, 0.9)),
    ]
    for place, drafter in enumerate(drafters):
        generation = SpeculativeDecoder(target, drafter).generate(
            prompt, max_new_tokens=NEW_TOKENS, seed=11, **SAMPLING
        )
        assert list(generation.tokens) == expected, place


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_repetition_penalty_holds_for_greedy_decoding(architecture: str) -> None:
    model = model_of(architecture)
    prompt = prompt_of(7)
    expected = generated(model, prompt, do_sample=False, repetition_penalty=1.3)
    drafter = OracleDrafter(prompt + expected, vocab_size=VOCAB, right=0.9)
    decoder = SpeculativeDecoder(TargetModel(model), any_drafter(drafter))
    generation = decoder.generate(prompt, max_new_tokens=NEW_TOKENS, repetition_penalty=1.3)
    assert list(generation.tokens) == expected


def test_the_reference_texts_are_varied() -> None:
    """Equality with a text that repeats one token would show nothing."""
    for architecture in ARCHITECTURES:
        longest = generated(model_of(architecture), prompt_of(PROMPT_LENGTHS[-1]), do_sample=False)
        assert len(set(longest)) >= 8, architecture
