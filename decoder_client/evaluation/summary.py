"""Sums answers up: measures with intervals for each method, and how methods compare.

Knows counts and seconds; not where they come from.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from decoder_client.evaluation.intervals import ratio_of_ratios, ratio_of_sums
from decoder_client.evaluation.results import PLAIN, Answer, Comparison, Interval, MethodResult, Quartiles
from decoder_client.stats import GenerationStats

OURS = "dresd"
"""The method that others are compared with."""


def summarise(label: str, method: str, nodes: int, answers: Sequence[Answer], plain: Sequence[Answer]) -> MethodResult:
    """One method over all answers.

    Args:
        label: see `MethodResult`, as for the next two.
        method: name.
        nodes: budget.
        answers: at least one.
        plain: those of plain decoding to the same prompts and repeats in the same order; may be empty.
    """
    stats = _by_prompt(answers)

    def measure(above: Callable[[GenerationStats], float], below: Callable[[GenerationStats], float]) -> Interval:
        return ratio_of_sums([above(one) for one in stats], [below(one) for one in stats])

    known = answers[0].tokens is None  # in a replay there is nothing to compare
    compared = 0 if known or not plain else len(answers)
    timed = bool(plain) and all(answer.stats.total_s > 0 for answer in (*plain, *answers))
    seconds = [one.total_s for one in stats]
    return MethodResult(
        label=label,
        method=method,
        nodes=nodes,
        tokens_per_forward=measure(lambda one: one.tokens, lambda one: one.forwards),
        acceptance_rate=measure(lambda one: one.accepted, lambda one: one.drafted),
        mean_accepted=measure(lambda one: one.accepted, lambda one: one.steps),
        mean_drafted=measure(lambda one: one.drafted, lambda one: one.steps),
        coverage=measure(lambda one: one.steps_with_draft, lambda one: one.steps),
        speedup=ratio_of_sums([one.total_s for one in _by_prompt(plain)], seconds) if timed else None,
        speedups=_quartiles([p.stats.total_s / a.stats.total_s for p, a in zip(plain, answers, strict=True)])
        if timed
        else None,
        compared=compared,
        identical=sum(answer.difference is None for answer in answers) if compared else 0,
        answers=tuple(answers),
    )


def compare(methods: Sequence[MethodResult], others: Callable[[str], bool]) -> tuple[Comparison, ...]:
    """Ours (or the last method, without ours) at each budget with other methods.

    A method is compared at its greatest budget that is not above ours, or at the budget of its own.

    Args:
        methods: all that were measured.
        others: whether a method of this name is one to compare with.
    """
    drafting = [one for one in methods if one.method != PLAIN]
    if not drafting:
        return ()
    ours = OURS if any(one.method == OURS for one in drafting) else drafting[-1].method
    comparisons = []
    for mine in (one for one in drafting if one.method == ours):
        for name in dict.fromkeys(one.method for one in drafting if one.method != ours and others(one.method)):
            fitting = [one for one in drafting if one.method == name and one.nodes <= mine.nodes]
            if fitting:
                comparisons.append(_compared(mine, max(fitting, key=lambda one: one.nodes)))
    return tuple(comparisons)


def _compared(mine: MethodResult, other: MethodResult) -> Comparison:
    ours, theirs = _by_prompt(mine.answers), _by_prompt(other.answers)
    timed = all(one.total_s > 0 for one in (*ours, *theirs))
    counts = ([getattr(one, name) for one in side] for side in (ours, theirs) for name in ("tokens", "forwards"))
    return Comparison(
        mine.label,
        other.label,
        ratio_of_ratios(*counts),
        ratio_of_sums([one.total_s for one in theirs], [one.total_s for one in ours]) if timed else None,
    )


def _by_prompt(answers: Sequence[Answer]) -> list[GenerationStats]:
    """Repeats of a prompt are no prompts of their own: they would make intervals look narrower than they are."""
    sums: dict[str, GenerationStats] = {}
    for answer in answers:
        sums[answer.prompt] = sums.get(answer.prompt, GenerationStats()) + answer.stats
    return list(sums.values())


def _quartiles(values: Sequence[float]) -> Quartiles:
    if len(values) == 1:
        return Quartiles(values[0], values[0], values[0])
    return Quartiles(*statistics.quantiles(values, n=4, method="inclusive"))
