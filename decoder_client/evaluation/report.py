"""Turns measurements into the tables people read and the record programs read.

Knows names of measures and how to lay them out; nothing of decoding.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from importlib import metadata

from decoder_client.evaluation.bench import PLAIN, Measurement
from decoder_client.stats import GenerationStats

_VERSIONS = ("dresd", "torch", "transformers", "numpy", "grpcio")


@dataclass(frozen=True, slots=True)
class MethodSummary:
    """One method over all prompts and repeats.

    Attributes:
        method: label.
        prompts: answers measured.
        identical: answers equal to plain decoding's; None if plain decoding was not measured.
        near_ties: answers that differ where the two best logits lie within float32 rounding.
        stats: sums.
        speedup: plain decoding's total seconds / this method's; None if plain decoding was not measured.
        speedup_quartiles: of the speed-ups of single answers: first quartile, median, third quartile.
    """

    method: str
    prompts: int
    identical: int | None
    near_ties: int
    stats: GenerationStats
    speedup: float | None
    speedup_quartiles: tuple[float, float, float] | None


def summarise(measurements: Sequence[Measurement]) -> list[MethodSummary]:
    """One summary a method, in the order methods first appear."""
    by_method: dict[str, list[Measurement]] = {}
    for one in measurements:
        by_method.setdefault(one.method, []).append(one)
    plain = by_method.get(PLAIN)
    summaries = []
    for method, answers in by_method.items():
        stats = reduce(GenerationStats.__add__, (answer.stats for answer in answers))
        speedup, quartiles = None, None
        if plain is not None:
            plain_s = sum(answer.stats.total_s for answer in plain)
            ratios = [p.stats.total_s / a.stats.total_s for p, a in zip(plain, answers, strict=True)]
            speedup, quartiles = plain_s / stats.total_s, _quartiles(ratios)
        differences = [answer.difference for answer in answers if answer.difference is not None]
        summaries.append(
            MethodSummary(
                method=method,
                prompts=len(answers),
                identical=None if plain is None else len(answers) - len(differences),
                near_ties=sum(difference.is_near_tie for difference in differences),
                stats=stats,
                speedup=speedup,
                speedup_quartiles=quartiles,
            )
        )
    return summaries


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return (values[0],) * 3
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, median, third


_PROMPT_HEADER = ("prompt", "method", "identical", "tok/fwd", "accepted", "coverage", "tok/s", "speed-up", "retr. ms")


def prompt_header() -> str:
    """Column names of `prompt_lines`."""
    return _row(_PROMPT_HEADER)


def prompt_lines(measured: Sequence[Measurement]) -> list[str]:
    """One line a method for one prompt."""
    plain = next((one.stats for one in measured if one.method == PLAIN), None)
    lines = []
    for one in measured:
        speedup = f"{plain.total_s / one.stats.total_s:.2f}x" if plain else "-"
        identical = "-" if plain is None or one.method == PLAIN else _identical(one)
        lines.append(_row((one.prompt, one.method, identical, *_measures(one.stats), speedup, _retrieval(one.stats))))
    return lines


def _identical(one: Measurement) -> str:
    if one.difference is None:
        return "yes"
    verdict = "near tie" if one.difference.is_near_tie else "NO"
    return f"{verdict} at {one.difference.position}"


def _measures(stats: GenerationStats) -> tuple[str, str, str, str]:
    return (
        f"{stats.tokens_per_forward:.2f}",
        f"{stats.acceptance_rate:.0%}",
        f"{stats.coverage:.0%}",
        f"{stats.tokens_per_second:.1f}",
    )


def _retrieval(stats: GenerationStats) -> str:
    return f"{stats.retrieval_ms:.2f}" if stats.retrievals else "-"


def _row(cells: Sequence[str]) -> str:
    first, second, *rest = cells
    return f"{first:<16} {second:<18} " + " ".join(f"{cell:>12}" for cell in rest)


def markdown_table(summaries: Sequence[MethodSummary]) -> str:
    """The totals, as a table that reads well on a terminal and in a README."""
    header = (
        "method", "identical output", "tokens per forward", "acceptance rate", "coverage", "tokens/s",
        "speed-up (quartiles)", "retrieval ms",
    )  # fmt: skip
    rows = [header, ("---",) * len(header)]
    for summary in summaries:
        identical = "-" if summary.identical is None else f"{summary.identical} of {summary.prompts}"
        if summary.near_ties:
            identical += f" ({summary.near_ties} near ties)"
        speedup = "-"
        if summary.speedup is not None and summary.speedup_quartiles is not None:
            low, median, high = summary.speedup_quartiles
            speedup = f"{summary.speedup:.2f}x ({low:.2f} · {median:.2f} · {high:.2f})"
        rows.append((summary.method, identical, *_measures(summary.stats), speedup, _retrieval(summary.stats)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    )


def environment(threads: int) -> dict[str, object]:
    """What the measurements were made on and with."""
    return {
        "argv": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "torch_threads": threads,
        "versions": {name: metadata.version(name) for name in _VERSIONS},
    }


def json_record(
    measurements: Sequence[Measurement], settings: Mapping[str, object], setting_environment: Mapping[str, object]
) -> dict[str, object]:
    """Everything measured, with its settings and environment."""
    return {
        "environment": dict(setting_environment),
        "settings": dict(settings),
        "summaries": [{**asdict(summary), "stats": summary.stats.to_dict()} for summary in summarise(measurements)],
        "measurements": [{**asdict(one), "stats": one.stats.to_dict()} for one in measurements],
    }
