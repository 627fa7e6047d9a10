"""Lines with intervals as one SVG. Knows points, axes and styles by number; not what they mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dresd.page.axes import Axis
from dresd.page.layout import legend
from dresd.page.markup import NOTHING, Markup, element, isolated, joined, text

COLOURS = 6
"""The style sheet has classes c0, c1, …; style n has colour n % COLOURS and a marker of its own within a round."""

# Narrow, so that its letters stay readable on a telephone, where the page shows it at about this width.
_WIDTH, _HEIGHT = 440, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 428, 30, 256
_SLOT = 76
_CAP = 3
_MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "M-3.6 -3.6h7.2v7.2h-7.2z",
    "M0 -4.8l4.6 8.4h-9.2z",
    "M0 -5.2l5.2 5.2l-5.2 5.2l-5.2 -5.2z",
    "M0 4.8l4.6 -8.4h-9.2z",
    "M-1.6 -5h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4v-3.2h3.4z",
)


@dataclass(frozen=True, slots=True)
class Point:
    """One value.

    Attributes:
        x: on the axis; None in the slot beside it.
        y: value.
        hint: shown on hover.
        low: of its interval; equal to `high` for none.
        high: see `low`.
    """

    x: float | None
    y: float
    hint: str
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one kind, joined by a line; `strong` lines are thicker."""

    name: str
    style: int
    points: tuple[Point, ...]
    strong: bool = False


@dataclass(frozen=True, slots=True)
class LineChart:
    """What to draw.

    Attributes:
        description: for those who cannot see it.
        x_name: of the axis.
        y_name: of the axis.
        x_axis: None if all points lie in the slot.
        y_axis: encloses all points and intervals.
        series: in the order of the legend.
        slot: name of a place beside the axis; None for none.
        reference: a level and its name; None for none.
        y_text: writes a tick.
    """

    description: str
    x_name: str
    y_name: str
    x_axis: Axis | None
    y_axis: Axis
    series: Sequence[Series]
    slot: str | None = None
    reference: tuple[float, str] | None = None
    y_text: Callable[[float], str] = "{:g}".format


def draw(chart: LineChart) -> Markup:
    """The SVG."""
    return element(
        "svg",
        {"class": "chart", "viewBox": f"0 0 {_WIDTH} {_HEIGHT}", "role": "img", "aria-label": chart.description},
        _grid(chart),
        _reference(chart),
        *(_series(chart, one, aside) for one, aside in zip(chart.series, _asides(chart), strict=True)),
    )


def chart_legend(chart: LineChart) -> Markup:
    """What the lines stand for."""
    entries = [
        (_key(_classes(one), _level("line", 1, 27, 7), _marker(one, 14, 7)), isolated(one.name)) for one in chart.series
    ]
    if chart.reference is not None:
        entries.append((_key("", _level("reference", 1, 27, 7)), text(chart.reference[1])))
    return legend(entries)


def _key(classes: str, *shapes: Markup) -> Markup:
    return element("svg", {"class": f"key {classes}", "viewBox": "0 0 28 14", "aria-hidden": "true"}, *shapes)


def _level(style: str, left: float, right: float, y: float) -> Markup:
    return element("line", {"class": style, "x1": left, "x2": right, "y1": y, "y2": y})


def _classes(one: Series) -> str:
    return f"c{one.style % COLOURS} round{one.style // COLOURS % 3}" + (" strong" if one.strong else "")


def _marker(one: Series, x: float, y: float) -> Markup:
    place = f"translate({x:.2f} {y:.2f})"
    return element("path", {"class": "marker", "d": _MARKERS[one.style % len(_MARKERS)], "transform": place})


def _asides(chart: LineChart) -> list[float]:
    """How far the points of each series stand beside their place, so that intervals at one x do not hide each other."""
    count = len(chart.series)
    apart = min(4.0, 40.0 / max(count, 1)) if any(p.high > p.low for one in chart.series for p in one.points) else 0.0
    return [(at - (count - 1) / 2) * apart for at in range(count)]


def _x(chart: LineChart, value: float | None) -> float:
    if chart.x_axis is None:
        return (_LEFT + _RIGHT) / 2
    if value is None:
        return _RIGHT - _SLOT / 2
    # Room for what stands aside at both ends.
    right = _RIGHT - 24 - (0 if chart.slot is None else _SLOT)
    return _LEFT + 24 + chart.x_axis.place(value) * (right - _LEFT - 24)


def _y(chart: LineChart, value: float) -> float:
    return _BOTTOM - chart.y_axis.place(value) * (_BOTTOM - _TOP)


def _grid(chart: LineChart) -> Markup:
    parts = [_label(0, 14, "start", chart.y_name), _label(_RIGHT, _HEIGHT - 8, "end", chart.x_name)]
    for tick in chart.y_axis.ticks:
        y = _y(chart, tick)
        parts.append(_level("grid", _LEFT, _RIGHT, y))
        parts.append(_label(_LEFT - 6, y + 4, "end", chart.y_text(tick)))
    for tick in () if chart.x_axis is None else chart.x_axis.ticks:
        x = _x(chart, tick)
        parts.append(element("line", {"class": "tick", "x1": x, "x2": x, "y1": _BOTTOM, "y2": _BOTTOM + 4}))
        parts.append(_label(x, _BOTTOM + 18, "middle", f"{tick:g}"))
    if chart.slot is not None:
        parts.append(_label(_x(chart, None), _BOTTOM + 18, "middle", chart.slot))
        if chart.x_axis is not None:
            edge = _RIGHT - _SLOT
            parts.append(element("line", {"class": "grid", "x1": edge, "x2": edge, "y1": _TOP, "y2": _BOTTOM + 22}))
    return joined(*parts)


def _label(x: float, y: float, anchor: str, words: str) -> Markup:
    return element("text", {"x": x, "y": y, "text-anchor": anchor}, text(words))


def _reference(chart: LineChart) -> Markup:
    return NOTHING if chart.reference is None else _level("reference", _LEFT, _RIGHT, _y(chart, chart.reference[0]))


def _series(chart: LineChart, one: Series, aside: float) -> Markup:
    placed = [(_x(chart, point.x) + aside, _y(chart, point.y), point) for point in one.points]
    on_axis = [f"{x:.2f},{y:.2f}" for x, y, point in placed if point.x is not None]
    parts = [element("polyline", {"class": "line", "points": " ".join(on_axis)})] if len(on_axis) > 1 else []
    for x, y, point in placed:
        whisker = _whisker(x, _y(chart, point.low), _y(chart, point.high)) if point.high > point.low else NOTHING
        hint = element("title", None, text(point.hint))
        parts.append(element("g", None, hint, whisker, _marker(one, x, y)))
    return element("g", {"class": _classes(one)}, *parts)


def _whisker(x: float, low: float, high: float) -> Markup:
    left, right = x - _CAP, x + _CAP
    path = f"M{x:.2f} {low:.2f}V{high:.2f}M{left:.2f} {low:.2f}H{right:.2f}M{left:.2f} {high:.2f}H{right:.2f}"
    return element("path", {"class": "whisker", "d": path})
