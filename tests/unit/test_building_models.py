"""What the target computes for a build, in batches: the same as one sequence at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from decoder_client.reducer import ReducerFit
from decoder_client.target_model import TargetModel
from retriever_service.building.document import Document
from retriever_service.building.embed import TABLE_WIDTH, embed
from retriever_service.building.errors import BuildError
from retriever_service.building.progress import Counter, sum_of_counters
from retriever_service.building.transformers_engine import respond
from tests.support.models import ARCHITECTURES, tiny_model

VOCABULARY = 97
EOS = 96


def target(architecture: str, *, max_length: int = 256, eos: int | None = EOS) -> TargetModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = tiny_model(architecture, vocab_size=VOCABULARY, max_length=max_length, eos_token_id=eos)
    return TargetModel(model, None, name=architecture)


def prompts(*lengths: int) -> list[list[int]]:
    random = np.random.default_rng(1)
    return [random.integers(0, EOS, length).tolist() for length in lengths]


def plain_greedy(model: TargetModel, prompt: list[int], steps: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(steps):
        ids = torch.tensor([tokens])
        states = model.hidden_states(ids, torch.ones_like(ids))
        tokens.append(int(model.logits(states[0, -1]).argmax()))
        if tokens[-1] in model.eos_token_ids:
            break
    return tokens[len(prompt) :]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_answers_of_a_batch_are_those_of_each_prompt_alone(architecture: str, tmp_path: Path) -> None:
    model = target(architecture)
    # Longer than the sliding window too, and of very different lengths.
    asked = prompts(40, 3, 17, 1, 25, 8, 30, 12)
    expected = [plain_greedy(model, prompt, 24) for prompt in asked]
    with Counter(tmp_path / "counter") as counter:
        assert respond(model, asked, max_new_tokens=24, counter=counter) == expected
        # Every answer's share is counted whole, also where it ended early.
        assert sum_of_counters(tmp_path, "*") == 24 * len(asked)
    assert sum_of_counters(tmp_path, "*") == 0


def test_answers_end_early_and_rows_leave_the_batch() -> None:
    # Half of all tokens end an answer, so rows leave at many different steps.
    model = target("llama")
    model.model.generation_config.eos_token_id = list(range(0, VOCABULARY, 8))
    asked = prompts(*range(1, 33))
    expected = [plain_greedy(model, prompt, 24) for prompt in asked]
    assert len({len(answer) for answer in expected}) > 5
    assert respond(model, asked, max_new_tokens=24) == expected


def test_an_answer_ends_with_the_models_window() -> None:
    model = target("gpt2", max_length=32, eos=None)
    answers = respond(model, prompts(31, 28, 4), max_new_tokens=10)
    assert [len(answer) for answer in answers] == [1, 4, 10]


def test_sampling_follows_the_temperature_and_its_seed() -> None:
    model = target("llama", eos=None)
    asked = prompts(*[5] * 16)

    def sampled(temperature: float, seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        return respond(model, asked, max_new_tokens=12, temperature=temperature, generator=generator)

    assert sampled(1.0, 0) == sampled(1.0, 0)
    assert sampled(1.0, 0) != sampled(1.0, 1)
    assert sampled(1e-4, 0) == respond(model, asked, max_new_tokens=12)


def documents(*lengths: int) -> list[Document]:
    return [
        Document.of(tokens[: length // 3], tokens[length // 3 :])
        for length, tokens in zip(lengths, prompts(*lengths), strict=True)
    ]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_embedding_a_batch_is_embedding_each_document_alone(architecture: str, tmp_path: Path) -> None:
    model = target(architecture)
    read = documents(40, 3, 17, 2, 25)
    with Counter(tmp_path / "counter") as counter:
        embedded = embed(model, read, None, counter=counter)
        assert sum_of_counters(tmp_path, "*") == sum(len(document.tokens) for document in read)
    states, probabilities = [], []
    for document in read:
        ids = torch.from_numpy(document.tokens.astype(np.int64))[None]
        all_states = model.hidden_states(ids, torch.ones_like(ids))[0]
        states.append(all_states[torch.from_numpy(np.flatnonzero(document.stored) - 1)])
        probabilities.append(model.logits(states[-1]).softmax(-1))
    expected = torch.cat(probabilities)
    np.testing.assert_allclose(embedded.vectors, torch.cat(states).numpy(), atol=1e-4)
    best = expected.topk(TABLE_WIDTH)
    np.testing.assert_allclose(embedded.top_probabilities, best.values.numpy(), atol=1e-5)
    # Tokens with nearly equal probabilities may change places.
    np.testing.assert_allclose(
        np.take_along_axis(expected.numpy(), embedded.top_tokens.astype(np.int64), 1), best.values.numpy(), atol=1e-5
    )
    # What the token table is made of: each position's two last tokens.
    expected_current = [document.tokens[np.flatnonzero(document.stored) - 1] for document in read]
    assert embedded.current.tolist() == np.concatenate(expected_current).tolist()
    assert (embedded.previous == -1).sum() == sum(bool(document.stored[1]) for document in read)


def test_likely_next_tokens_are_kept_where_they_are_wanted() -> None:
    model = target("llama")
    read = documents(40, 17, 25)
    everything = embed(model, read, None)
    chosen = np.arange(len(everything.vectors)) % 3 == 1
    some = embed(model, read, None, chosen)
    assert some.vectors.tolist() == everything.vectors.tolist()
    for name in ("previous", "current", "top_tokens"):
        assert getattr(some, name).tolist() == getattr(everything, name)[chosen].tolist()
    none = embed(model, read, None, np.zeros(len(chosen), np.bool_))
    assert none.top_tokens.shape == (0, TABLE_WIDTH)


def test_keys_are_the_reduced_states() -> None:
    model = target("llama")
    read = documents(40, 30, 17)
    states = embed(model, read, None).vectors
    fit = ReducerFit(model.hidden_size)
    fit.update(states)
    reducer = fit.finish(8)
    keys = embed(model, read, reducer).vectors
    assert keys.dtype == np.float16
    np.testing.assert_allclose(keys.astype(np.float32), reducer.reduce(states), atol=2e-3)


def test_a_model_that_computes_nan_is_refused() -> None:
    model = target("llama")
    with torch.no_grad():
        model.model.model.norm.weight[3] = float("nan")
    with pytest.raises(BuildError, match="'llama' computes NaN"):
        embed(model, documents(10), None)
