"""Makes the record of results out of measurements. Knows every part of the record; measures nothing itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from decoder_client.evaluation.environment import environment
from decoder_client.evaluation.measurement import Measurement
from decoder_client.evaluation.methods import Method, is_ours
from decoder_client.evaluation.results import (
    PLAIN,
    CostPoint,
    MethodResult,
    Results,
    Sample,
    Setting,
    StoreInfo,
)
from decoder_client.evaluation.sample import sample_of
from decoder_client.evaluation.summary import OURS, compare, summarise
from decoder_client.target_model import TargetModel


def assemble(
    kind: str,
    target: TargetModel,
    measurements: Sequence[Measurement],
    answers: Mapping[str, Sequence[int]],
    *,
    store: StoreInfo | None,
    settings: Mapping[str, Setting],
    cost_curve: Sequence[CostPoint],
    notes: Sequence[str],
) -> Results:
    """All that an evaluation found.

    Args:
        kind: see `Results`, as for `store`, `settings`, `cost_curve` and `notes`.
        target: the model that was evaluated.
        measurements: at least one; every method has the same prompts and repeats in the same order.
        answers: the known answers, by prompt, where measurements have no tokens.
        store: see `kind`.
        settings: see `kind`.
        cost_curve: see `kind`.
        notes: see `kind`.
    """
    by_method: dict[Method, list[Measurement]] = {}
    for one in measurements:
        by_method.setdefault(one.method, []).append(one)
    plain = [one.answer for method, found in by_method.items() if method.name == PLAIN for one in found]
    methods = tuple(
        summarise(method.label, method.name, method.nodes, [one.answer for one in found], plain)
        for method, found in by_method.items()
    )
    identity = target.identity()
    return Results(
        kind=kind,
        model=Path(identity.name).name or Path(identity.name).resolve().name,
        weights_fingerprint=identity.weights_fingerprint,
        prompts=tuple(dict.fromkeys(one.answer.prompt for one in measurements)),
        store=store,
        settings=settings,
        environment=environment(),
        methods=methods,
        comparisons=compare(methods, lambda name: not is_ours(name)),
        ablations=compare(methods, is_ours),
        samples=_samples(methods, measurements, answers, target),
        cost_curve=tuple(cost_curve),
        notes=tuple(dict.fromkeys(notes)),
    )


def _samples(
    methods: Sequence[MethodResult],
    measurements: Sequence[Measurement],
    answers: Mapping[str, Sequence[int]],
    target: TargetModel,
) -> tuple[Sample, ...]:
    """The most ordinary answer of ours, or of the last method without ours: a picture must not flatter."""
    drafting = [one for one in methods if one.method != PLAIN]
    if not drafting:
        return ()
    ours = [one for one in drafting if one.method == OURS] or drafting[-1:]
    shown = max(ours, key=lambda one: one.nodes)
    mean = shown.tokens_per_forward.value
    chosen = min(
        (one for one in measurements if one.method.label == shown.label),
        key=lambda one: abs(one.answer.stats.tokens_per_forward - mean),
    )
    tokens = chosen.answer.tokens if chosen.answer.tokens is not None else answers[chosen.answer.prompt]
    return (sample_of(chosen.answer.prompt, shown.label, tokens, chosen.recording, target),)
