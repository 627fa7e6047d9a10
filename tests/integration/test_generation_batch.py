"""Prompts that are answered together get the answers that each gets alone, and a drafter is told what happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch

from decoder_client.drafting import AnyDrafter, CostBudget, CostCurve, DraftRequest, MixtureDrafter, any_drafter
from decoder_client.drafting.drafter import Outcome
from decoder_client.generation import SpeculativeDecoder
from decoder_client.loop import DecodeTask, DraftLimits, decode
from decoder_client.sampling import SamplingConfig
from decoder_client.stats import GenerationStats
from decoder_client.target_model import TargetModel
from dresd.draft_tree import DraftTree
from tests.support.drafts import FakeRetriever, FixedDrafter, OracleDrafter, handshake_of, node_paths, some_reducer
from tests.support.models import ARCHITECTURES, SLIDING_WINDOW, tiny_model

VOCAB, HIDDEN, NEW_TOKENS = 48, 32, 40
# One to cross the sliding window while decoding, one beyond it from the start; a text that repeats itself.
PROMPTS = [
    [5],
    np.random.default_rng(1).integers(VOCAB, size=SLIDING_WINDOW - 3).tolist(),
    np.random.default_rng(2).integers(VOCAB, size=3 * SLIDING_WINDOW).tolist(),
    [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1, 5],
]
SAMPLING = {"temperature": 0.9, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.2}


@cache
def target_of(architecture: str) -> TargetModel:
    torch.manual_seed(9)
    return TargetModel(tiny_model(architecture, vocab_size=VOCAB))


@cache
def answers_of(architecture: str) -> tuple[tuple[int, ...], ...]:
    """Each prompt's greedy answer, decoded alone and plainly."""
    decoder = SpeculativeDecoder(target_of(architecture))
    return tuple(decoder.generate(prompt, max_new_tokens=NEW_TOKENS).tokens for prompt in PROMPTS)


def texts_of(architecture: str) -> list[list[int]]:
    return [prompt + list(answer) for prompt, answer in zip(PROMPTS, answers_of(architecture), strict=True)]


def oracle(architecture: str, right: float | list[float]) -> AnyDrafter:
    return any_drafter(OracleDrafter(*texts_of(architecture), vocab_size=VOCAB, right=right))


def retrieving(architecture: str) -> AnyDrafter:
    text = texts_of(architecture)[2]
    retriever = FakeRetriever(handshake_of(some_reducer(HIDDEN)), paths=[text[50:58], text[60:64]])
    return any_drafter(MixtureDrafter(retriever, vocab_size=VOCAB))


DRAFTERS: dict[str, Callable[[str], AnyDrafter | None]] = {
    "none": lambda _: None,
    "empty": lambda _: any_drafter(FixedDrafter()),
    "hostile": lambda architecture: oracle(architecture, 0.0),
    "right": lambda architecture: oracle(architecture, 1.0),
    "each its own": lambda architecture: oracle(architecture, [1.0, 0.0, 0.8, 1.0]),
    "mixture": retrieving,
    "mixture by cost": lambda _: any_drafter(
        MixtureDrafter(vocab_size=VOCAB, budget=CostBudget(CostCurve((1, 65), (1.0, 1.2))))
    ),
}


class Unequal:
    """Drafts for every other sequence only, and a tree of another size each time."""

    def __init__(self, architecture: str) -> None:
        self._oracle = OracleDrafter(*texts_of(architecture), vocab_size=VOCAB, right=0.9)
        self._step = 0

    def start(self, prompt: list[int]) -> tuple[list[int], float]:
        return self._oracle.start(prompt)

    def propose(self, requests: list[DraftRequest]) -> list[DraftTree]:
        self._step += 1
        trees = self._oracle.propose(requests)
        return [tree if (place + self._step) % 2 else DraftTree.empty() for place, tree in enumerate(trees)]

    def observe(self, _session: object, _outcome: Outcome) -> None:
        pass


DRAFTERS["some"] = lambda architecture: any_drafter(Unequal(architecture))


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_batch_is_answered_as_each_prompt_alone(architecture: str, name: str) -> None:
    for nodes in (3, 32):
        decoder = SpeculativeDecoder(
            target_of(architecture), DRAFTERS[name](architecture), limits=DraftLimits(nodes=nodes)
        )
        generations = decoder.generate_batch(PROMPTS, max_new_tokens=NEW_TOKENS)
        assert tuple(one.tokens for one in generations) == answers_of(architecture)
        assert all(one.stats.tokens == NEW_TOKENS for one in generations)
        if name == "right" and nodes == 32:
            assert all(one.stats.tokens_per_forward > 4 for one in generations)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_additive_masks_do_the_same(architecture: str) -> None:
    torch.manual_seed(9)
    model = tiny_model(architecture, vocab_size=VOCAB)
    model.set_attn_implementation("eager")
    decoder = SpeculativeDecoder(TargetModel(model), oracle(architecture, [0.9, 0.0, 1.0, 0.8]))
    generations = decoder.generate_batch(PROMPTS, max_new_tokens=NEW_TOKENS)
    assert tuple(one.tokens for one in generations) == answers_of(architecture)


@pytest.mark.parametrize("name", ["none", "each its own", "mixture"])
def test_the_prompt_number_i_is_sampled_with_the_seed_plus_i(name: str) -> None:
    target = target_of("llama")
    alone = SpeculativeDecoder(target)
    expected = [
        alone.generate(prompt, max_new_tokens=NEW_TOKENS, seed=7 + place, **SAMPLING).tokens
        for place, prompt in enumerate(PROMPTS)
    ]
    together = SpeculativeDecoder(target, DRAFTERS[name]("llama"))
    generations = together.generate_batch(PROMPTS, max_new_tokens=NEW_TOKENS, seed=7, **SAMPLING)
    assert [one.tokens for one in generations] == expected


def run(
    tasks: list[tuple[list[int], int, set[int], Callable[[int], bool] | None]],
    drafter: AnyDrafter,
    architecture: str = "llama",
    nodes: int = 16,
) -> list[tuple[list[int], GenerationStats]]:
    """Decodes (prompt, tokens at most, end tokens, callback) together, greedily."""
    target = target_of(architecture)
    given = [
        DecodeTask(prompt, SamplingConfig().chooser(target.device), len(prompt) + limit, ends, watch)
        for prompt, limit, ends, watch in tasks
    ]
    return decode(target, drafter, given, DraftLimits(nodes=nodes))


