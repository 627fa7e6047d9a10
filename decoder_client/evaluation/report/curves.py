"""The report's line charts: tokens per forward, acceptance by depth, speed-up, and what a forward pass costs.

Knows the record and which of its numbers go where; not how lines are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from decoder_client.evaluation.report.numbers import UNKNOWN, counted, milliseconds, percent, with_span
from decoder_client.evaluation.results import BENCH, PLAIN, Interval, MethodResult, Results
from decoder_client.evaluation.summary import OURS
from dresd.page.axes import Axis, counting_axis, doubling_axis, even_axis
from dresd.page.layout import details, left_out, prose, section, table
from dresd.page.line_chart import LineChart, Point, Series, chart_legend, draw
from dresd.page.markup import Markup, text

LEAST_STEPS = 10
"""A depth that fewer steps reached is no point of a line: it would be noise."""

LEAST_NODES = 50
"""A tenth of the probabilities that fewer nodes were given is no point of a line, either."""

_OWN = "own budget"


def curves(results: Results) -> list[Markup]:
    """All of them, or why there is none."""
    return [_tokens(results), _depths(results), _promises(results), _speedups(results), _costs(results)]


def _styles(results: Results) -> dict[str, int]:
    """A line style for every method that drafts, the same in every chart; ours has the first."""
    names = dict.fromkeys(one.method for one in results.methods if one.method != PLAIN)
    ordered = sorted(names, key=lambda name: name != OURS)
    return {name: number for number, name in enumerate(ordered)}


def _tokens(results: Results) -> Markup:
    title = "Tokens per forward against nodes"
    series = _by_nodes(results, lambda one: one.tokens_per_forward, "")
    if not series:
        return left_out(title, "Left out: no method that drafts was run.")
    chart = _nodes_chart(
        series, "tokens per forward", "Tokens per forward of each method by draft nodes a step", "{:g}"
    )
    return section(
        title,
        prose(
            "How many tokens a forward pass yields, by the draft nodes allowed a step. Whiskers are 95% intervals; "
            "points stand a little aside of their place so that none hides another."
        ),
        draw(chart),
        chart_legend(chart),
    )


def _speedups(results: Results) -> Markup:
    title = "Speed-up against nodes"
    series = _by_nodes(results, lambda one: one.speedup, "×")
    if not series:
        why = (
            "no method that drafts was run beside plain decoding, which speed-ups compare with."
            if results.kind == BENCH
            else "a replay predicts speed-ups only from the cost of forward passes on a device (--cost-curve)."
        )
        return left_out(title, f"Left out: {why}")
    measured = "wall clock" if results.kind == BENCH else "predicted from the cost curve"
    chart = _nodes_chart(series, f"times plain decoding ({measured})", "Speed-up of each method by nodes", "{:g}×")
    return section(
        title,
        prose("More nodes give more tokens a pass, and dearer passes: beyond some number they no longer pay."),
        draw(chart),
        chart_legend(chart),
    )


def _by_nodes(results: Results, measure: Callable[[MethodResult], Interval | None], unit: str) -> list[Series]:
    points: dict[str, list[Point]] = {}
    for one in results.methods:
        value = measure(one)
        if value is None or one.method == PLAIN:
            continue
        hint = f"{one.label}: {with_span(value, unit)}, {one.mean_drafted.value:.1f} nodes drafted a step"
        point = Point(one.nodes or None, value.value, hint, value.low, value.high)
        points.setdefault(one.method, []).append(point)
    return _series_of(results, points, {name: name for name in points})


def _series_of(results: Results, points: Mapping[str, Sequence[Point]], names: Mapping[str, str]) -> list[Series]:
    return [
        Series(names[name], style, tuple(points[name]), strong=name == OURS)
        for name, style in _styles(results).items()
        if name in points
    ]


def _nodes_chart(series: Sequence[Series], y_name: str, description: str, y_format: str) -> LineChart:
    points = [point for one in series for point in one.points]
    budgets = [point.x for point in points if point.x is not None]
    return LineChart(
        description,
        x_name="draft nodes allowed a step",
        y_name=y_name,
        x_axis=doubling_axis(budgets) if budgets else None,
        y_axis=_enclosing(points, 1.0),
        series=series,
        slot=_OWN if len(budgets) < len(points) else None,
        reference=(1.0, "plain decoding"),
        y_text=y_format.format,
    )


def _enclosing(points: Sequence[Point], *levels: float) -> Axis:
    values = [value for point in points for value in (point.y, *((point.low, point.high) if point.high else ()))]
    return even_axis([*values, *levels])


def _depths(results: Results) -> Markup:
    title = "Acceptance by depth"
    drafting = [one for one in results.methods if any(one.offered_by_depth)]
    # Of a method with several budgets the greatest: its drafts are the deepest.
    shown: dict[str, MethodResult] = {}
    for one in sorted(drafting, key=lambda one: one.nodes):
        shown[one.method] = one
    points = {name: found for name, one in shown.items() if (found := _depth_points(one))}
    numbers = _depth_table(drafting)
    if not points:
        why = "no step had a draft." if not drafting else f"no depth was reached by {LEAST_STEPS} steps of a method."
        return left_out(title, f"Left out: {why}")
    series = _series_of(results, points, {name: shown[name].label for name in points})
    chart = LineChart(
        "Share of drafts of at least a depth that were accepted to that depth, for each method",
        x_name="depth in the draft",
        y_name="accepted to this depth",
        x_axis=counting_axis(int(max(point.x or 1 for found in points.values() for point in found))),
        y_axis=even_axis([0.0, 1.0]),
        series=series,
        y_text=percent,
    )
    return section(
        title,
        prose(
            "Of the steps whose draft was at least this deep, those in which at least as many nodes were accepted. "
            f"Every method with its greatest budget; depths that fewer than {LEAST_STEPS} steps reached are not drawn."
        ),
        draw(chart),
        chart_legend(chart),
        details("Numbers", numbers),
    )


def _depth_points(one: MethodResult) -> list[Point]:
    counts = zip(one.accepted_by_depth, one.offered_by_depth, strict=True)
    return [
        Point(depth, accepted / offered, f"{one.label}, depth {depth}: {accepted:,} of {counted(offered, 'step')}")
        for depth, (accepted, offered) in enumerate(counts, 1)
        if offered >= LEAST_STEPS
    ]


def _depth_table(drafting: Sequence[MethodResult]) -> Markup:
    deepest = max((len(one.offered_by_depth) for one in drafting), default=0)
    rows = []
    for one in drafting:
        counts = list(zip(one.accepted_by_depth, one.offered_by_depth, strict=True))
        cells = [f"{accepted}/{offered}" if offered else UNKNOWN for accepted, offered in counts]
        rows.append([text(cell) for cell in (one.label, *cells, *[UNKNOWN] * (deepest - len(cells)))])
    header = ["method", *map(str, range(1, deepest + 1))]
    return table("Steps accepted to a depth / steps whose draft was that deep", header, rows)


def _promises(results: Results) -> Markup:
    title = "Promised and accepted"
    promising = {one.label: one.promises for one in results.methods if any(tenth.nodes for tenth in one.promises)}
    if not promising:
        return left_out(title, "Left out: no method that gives its draft nodes a probability was run.")
    series = []
    for number, (label, promises) in enumerate(promising.items()):
        points = [
            Point(
                tenth.promised / tenth.nodes,
                tenth.accepted / tenth.nodes,
                f"{label}: {counted(tenth.nodes, 'node')}, {percent(tenth.promised / tenth.nodes)} promised, "
                f"{percent(tenth.accepted / tenth.nodes)} accepted",
            )
            for tenth in promises
            if tenth.nodes >= LEAST_NODES
        ]
        if points:
            series.append(Series(label, number, tuple(points), strong=number == 0))
    if not series:
        return left_out(title, f"Left out: no tenth of the probabilities was given to {LEAST_NODES} nodes.")
    even = Series("as promised", len(series), tuple(Point(x / 10, x / 10, "as promised") for x in (0, 10)))
    chart = LineChart(
        "Share of draft nodes accepted by the probability that was promised",
        x_name="promised probability of acceptance",
        y_name="accepted",
        x_axis=even_axis([0.0, 1.0]),
        y_axis=even_axis([0.0, 1.0]),
        series=[*series, even],
        y_text=percent,
    )
    return section(
        title,
        prose(
            "Draft nodes by tenths of the probability that the drafter gave them, against the share that was accepted: "
            f"on the diagonal it promises what it keeps. Tenths of fewer than {LEAST_NODES} nodes are not drawn."
        ),
        draw(chart),
        chart_legend(chart),
    )


def _costs(results: Results) -> Markup:
    title = "Cost of a forward pass"
    curve = results.cost_curve
    if not curve or curve[0].seconds <= 0:
        why = (
            "a benchmark times whole decodes, not passes by their size."
            if results.kind == BENCH
            else "no cost curve was given (--cost-curve)."
        )
        return left_out(title, f"Left out: {why}")
    base = curve[0]
    unit = f"times the pass of {counted(base.tokens, 'token')}"
    points = [
        Point(one.tokens, one.seconds / base.seconds, f"{counted(one.tokens, 'token')}: {milliseconds(one.seconds)} ms")
        for one in curve
    ]
    series = [Series("a forward pass on the device", 0, tuple(points), strong=True)]
    chart = LineChart(
        "Seconds of a forward pass by its number of tokens, relative to the smallest",
        x_name="tokens in the pass (1 + draft nodes)",
        y_name=unit,
        x_axis=doubling_axis([one.tokens for one in curve]),
        y_axis=even_axis([1.0, *(point.y for point in points)]),
        series=series,
        y_text="{:g}×".format,
    )
    rows = [[text(str(one.tokens)), text(milliseconds(one.seconds)), text(f"{point.y:.2f}×")]
            for one, point in zip(curve, points, strict=True)]  # fmt: skip
    return section(
        title,
        prose("A draft pays where its tokens per forward exceed what its passes cost here."),
        draw(chart),
        details("Numbers", table("Measured passes", ["tokens", "ms", unit], rows)),
    )
