"""Decodes every prompt with every method in turn and compares the outputs.

Methods take turns within a prompt, in shuffled order, so that a noisy machine disturbs all of them alike. Each repeat
starts with drafters that remember nothing. Knows how to measure and compare; what a method is and how it decodes is
handed in.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from decoder_client.evaluation.measurement import Measurement
from decoder_client.evaluation.methods import Method
from decoder_client.evaluation.prompts import BenchPrompt
from decoder_client.evaluation.recording import Recording
from decoder_client.evaluation.results import PLAIN, Answer, Difference
from decoder_client.stats import GenerationStats


@dataclass(frozen=True, slots=True)
class Decoded:
    """One answer: its tokens, what it cost, and what was seen of its drafts."""

    tokens: tuple[int, ...]
    stats: GenerationStats
    recording: Recording


Decode = Callable[[tuple[int, ...]], Decoded]
"""Decodes a prompt greedily."""

NewDecode = Callable[[Method], Decode]
"""Makes a decoder of a method that remembers no earlier answer."""

LogitGap = Callable[[Sequence[int]], float]
"""(text so far) -> the gap between the target's two best logits after it."""


def run_bench(
    prompts: Sequence[BenchPrompt],
    methods: Sequence[Method],
    new_decode: NewDecode,
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
        new_decode: see `NewDecode`. Called for every method and repeat, and once a method for a warm-up, which answers
            the first prompt and is not counted; a drafter that learns from answers does not meet one twice.
        logit_gap: see `LogitGap`.
        repeats: of the whole set.
        seed: of the order of methods.
        on_prompt: called with the measurements of each prompt when they are complete, one a method, in their order.
    """
    order = random.Random(seed)  # noqa: S311 - an order of measurement, nothing secret
    for method in methods:
        new_decode(method)(prompts[0].tokens)
    measurements: list[Measurement] = []
    for repeat in range(repeats):
        decoders = {method: new_decode(method) for method in methods}
        for prompt in prompts:
            decoded = {method: decoders[method](prompt.tokens) for method in order.sample(methods, len(methods))}
            plain = next((one.tokens for method, one in decoded.items() if method.name == PLAIN), None)
            measured = []
            for method in methods:
                one = decoded[method]
                difference = None if plain is None else find_difference(prompt.tokens, plain, one.tokens, logit_gap)
                answer = Answer(
                    prompt.name,
                    repeat,
                    one.stats,
                    one.recording.offered_by_depth,
                    one.recording.accepted_by_depth,
                    one.tokens,
                    difference,
                    one.recording.promises,
                )
                measured.append(Measurement(method, answer, one.recording))
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
