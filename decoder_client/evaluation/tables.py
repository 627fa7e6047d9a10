"""Results as text: tables that read well on a terminal and in a README.

Knows names of measures and how to lay them out; not how anything is measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from decoder_client.evaluation.measurement import Measurement
from decoder_client.evaluation.results import BENCH, PLAIN, Comparison, Interval, MethodResult, Results

_NOTHING = "-"
_PROMPT_HEADER = ("prompt", "method", "identical", "tok/fwd", "accepted", "coverage", "tok/s", "speed-up", "retr. ms")


def prompt_header() -> str:
    """Column names of `prompt_lines`."""
    return _prompt_row(_PROMPT_HEADER)


def prompt_lines(measured: Sequence[Measurement]) -> list[str]:
    """One line a method for one prompt of a benchmark."""
    plain = next((one.answer.stats for one in measured if one.method.name == PLAIN), None)
    lines = []
    for one in measured:
        stats = one.answer.stats
        cells = (
            one.answer.prompt,
            one.method.label,
            _NOTHING if plain is None or one.method.name == PLAIN else _identical(one),
            f"{stats.tokens_per_forward:.2f}",
            f"{stats.acceptance_rate:.0%}",
            f"{stats.coverage:.0%}",
            f"{stats.tokens_per_second:.1f}",
            f"{plain.total_s / stats.total_s:.2f}x" if plain and stats.total_s else _NOTHING,
            f"{stats.retrieval_ms:.2f}" if stats.retrievals else _NOTHING,
        )
        lines.append(_prompt_row(cells))
    return lines


def _identical(one: Measurement) -> str:
    difference = one.answer.difference
    if difference is None:
        return "yes"
    return f"{'near tie' if difference.is_near_tie else 'NO'} at {difference.position}"


def _prompt_row(cells: Sequence[str]) -> str:
    first, second, *rest = cells
    return f"{first:<16} {second:<24} " + " ".join(f"{cell:>12}" for cell in rest)


def method_table(results: Results) -> str:
    """All methods, over all prompts; a column that nobody has a number for is left out."""
    measured = results.kind == BENCH
    header = ["method", "identical output", "tokens per forward", "acceptance rate"]
    header += ["accepted a step", "drafted a step", "coverage"]
    header += [
        "draft ms a step",
        "retrieval ms",
        "tokens/s",
        _named("speed-up", measured=measured),
        "of single prompts",
    ]
    rows = [_row(one, timed=one.total.total_s > 0) for one in results.methods]
    return _markdown(_without_empty_columns([header, *rows]))


def comparison_table(results: Results, comparisons: Sequence[Comparison]) -> str:
    """How many times better one method is than another; `comparisons` are at least one of those in `results`."""
    rows = [
        [f"{one.label} ÷ {one.other}", _with_interval(one.tokens_per_forward), _with_interval(one.speed)]
        for one in comparisons
    ]
    header = ["compared", "tokens per forward", _named("speed", measured=results.kind == BENCH)]
    return _markdown(_without_empty_columns([header, *rows]))


def _named(name: str, *, measured: bool) -> str:
    return name if measured else f"{name} (predicted)"


def _row(one: MethodResult, *, timed: bool) -> list[str]:
    total, spread = one.total, one.speedups
    identical = f"{one.identical} of {one.compared}" if one.compared else _NOTHING
    if one.near_ties:
        identical += f" ({one.near_ties} near ties)"
    return [
        one.label,
        identical,
        _with_interval(one.tokens_per_forward),
        f"{one.acceptance_rate.value:.0%}",
        f"{one.mean_accepted.value:.2f}",
        f"{one.mean_drafted.value:.1f}",
        f"{one.coverage.value:.0%}",
        f"{1000 * total.draft_s / total.steps:.2f}" if total.steps else _NOTHING,
        f"{total.retrieval_ms:.2f}" if total.retrievals else _NOTHING,
        f"{total.tokens_per_second:.1f}" if timed else _NOTHING,
        _with_interval(one.speedup, "x"),
        _NOTHING if spread is None else f"{spread.first:.2f} · {spread.median:.2f} · {spread.third:.2f}",
    ]


def _without_empty_columns(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    columns = [column for column in zip(*rows, strict=True) if any(cell != _NOTHING for cell in column[1:])]
    return [list(row) for row in zip(*columns, strict=True)]


def _with_interval(measure: Interval | None, unit: str = "") -> str:
    if measure is None:
        return _NOTHING
    return f"{measure.value:.2f}{unit} ({measure.low:.2f} to {measure.high:.2f})"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    header, *rest = rows
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rest]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )
