"""The report's tables: every method's measures, and how many times better one method is than another.

Knows the record; not how tables look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from decoder_client.evaluation.report.numbers import UNKNOWN, counted, percent, span
from decoder_client.evaluation.results import BENCH, PLAIN, Comparison, Interval, MethodResult, Results
from dresd.page.layout import left_out, prose, section, table
from dresd.page.markup import Markup, element, joined, text


def method_section(results: Results) -> Markup:
    """All methods; a column that nobody has a number for is left out, and explained."""
    title = "Methods"
    if not results.methods:
        return left_out(title, "Left out: no method was run.")
    speed = "speed-up" if results.kind == BENCH else "speed-up (predicted)"
    columns: list[tuple[str, Callable[[MethodResult], Markup | None]]] = [
        ("tokens per forward", lambda one: _interval(one.tokens_per_forward)),
        ("acceptance rate", lambda one: text(percent(one.acceptance_rate.value)) if one.total.drafted else None),
        ("coverage", lambda one: text(percent(one.coverage.value))),
        ("nodes a step", lambda one: text(f"{one.mean_drafted.value:.1f}")),
        (speed, lambda one: _interval(one.speedup, "×")),
        ("of single answers", _spread),
        ("tokens/s", lambda one: text(f"{one.total.tokens_per_second:.1f}") if one.total.total_s else None),
        ("retrieval ms", lambda one: text(f"{one.total.retrieval_ms:.2f}") if one.total.retrievals else None),
        ("identical output", _identical),
    ]
    shown = [(name, cell) for name, cell in columns if any(cell(one) is not None for one in results.methods)]
    rows = [
        [_label(one), *(text(UNKNOWN) if (made := cell(one)) is None else made for _, cell in shown)]
        for one in results.methods
    ]
    whole = table(
        "Every method at every node budget, over all prompts",
        ["method", *(name for name, _ in shown)],
        rows,
        groups=[one.method for one in results.methods],
    )
    return section(
        title,
        whole,
        prose(
            "Small figures are 95% intervals by bootstrap over prompts; of single answers: first quartile, median and "
            "third quartile of the speed-up. Acceptance rate: accepted of all drafted nodes; coverage: steps that had "
            "a draft. The number behind @ is how many draft nodes a step may have."
        ),
        *(prose(f"Not in the table: {sentence}") for sentence in _missing(results, {name for name, _ in shown}, speed)),
        wide=True,
    )


def _missing(results: Results, shown: set[str], speed: str) -> list[str]:
    benched = results.kind == BENCH
    reasons = {
        speed: "speed-ups, since plain decoding was not run."
        if benched
        else "speed-ups, since no cost curve was given (--cost-curve).",
        "acceptance rate": "acceptance rates, since nothing was drafted.",
        "retrieval ms": "retrieval times, since no method asked a retriever.",
        "identical output": "whether outputs are identical, since plain decoding was not run."
        if benched
        else "whether outputs are identical: a replay walks known answers and decodes nothing.",
    }
    return [reason for name, reason in reasons.items() if name not in shown]


def _label(one: MethodResult) -> Markup:
    return text(one.label)


def _interval(value: Interval | None, unit: str = "") -> Markup | None:
    if value is None:
        return None
    number = element("b", None, text(f"{value.value:.2f}{unit}"))
    return joined(number, element("small", None, text(span(value))), between=" ")


def _spread(one: MethodResult) -> Markup | None:
    spread = one.speedups
    return None if spread is None else text(f"{spread.first:.2f} · {spread.median:.2f} · {spread.third:.2f}")


def _identical(one: MethodResult) -> Markup | None:
    if not one.compared or one.method == PLAIN:
        return None
    known = f"{one.identical} of {one.compared}"
    if one.near_ties:
        known += f", {counted(one.near_ties, 'near tie')}"
    wrong = one.compared - one.identical - one.near_ties
    return element("strong", {"class": "wrong"}, text(f"{known}, {wrong} different")) if wrong else text(known)


def comparison_section(results: Results) -> Markup:
    """How many times better one method is than those of others."""
    title = "Compared"
    if not results.comparisons:
        return left_out(title, "Left out: there is no method of others that drafts to compare with.")
    about = "On the same prompts, drawn together for the intervals. Above 1 the first method is the better one."
    return section(title, prose(about), _comparison_table(results, results.comparisons))


def ablation_section(results: Results) -> Markup:
    """How many times better one method is than variants of itself."""
    title = "Ablations"
    if not results.ablations:
        return left_out(title, "Left out: no variant of the same method was run.")
    about = "The same method, whole and in part. Above 1 the whole is the better one."
    return section(title, prose(about), _comparison_table(results, results.ablations))


def _comparison_table(results: Results, comparisons: Sequence[Comparison]) -> Markup:
    timed = any(one.speed is not None for one in comparisons)
    header = ["compared", "tokens per forward"]
    if timed:
        header.append("speed" if results.kind == BENCH else "speed (predicted)")
    rows = []
    for one in comparisons:
        cells = [_interval(one.tokens_per_forward, "×"), *([_interval(one.speed, "×")] if timed else [])]
        rows.append([text(f"{one.label} ÷ {one.other}"), *(cell or text(UNKNOWN) for cell in cells)])
    return table(
        "How many times more tokens per forward, and how many times faster",
        header,
        rows,
        groups=[one.label for one in comparisons],
    )
