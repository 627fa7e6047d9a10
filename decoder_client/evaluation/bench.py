"""Decodes every prompt with every method in turn and compares the outputs.

Methods take turns within a prompt, in shuffled order, so that a noisy machine disturbs all of them alike. Knows how to
measure and compare; what a method is and how it decodes is handed in.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from decoder_client.evaluation.prompts import BenchPrompt
from decoder_client.stats import GenerationStats

PLAIN = "plain"
"""The method that drafts nothing; all others are compared with it."""

NEAR_TIE = 1e-4
"""Two logits this close may change places between passes of different shapes, by float32 rounding alone."""


@dataclass(frozen=True, slots=True)
class Method:
    """A drafter by name and its node budget."""

    name: str
    nodes: int

    @property
    def label(self) -> str:
        """For tables."""
        return self.name if self.name == PLAIN else f"{self.name}@{self.nodes}"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an output leaves plain decoding's.

    Attributes:
        position: in the answer.
        gap: between the target's two best logits there; at most `NEAR_TIE` for a mere rounding difference.
    """

    position: int
    gap: float

    @property
    def is_near_tie(self) -> bool:
        """Whether float32 rounding explains it."""
        return self.gap <= NEAR_TIE


@dataclass(frozen=True, slots=True)
class Measurement:
    """One answer by one method.

    Attributes:
        prompt: name.
        method: label.
        repeat: from 0.
        tokens: of the answer.
        stats: of the answer.
        difference: from plain decoding; None if identical, or if plain decoding was not asked for.
    """

    prompt: str
    method: str
    repeat: int
    tokens: tuple[int, ...]
    stats: GenerationStats
    difference: Difference | None


Decode = Callable[[Method, tuple[int, ...]], tuple[tuple[int, ...], GenerationStats]]
"""Decodes a prompt greedily: (method, prompt) -> (answer, its stats)."""

LogitGap = Callable[[Sequence[int]], float]
"""(text so far) -> the gap between the target's two best logits after it."""


def run_bench(
    prompts: Sequence[BenchPrompt],
    methods: Sequence[Method],
    decode: Decode,
    logit_gap: LogitGap,
    *,
    repeats: int,
    seed: int,
    on_prompt: Callable[[list[Measurement]], None],
) -> list[Measurement]:
    """Measures all methods on all prompts.

    Args:
        prompts: at least one.
        methods: at least one; outputs are compared with `PLAIN`'s if it is among them.
        decode: see `Decode`. Called once a method on the first prompt before anything is measured, as a warm-up.
        logit_gap: see `LogitGap`.
        repeats: of the whole set.
        seed: of the order of methods.
        on_prompt: called with the measurements of each prompt when they are complete, one a method, in their order.
    """
    order = random.Random(seed)  # noqa: S311 - an order of measurement, nothing secret
    for method in methods:
        decode(method, prompts[0].tokens)
    measurements: list[Measurement] = []
    for repeat in range(repeats):
        for prompt in prompts:
            answers = {method: decode(method, prompt.tokens) for method in order.sample(methods, len(methods))}
            plain = next((tokens for method, (tokens, _) in answers.items() if method.name == PLAIN), None)
            measured = []
            for method in methods:
                tokens, stats = answers[method]
                difference = None if plain is None else find_difference(prompt.tokens, plain, tokens, logit_gap)
                measured.append(Measurement(prompt.name, method.label, repeat, tokens, stats, difference))
            measurements += measured
            on_prompt(measured)
    return measurements


def find_difference(
    prompt: Sequence[int], plain: Sequence[int], other: Sequence[int], logit_gap: LogitGap
) -> Difference | None:
    """Where `other` leaves `plain`, and how close the target's choice was there; None if they are equal."""
    if tuple(plain) == tuple(other):
        return None
    shared = min(len(plain), len(other))
    position = next((i for i in range(shared) if plain[i] != other[i]), shared)
    return Difference(position, logit_gap([*prompt, *plain[:position]]))