@pytest.mark.parametrize("name", ["none", "hostile", "right", "some"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_sequence_has_its_own_end(architecture: str, name: str) -> None:
    """By its limit (no token at all, and the first one, too), by an end token, by its callback."""
    answers = [list(answer) for answer in answers_of(architecture)]
    drafter = DRAFTERS[name](architecture) or any_drafter(FixedDrafter())
    ends = {answers[1][9]}
    seen: list[int] = []

    def enough(token: int) -> bool:
        seen.append(token)
        return len(seen) == 6

    tasks = [
        (PROMPTS[0], 0, set(), None),
        (PROMPTS[0], NEW_TOKENS, set(), None),
        (PROMPTS[1], NEW_TOKENS, ends, None),
        (PROMPTS[2], 1, set(), None),
        (PROMPTS[2], 23, set(), None),
        (PROMPTS[3], NEW_TOKENS, set(), enough),
        (PROMPTS[3], NEW_TOKENS, {answers[3][0]}, None),
        (PROMPTS[1], 7, set(), lambda _token: True),
    ]
    until_end = answers[1][: answers[1].index(answers[1][9]) + 1]
    expected = [[], answers[0], until_end, answers[2][:1], answers[2][:23], answers[3][:6], answers[3][:1]]
    found = run(tasks, drafter, architecture)
    assert [tokens for tokens, _ in found] == [*expected, answers[1][:1]]
    assert seen == answers[3][:6]
    for tokens, stats in found:
        assert stats.tokens == len(tokens)
        assert stats.accepted <= max(0, len(tokens) - 1)
        assert (stats.forwards == 0) == (len(tokens) == 0)


def test_a_batch_whose_sequences_have_all_ended_before_they_began() -> None:
    assert [tokens for tokens, _ in run([(prompt, 0, set(), None) for prompt in PROMPTS], oracle("llama", 1.0))] == [
        []
    ] * len(PROMPTS)
    decoder = SpeculativeDecoder(target_of("llama"))
    assert [one.tokens for one in decoder.generate_batch(PROMPTS, max_new_tokens=0)] == [()] * len(PROMPTS)
    assert decoder.generate_batch([]) == []


def test_one_call_for_drafts_a_step_names_the_sequences_that_go_on() -> None:
    drafter = FixedDrafter([[1, 2], [3]])
    limits = [3, 10, 1, 6]
    run([(prompt, limit, set(), None) for prompt, limit in zip(PROMPTS, limits, strict=True)], any_drafter(drafter))
    for asked in drafter.asked:
        for text, request in asked:
            prompt, limit = PROMPTS[request.session], limits[request.session]
            assert text[: len(prompt)] == prompt
            # As much as can still be used, as the target adds a token of its own.
            assert 1 <= request.max_depth == min(16, len(prompt) + limit - len(text) - 1)
            assert request.max_nodes == 16
    assert {r.session for asked in drafter.asked for _, r in asked} == {0, 1, 3}
    assert [r.session for _, r in drafter.asked[0]] == [0, 1, 3]
    assert [r.session for _, r in drafter.asked[-1]] == [1]


class Told(OracleDrafter):
    """Notes all outcomes, and looks up what was likely at once, as a drafter that learns does."""

    def start(self, prompt: list[int]) -> tuple[list[int], float]:
        self.outcomes = getattr(self, "outcomes", [])
        return super().start(prompt)

    def observe(self, _session: tuple[list[int], float], outcome: Outcome) -> None:
        likely = [outcome.likely(), outcome.likely(rejected=True)]
        self.outcomes.append((list(outcome.text), outcome, outcome.states.clone(), likely))


def plain_pass(target: TargetModel, text: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """States and probabilities of every position, in one pass without a cache."""
    ids = torch.tensor([text])
    states = target.hidden_states(ids, torch.ones_like(ids))[0]
    return states, torch.softmax(target.logits(states).float(), dim=-1)


def check_likely(target: TargetModel, text: list[int], begin: int, likely: object, paths: list[list[int]]) -> None:
    """`likely` must say what follows the text's first `begin` tokens and each path."""
    assert len(likely.contexts) == len(paths)
    for row, path in enumerate(paths):
        whole = [*text[:begin], *path]
        expected = plain_pass(target, whole)[1][-1]
        context, tokens, probabilities = (
            getattr(likely, name)[row] for name in ("contexts", "next_tokens", "probabilities")
        )
        assert context.tolist() == ([-1, *whole])[-2:]
        best = expected.topk(len(tokens))
        assert tokens.tolist() == best.indices.tolist()
        torch.testing.assert_close(torch.from_numpy(probabilities), best.values, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_drafter_is_told_what_each_pass_showed(architecture: str) -> None:
    target = target_of(architecture)
    drafter = Told(*texts_of(architecture), vocab_size=VOCAB, right=0.7, paths=3)
    limits = [25, 16, 9, 1]
    run([(p, n, set(), None) for p, n in zip(PROMPTS, limits, strict=True)], any_drafter(drafter), architecture, 8)
    rejected = 0
    for answer, prompt, limit in zip(answers_of(architecture), PROMPTS, limits, strict=True):
        mine = [one for one in drafter.outcomes if one[0][: len(prompt)] == prompt]
        text = list(prompt)
        for number, (seen, outcome, states, (likely, all_likely)) in enumerate(mine):
            begin = len(text)
            text = prompt + list(answer)[: len(seen) - len(prompt)]
            assert seen == text
            assert outcome.count == len(seen) - begin >= 1
            plain_states, _ = plain_pass(target, text)
            if number == 0:
                assert (outcome.count, len(outcome.tree), list(outcome.nodes)) == (1, 0, [])
                torch.testing.assert_close(states, plain_states[:begin], atol=1e-4, rtol=1e-3)
                check_likely(target, text, begin, likely, [[]])
                continue
            paths = [list(path) for path in node_paths(outcome.tree)]
            accepted = [paths[node] for node in outcome.nodes]
            assert accepted == [seen[begin : begin + depth + 1] for depth in range(len(accepted))]
            assert outcome.count == len(accepted) + 1
            # Row i predicted new token i.
            torch.testing.assert_close(states, plain_states[begin - 1 : len(text) - 1], atol=1e-4, rtol=1e-3)
            check_likely(target, text, begin, likely, [[], *accepted])
            check_likely(target, text, begin, all_likely, [[], *paths])
            rejected += len(paths) - len(accepted)
        assert len(text) == len(prompt) + limit
    assert rejected > 20


def test_an_answer_that_ends_within_a_draft_tells_of_no_token_beyond() -> None:
    answer = list(answers_of("llama")[2])
    end = answer[4]
    drafter = Told(*texts_of("llama"), vocab_size=VOCAB, right=1.0)
    ((tokens, stats),) = run([(PROMPTS[2], NEW_TOKENS, {end}, None)], any_drafter(drafter))
    assert tokens == answer[: answer.index(end) + 1]
    seen, outcome, states, (likely, _) = drafter.outcomes[-1]
    assert seen == PROMPTS[2] + tokens
    assert sum(one[1].count for one in drafter.outcomes) == len(tokens)
    assert min(len(states), len(likely.contexts)) >= outcome.count
    assert stats.accepted + stats.forwards == len(tokens)


def test_a_callback_that_ends_an_answer_within_a_draft() -> None:
    answer = list(answers_of("llama")[2])
    seen: list[int] = []

    def enough(token: int) -> bool:
        seen.append(token)
        return len(seen) == 5

    ((tokens, stats),) = run([(PROMPTS[2], NEW_TOKENS, set(), enough)], oracle("llama", 1.0))
    assert tokens == seen == answer[:5]
    assert stats.accepted <= 4


def test_the_seconds_of_a_batch_add_up_to_the_time_it_took() -> None:
    target = target_of("llama")
    retriever = FakeRetriever(handshake_of(some_reducer(HIDDEN)), paths=[[1, 2], [3]])
    decoder = SpeculativeDecoder(target, any_drafter(MixtureDrafter(retriever, vocab_size=VOCAB)))
    started = time.perf_counter()
    generations = decoder.generate_batch(PROMPTS, max_new_tokens=NEW_TOKENS)
    elapsed = time.perf_counter() - started
    total = sum((one.stats for one in generations), GenerationStats())
    parts = total.draft_s + total.forward_s + total.verify_s
    assert 0 < total.retrieval_s < total.draft_s
    assert parts == pytest.approx(total.total_s)
    assert total.total_s <= elapsed
    assert total.tokens == len(PROMPTS) * NEW_TOKENS
    assert total.retrievals == total.retrievals_answered == sum(len(call.next_tokens) for call in retriever.asked)
    # One call asks for all sequences of a step.
    assert len(retriever.asked) <= max(one.stats.steps for one in generations)
